"""A deployment gives what a simulation of the same seed gives: nodes that read, split, train and rank by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.town import Town, settings
from fedrec.deploy.rehearsal import rehearse
from fedrec.errors import FedrecError
from fedrec.experiment.driver import execute
from fedrec.experiment.folder import RunFolder
from fedrec.methods import listings

COLD = "ifedrec,ks=5+10,select_metric=recall@5"
SECURE = ("fedgram", "popularity", "fedblend")
CASES: dict[str, dict[str, Any]] = {
    name: {"protocol": COLD}
    for name in ("ifedrec", "ifedrec-lan", "cs-fedncf", "cs-pfedrec", "fedvbpr", "fedmvmf", "feddcn")
}
CASES |= {
    name: {}
    for name in (
        "local",
        "fedmf",
        "fedopt",
        "fedfast",
        "fedatt",
        "fedca",
        "pfedrec",
        "cgfedrec",
        "fedrkg",
        "gpfedrec",
        "cofedrec",
        "fedrap",
        "feddae",
        "pfedgraph",
        "perfedrec",
    )
}
CASES |= {"fedavg": {"participation": 0.5}, "fedcia": {"silos": "6:taste", "params": {"backbone": "mf"}}}


def test_every_federated_method_is_deployed_here() -> None:
    assert {one.name for one in listings() if not one.centralised} == {*CASES, *SECURE}


@pytest.mark.parametrize("method", CASES)
def test_a_deployment_equals_a_simulation(method: str, tmp_path: Path) -> None:
    town = Town(settings(method, **CASES[method]), tmp_path)
    found, wanted = town.server().run(), execute(town.config).summary
    assert not town.told("refused")
    assert found["best_round"] == wanted["best_round"]
    for part in ("test", "valid", "chance"):
        shared = {name for name in wanted[part] if not name.startswith(("coverage", "novelty"))}
        assert set(found[part]) == shared
        for name in shared:
            assert found[part][name] == pytest.approx(wanted[part][name], rel=1e-5, abs=1e-12), (part, name)
    for name in wanted["bytes"]:
        assert found["bytes"][name] == pytest.approx(wanted["bytes"][name]), name


def test_a_server_keeps_nothing_that_it_must_not_have(tmp_path: Path) -> None:
    town = Town(settings("pfedrec"), tmp_path)
    town.server().run()
    there = {path.name for path in town.run_folder.path.iterdir()}
    private = {RunFolder(Path()).per_user.name, RunFolder(Path()).users.name, RunFolder(Path()).prepared.name}
    assert not there & private
    assert {"summary.json", "metrics.jsonl", "checkpoint.safetensors"} <= there
    from fedrec.experiment import checkpoint

    for file in ("checkpoint.safetensors", "last.safetensors"):
        tensors, _ = checkpoint.load(town.run_folder.path / file)
        assert not [name for name in tensors if name.startswith(("client.", "user."))]


def test_early_stopping_and_sparse_evaluation(tmp_path: Path) -> None:
    """The round that is found out to be one too many is dropped."""
    config = settings("fedmf", rounds=8, eval_every=2, patience=1, params={"lr": 30.0})
    town = Town(config, tmp_path)
    found, wanted = town.server().run(), execute(config).summary
    assert wanted["stopped_early"]
    assert (found["rounds_run"], found["best_round"]) == (wanted["rounds_run"], wanted["best_round"])
    assert found["test"]["ndcg@10"] == pytest.approx(wanted["test"]["ndcg@10"], rel=1e-5)


@pytest.mark.parametrize("method", ["fedmf", *SECURE])
def test_secure_sums_change_nothing_but_what_the_server_sees(method: str, tmp_path: Path) -> None:
    town = Town(settings(method, rounds=2), tmp_path, secure=True, minimum=3)
    found, wanted = town.server().run(), execute(town.config).summary
    assert not town.told("refused")
    for name, value in found["test"].items():
        assert value == pytest.approx(wanted["test"][name], rel=1e-5, abs=1e-12), name


@pytest.mark.parametrize("method", SECURE)
def test_what_needs_secure_sums_does_not_start_without(method: str) -> None:
    with pytest.raises(FedrecError, match="--secure-sums"):
        rehearse(settings(method))


def test_what_has_all_data_in_one_place_is_refused_by_name() -> None:
    with pytest.raises(FedrecError, match="ease is centralised"):
        rehearse(settings("ease"))


def test_what_gathers_uploads_cannot_be_blind(tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match="fedca needs each client's own upload"):
        Town(settings("fedca"), tmp_path, secure=True).server().run()
