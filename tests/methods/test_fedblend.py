"""FedBlend: all checks of the suite, its two parts against themselves, and the share that goes with the rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedBlend
from fedrec.methods.closed_form.fedblend import leading_factors
from fedrec.methods.mixing import SHARES, share_at
from fedrec.testing import MethodTests, all_scores, assert_close, run, tiny_world
from methods import test_fedopt

SMALL = {"dim": 4, "length": 5, "dropout": 0.0, "clients_per_round": 0, "server_lr": 0.1, "l2": 2.0}


def standardised(scores: Tensor, data: ClientData) -> Tensor:
    """User by user; rows by the data set's user index."""
    out = scores.clone()
    for place, index in enumerate(data.users):
        mine = data.history[data.user_ptr[place] : data.user_ptr[place + 1]]
        row = scores[index].numpy()
        rest = np.delete(row, mine)
        out[index] = torch.from_numpy((row - rest.mean()) / (rest.std() or 1.0))
    return out


class TestFedBlend(MethodTests):
    method = FedBlend(**SMALL, gram_share=0.3)
    sampled_rows_only = False

    def reference(self, data: ClientData, rounds: int) -> Mapping[str, Tensor]:
        """FedGram of everybody; and FedOpt by a loop over clients, all of them in the first round."""
        gram = run(self.method.gram, replace(data, world=replace(data.world, participation=1.0)), 1)
        sequence = test_fedopt.reference(self.method.sequence, data, rounds, everybody_first=True)
        scores = 0.3 * standardised(gram["scores"], data) + 0.7 * standardised(sequence["scores"], data)
        sent = {name.removeprefix("server."): value for name, value in sequence.items() if name != "scores"}
        found = {f"server.sequence.{name}": value for name, value in sent.items()}
        return found | {"server.gram.weight": gram["server.weight"], "scores": scores}


class TestFedBlendAveraged(TestFedBlend):
    method = FedBlend(**SMALL, gram_share=0.3, averaging=0.6)


class TestFedBlendRandomCrop(TestFedBlend):
    method = FedBlend(**SMALL, gram_share=0.3, crop="random")


class TestFedBlendShares(TestFedBlend):
    method = FedBlend(**SMALL, gram_share=0.3, shares="samples")


class TestFedBlendSampled(MethodTests):
    method = FedBlend(**SMALL | {"dropout": 0.2}, sampled=6)
    sampled_rows_only = False


@pytest.mark.parametrize(("share", "part"), [(1.0, "gram"), (0.0, "sequence")])
def test_at_the_ends_it_is_one_of_its_parts(share, part):
    data = tiny_world()
    method = FedBlend(**SMALL, gram_share=share)
    simulator = Simulator(method, data)
    for round in range(3):
        simulator.round(round)
    server = {name.removeprefix(f"{part}."): v for name, v in simulator.server.items() if name.startswith(f"{part}.")}
    alone = Simulator(getattr(method, part), data)
    alone.server = server
    blended, own = all_scores(simulator, 3), all_scores(alone, 3)
    assert_close({"scores": blended}, {"scores": standardised(own, data)}, 1e-9, part)


def test_parts_have_the_parameters_of_the_whole():
    method = FedBlend(l2=7.0, dim=8, clip=0.25, sampled=3)
    assert (method.gram.l2, method.gram.order) == (7.0, True)
    sequence = method.sequence
    assert (sequence.dim, sequence.clip, sequence.sampled, sequence.loss) == (8, 0.25, 3, "ce")
    usual = FedBlend()
    assert usual.gram == build_method("fedgram", preset="tuned", rounds=usual.rounds)
    assert usual.sequence == build_method("fedopt", backbone="sasrec", rounds=usual.rounds)


@pytest.mark.parametrize("every", [1, 5, 7, 9, 10, 20, 25])
def test_whichever_rounds_are_evaluated_all_shares_come_up(every):
    assert {share_at(round, 900, None) for round in range(every - 1, 900, every)} == set(SHARES)
    assert share_at(899, 900, None) == 0.3


def test_the_first_round_is_everybodys_and_sums_alone_leave():
    data = tiny_world(participation=0.5)
    method = FedBlend(**SMALL)
    assert len(method.plan(data.world, {}, 0).train) == 12
    assert len(method.plan(data.world, {}, 1).train) == 6
    assert method.disclosure.secure_aggregation


