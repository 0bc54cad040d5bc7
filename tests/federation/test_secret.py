"""Whose numbers a draw is made of: a simulation's can be repeated by who knows the seed, real clients' cannot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fedrec.federation.accumulator import Accumulator
from fedrec.federation.contract import Down, Sum, World
from fedrec.federation.noise import Gaussian, Laplace, Noise, SumGaussian
from fedrec.federation.secret import OwnSecret, SeededSecret
from fedrec.federation.wire import Wire
from fedrec.methods import FedMF
from fedrec.random import Purpose, stream
from fedrec.testing import run, tiny_world

WORLD = World(items=4000, clients=2, seed=3, dtype=torch.float64)


def sent(noise: Noise, secret: OwnSecret | SeededSecret, clients: int = 1, fewest: int | None = None) -> torch.Tensor:
    wire, accumulator = Wire(WORLD, [noise], secret=secret), Accumulator()
    zeros = torch.zeros(clients, WORLD.items, 2, dtype=torch.float64)
    wire.send_up({"x": Sum(zeros)}, Down(), np.arange(clients), "all", 0, accumulator)
    return wire.collect(accumulator, 0, fewest).ups(torch.float64)["x"]


@pytest.mark.parametrize("noise", [Gaussian(5.0), Laplace(5.0)])
def test_who_knows_the_seed_takes_a_simulations_noise_off_and_no_real_clients(noise: Noise) -> None:
    guess = sent(noise, SeededSecret(WORLD.seed))
    assert torch.equal(sent(noise, SeededSecret(WORLD.seed)), guess)
    hidden = sent(noise, OwnSecret())
    assert abs(np.corrcoef(hidden.flatten(), guess.flatten())[0, 1]) < 0.05
    assert not torch.equal(sent(noise, OwnSecret()), hidden)  # nor is it that of another client
    assert stats.ks_2samp(hidden.flatten(), guess.flatten()).pvalue > 0.001


def test_a_secret_repeats_itself() -> None:
    """A node that is started again draws what it would have drawn."""
    secret = OwnSecret(bytes(range(32)))
    assert secret.stream(Purpose.ORDER, 4) == OwnSecret(bytes(range(32))).stream(Purpose.ORDER, 4)
    assert secret.stream(Purpose.ORDER, 4) != secret.stream(Purpose.ORDER, 5)
    assert torch.equal(secret.bits("0,x", 1, 8), secret.bits("0,x", 1, 8))
    assert not torch.equal(secret.bits("0,x", 1, 8), secret.bits("0,x", 2, 8))
    assert "key" not in repr(secret)


def test_a_simulation_derives_its_secret_from_the_seed() -> None:
    assert tiny_world(seed=5).secret.stream(Purpose.NEGATIVES, 2) == stream(5, Purpose.NEGATIVES, 2)


def test_every_draw_that_reveals_comes_from_the_secret() -> None:
    """The same seed, another secret: other negatives, orders and initial vectors, and the same common start."""
    data, method = tiny_world(), FedMF(dim=4)
    own = replace(data, own_secret=OwnSecret(bytes(32)))
    start, hidden = run(method, data, 0), run(method, own, 0)
    assert torch.equal(start["server.item"], hidden["server.item"])
    assert not torch.isin(start["user.user"], hidden["user.user"]).any()
    assert not torch.equal(run(method, data, 1)["server.item"], run(method, own, 1)["server.item"])
    assert torch.equal(run(method, own, 1)["server.item"], run(method, own, 1)["server.item"])


@pytest.mark.parametrize("secret", [SeededSecret(3), OwnSecret()])
def test_shares_of_the_noise_on_a_sum_add_up_to_it(secret: OwnSecret | SeededSecret) -> None:
    whole = sent(SumGaussian(2.0), secret, clients=2, fewest=2)
    share = sent(SumGaussian(2.0), secret, clients=2, fewest=8)
    assert float(whole.std()) == pytest.approx(2.0, rel=0.05)
    assert float(share.std()) == pytest.approx(1.0, rel=0.05)
    assert abs(np.corrcoef(whole.flatten(), share.flatten())[0, 1]) < 0.05
