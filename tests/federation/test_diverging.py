"""A run that has left the finite numbers ends in that round, and says which rate to lower."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import fedrec
from fedrec.errors import DivergedError, FedrecError
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.params import build_method
from fedrec.federation.advice import divergence_remedy
from fedrec.federation.contract import Gather, Mean, Method, MethodInfo
from fedrec.federation.simulator import Simulator
from fedrec.methods.average.fedmf import FedMF
from fedrec.testing import tiny_world
from methods.cold import attributes

MOST = 4  # rounds: a loss shows in the round after the step that was too large


def diverge(method: Method) -> str:
    """What a run in single precision says in the end."""
    data = tiny_world()
    world = replace(data.world, dtype=torch.float32)
    simulator = Simulator(method, replace(data, world=world), attributes=attributes(world))
    with pytest.raises(FedrecError) as error:
        _ = [simulator.round(number) for number in range(MOST)]
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "backbone", "rate"),
    [
        ("fedmf", None, "lr"),
        ("fedavg", "ncf", "lr"),
        ("local", "mf", "lr"),  # uploads nothing: by its loss
        ("mf", None, "lr"),
        ("fedvbpr", None, "lr"),
        ("feddcn", None, "lr"),
        ("fedmvmf", None, "lr_server"),
        ("fedrap", None, "lr"),
    ],
)
def test_divergence_names_the_rate(name: str, backbone: str | None, rate: str) -> None:
    method = build_method(name, backbone=backbone, params={rate: 1e30, "dim": 4})
    said = diverge(replace(method, optimiser="sgd") if hasattr(method, "optimiser") else method)
    broken = "(the (loss|upload '.*') is no longer finite|a matrix cannot be decomposed)"
    assert re.search(f"^{broken} in round .: training diverged; lower the", said)
    assert f"{rate}=1e+30" in said


def test_rates_that_a_method_does_not_use_are_not_named() -> None:
    assert divergence_remedy(build_method("fedmf", params={"lr": 5})) == "lower the learning rate (lr=5)"
    assert divergence_remedy(build_method("popularity")) == "lower its large parameters"


@pytest.mark.parametrize("reduction", [Mean, Gather])
def test_one_upload_that_is_not_finite_is_enough(reduction: type[Mean] | type[Gather]) -> None:
    class Broken(Method):
        info = MethodInfo("broken")

        def local(self, state, down, chunk, round):  # type: ignore[no-untyped-def]
            value = torch.zeros(len(chunk.clients), 3, dtype=chunk.world.dtype)
            value[chunk.clients == 5, 1] = np.inf if round else 0
            return state, {"mine": reduction(value)}

    simulator = Simulator(Broken(), tiny_world())
    simulator.round(0)
    with pytest.raises(FedrecError, match="the upload 'mine' is no longer finite in round 2: "):
        simulator.round(1)


def test_a_matrix_that_is_no_longer_finite_is_divergence_too(tmp_path):
    with pytest.raises(DivergedError, match=r"a matrix .* in round 1: training diverged; lower .* \(lr="):
        fedrec.run("fedca", "synthetic@users=50+items=200", rounds=2, lr=1e30, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_after_a_chosen_round_ends_with_that_round(tmp_path):
    """As if it had been asked for the rounds before alone; and more rounds diverge again from what was saved."""
    world, settings = "synthetic@users=50+items=200", {"optimiser": "sgd", "backbone": "mf", "dim": 4}
    good = fedrec.run(Exploding(**settings), world, rounds=3)
    cut = fedrec.run(Exploding(**settings), world, rounds=8, out=tmp_path / "run")
    assert not good.summary["diverged"]
    assert cut.summary["rounds_run"] == 3
    assert cut.test == good.test
    said = cut.summary["diverged"]
    assert said in cut.summary["notes"]
    assert re.search(r"round 4: training diverged; .*; the figures are those of round \d, chosen", said)
    assert RunFolder(tmp_path / "run").best.exists()


def test_a_run_that_diverges_before_any_round_was_chosen_is_refused():
    with pytest.raises(DivergedError, match="in round 4: training diverged"):
        fedrec.run(Exploding(optimiser="sgd"), "synthetic@users=50+items=200", rounds=8, eval_every=5)


@dataclass(frozen=True)
class Exploding(FedMF):
    """Takes a step that is too large in its fourth round."""

    info = MethodInfo("exploding")

    def local(self, state, down, chunk, round):  # type: ignore[no-untyped-def]
        return FedMF.local(replace(self, lr=1e30) if round == 3 else self, state, down, chunk, round)