def test_scores_do_not_depend_on_which_items_are_asked_for():
    data = tiny_world()
    simulator = Simulator(FedBlend(**SMALL, gram_share=0.5), data)
    simulator.round(0)
    simulator.round(1)
    some = torch.tensor([3, 1, 30])
    down = simulator.server_side.offer(data.clients, 2, some)
    chunk, state = data.chunk(data.clients), simulator.cohorts[0].state
    part, whole = (simulator.method.score(state, down, chunk, items) for items in (some, torch.arange(40)))
    assert_close({"scores": part}, {"scores": whole[:, some]}, 1e-12, "some items")


def test_a_warm_start_is_from_the_factors_of_the_gram_model():
    data = tiny_world()
    cold, warm = (Simulator(FedBlend(**SMALL, warm_start=warm), data) for warm in (False, True))
    cold.round(0)
    warm.round(0)
    table, weight = warm.server["sequence.item"], cold.server["gram.weight"]
    assert torch.equal(table, leading_factors(weight, 4, 0.03))
    assert float(table.std()) == pytest.approx(0.03)
    _, vectors = np.linalg.eigh((weight + weight.T).numpy() / 2)
    assert np.abs(vectors.T @ table.numpy())[:-4].max() < 1e-12
    same = [name for name in warm.server if name != "sequence.item"]
    assert all(torch.equal(warm.server[name], cold.server[name]) for name in same)


def test_the_mean_of_a_warm_start_begins_with_it():
    data = tiny_world()
    simulator = Simulator(FedBlend(**SMALL, warm_start=True, averaging=0.6), data)
    tables = []
    for round in range(3):
        simulator.round(round)
        tables.append(simulator.server["sequence.item"].clone())
    assert torch.equal(tables[0], leading_factors(simulator.server["gram.weight"], 4, 0.03))
    mean = sum(w * table for w, table in zip((0.36, 0.6, 1.0), tables, strict=True)) / 1.96
    offered = simulator.server_side.offer(data.clients, 3, torch.arange(40)).shared
    assert torch.allclose(offered["sequence.item"], mean, atol=1e-12)


def test_bad_settings_are_refused():
    with pytest.raises(FedrecError, match="heads=3"):
        FedBlend(heads=3)


def test_no_more_items_are_drawn_than_there_are():
    with pytest.raises(FedrecError, match="sampled=41 is more than the 40 items there are"):
        Simulator(FedBlend(**SMALL, sampled=41), tiny_world())


def test_by_their_highest_scores_both_parts_come_to_one_scale():
    data = tiny_world()
    simulator = Simulator(FedBlend(**SMALL, gram_share=0.4, scale="top"), data)
    simulator.round(0)
    chunk, state, every = data.chunk(data.clients), simulator.cohorts[0].state, torch.arange(40)
    down, method = simulator.server_side.offer(data.clients, 1, every), simulator.method
    parts = []
    for mark, part in (("gram.", method.gram), ("sequence.", method.sequence)):
        mine = {name.removeprefix(mark): v for name, v in down.shared.items() if name.startswith(mark)}
        parts.append(part.score(state, Down(mine), chunk, every))
    for place, row in enumerate(method.score(state, down, chunk, every)):
        met = data.history[data.user_ptr[place] : data.user_ptr[place + 1]]
        scaled = []
        for scores in (part[place].numpy() for part in parts):
            away = scores - np.delete(scores, met).mean()
            scaled.append(away / np.sort(np.delete(away, met))[-10:].mean())
        assert torch.allclose(row, torch.from_numpy(0.4 * scaled[0] + 0.6 * scaled[1]), atol=1e-9)


def test_the_sequence_part_has_layers_cooldown_and_a_private_vector():
    method = FedBlend(**SMALL, block_kind="ligr", cooldown=0.2, personal_steps=2, personal_lr=0.3)
    part = method.sequence
    assert (part.block_kind, part.cooldown, part.personal_steps, part.personal_lr) == ("ligr", 0.2, 2, 0.3)
    assert run(method, tiny_world(), 2)["scores"].isfinite().all()
