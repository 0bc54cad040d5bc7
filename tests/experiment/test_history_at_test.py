"""What a user's history holds when test items are ranked: the validation item too, which nothing was trained on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrec
from fedrec.data import Interactions, before_test, load, ratio
from fedrec.evaluation import protocol
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Run
from fedrec.experiment.prepare import prepare
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.clients import Histories
from fedrec.federation.contract import Method, World
from fedrec.federation.simulator import Simulator
from fedrec.methods import methods
from fedrec.serve import Recommender
from fedrec.testing import add_one_item, all_scores, tiny_world

from . import SMALL

READERS: dict[str, dict[str, Any]] = {
    "ease": {},
    "sasrec": {"dim": 4, "length": 6, "blocks": 1},
    "fedavg": {"backbone": "sasrec", "dim": 4},
    "local": {"backbone": "sasrec", "dim": 4},
    "pfedrec": {"backbone": "sasrec", "dim": 4},
    "fedgram": {},
    "fedgram, order": {"order": True},
    "fedgram, sketch": {"sketch": 8},
}
OTHERS = ("popularity", "fedmf", "pfedrec", "fedcia", "lightgcn", "gfcf", "mf", "local", "fedrap", "fedca")


def made(name: str, params: dict[str, Any]) -> Method:
    kind = methods()[name.split(",")[0]]
    return kind(**{"rounds": 2, **params})


@pytest.mark.parametrize("name", READERS)
def test_models_of_histories_answer_as_if_the_item_had_been_there(name: str) -> None:
    """Trained on short histories, asked with longer ones: as a client that has the longer ones and the same model."""
    method = made(name, READERS[name])
    silos = (12,) if method.info.centralised else None
    data = tiny_world(silos=silos)
    known, added = add_one_item(data, [0, 3, 4])
    grown = dataclasses.replace(data, user_ptr=known.ptr, items=known.by_item(), history=known.items)
    short, long = Simulator(method, data), Simulator(method, grown)
    for number in range(method.rounds):
        short.round(number)
    long.server = short.server
    for members, other in zip(long.cohorts, short.cohorts, strict=True):
        members.state = other.state
    assert len(added) == 3
    asked, expected, plain = all_scores(short, 2, known), all_scores(long, 2), all_scores(short, 2)
    assert torch.allclose(asked, expected, rtol=1e-12, atol=1e-12)
    changed = (asked != plain).any(1).nonzero().flatten().tolist()
    assert set(changed) == set(data.users[[0, 3, 4]].tolist())


def test_tables_that_are_trained_again_are_trained_on_training_rows() -> None:
    data = tiny_world()
    known, _ = add_one_item(data, [0, 3, 4])
    kept, again = (
        made("pfedrec", {"backbone": "sasrec", "dim": 4, "own_tables": kind}) for kind in ("kept", "replayed")
    )
    found = []
    for method in (kept, again):
        simulator = Simulator(method, data)
        for number in range(2):
            simulator.round(number)
        found.append(all_scores(simulator, 2, known))
    assert torch.allclose(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_fitted_stays_fitted_on_training_rows(name: str) -> None:
    """User vectors, graphs and filters do not change with a history that is longer than what was trained on."""
    method = made(name, {})
    data = tiny_world(silos=(12,) if method.info.centralised else (4, 4, 4) if name == "fedcia" else None)
    simulator = Simulator(method, data)
    simulator.round(0)
    known, _ = add_one_item(data, [0, 3, 4])
    assert torch.equal(all_scores(simulator, 0, known), all_scores(simulator, 0))


def histories(data: Interactions, text: str) -> tuple[Histories | None, Any, Any]:
    prepared = prepare(data, protocol(text))
    clients = prepared.clients(World(items=prepared.n_items, clients=prepared.partition.n_clients))
    return prepared.known_at_test(clients), clients, prepared


def test_the_validation_item_comes_last() -> None:
    known, clients, prepared = histories(load(SMALL), "honest")
    assert known is not None
    assert (np.diff(known.ptr) == np.diff(clients.user_ptr) + 1).all()
    held = dict(zip(prepared.split.valid.user.tolist(), prepared.split.valid.item.tolist(), strict=True))
    for place, user in enumerate(clients.users.tolist()):
        mine = known.items[known.ptr[place] : known.ptr[place + 1]]
        assert mine[:-1].tolist() == clients.history[clients.user_ptr[place] : clients.user_ptr[place + 1]].tolist()
        assert mine[-1] == held[user]


@pytest.mark.parametrize("text", ["honest,history_at_test=train", "fedca", "fedcia,partition=4", "fedrkg"])
def test_elsewhere_the_history_is_what_was_trained_on(text: str) -> None:
    assert histories(load("synthetic@users=60+items=300+interactions=1200+seed=1"), text)[0] is None


def test_parts_cut_at_random_are_put_back_in_time_order() -> None:
    data = load(SMALL)
    split = ratio(data, 0.2, 0.3)
    user, item = before_test(split)
    assert data.timestamp is not None
    when = {(u, i): t for u, i, t in zip(data.user.tolist(), data.item.tolist(), data.timestamp.tolist(), strict=True)}
    assert len(user) == len(split.train) + len(split.valid)
    for someone in np.unique(user).tolist():
        times = [when[someone, i] for i in item[user == someone].tolist()]
        assert times == sorted(times)


def test_training_with_dropped_items_does_not_bring_them_back() -> None:
    known, clients, _ = histories(load(SMALL), "honest,train_fraction=0.5")
    assert known is not None
    assert (np.diff(known.ptr) == np.diff(clients.user_ptr) + 1).all()


def test_validation_is_answered_without_the_validation_item(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(plan_run(RunConfig("ease", data=SMALL)))
    asked: list[Histories | None] = []
    scores = run.simulator.scores

    def spied(round: int, items: Any = None, known: Histories | None = None) -> Any:
        asked.append(known)
        return scores(round, items, known)

    monkeypatch.setattr(run.simulator, "scores", spied)
    run.execute()
    assert asked == [None, run.known_at_test, None]  # validation of the round, test, validation of the chosen round
    assert run.known_at_test is not None


def test_only_test_figures_depend_on_it() -> None:
    longer, shorter = (
        fedrec.run("ease", SMALL, protocol=f"honest,history_at_test={kind}") for kind in ("all", "train")
    )
    assert longer.valid == shorter.valid
    assert longer.test["ndcg@10"] != shorter.test["ndcg@10"]
    fitted = [fedrec.run("mf", SMALL, protocol=f"honest,history_at_test={kind}", rounds=2) for kind in ("all", "train")]
    assert fitted[0].test == fitted[1].test


def test_lists_are_those_that_the_test_judges(tmp_path: Path) -> None:
    result = fedrec.run("ease", SMALL, out=tmp_path / "run")
    offered = Recommender(tmp_path / "run", as_tested=True)
    items = len(offered.item_ids)
    prepared = offered.run.prepared
    above = dict(zip(result.evaluation.users.tolist(), result.evaluation.positions[0].tolist(), strict=True))
    for user, item in zip(prepared.split.test.user.tolist(), prepared.split.test.item.tolist(), strict=True):
        ranks = {rec.item: rec.rank for rec in offered.for_user(offered.user_ids[user], items)}
        assert ranks[offered.item_ids[item]] == above[user] + 1
