"""Data under a protocol: the leaked pool is found, the honest one passes, and each check hears its own field."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import Cli
from fedrec import evaluation
from fedrec.data import Interactions, Split, synthetic
from fedrec.evaluation import chance
from fedrec.experiment.audit import Case, audit, from_protocol, ranking_checks, training_checks
from fedrec.experiment.audit.draws import SampledDraws, add_compiled, add_torch
from fedrec.report.pages.audit_page import write_audit

LEAKED = "honest,neg_pool=leaked,candidates=split198,ties=first"


@pytest.fixture(scope="module")
def world() -> Interactions:
    return synthetic(users=120, items=400, interactions=4000, seed=3).interactions


def case(world: Interactions, spec: str, **options: object) -> Case:
    return from_protocol(world, evaluation.protocol(spec), **{"rounds": 60, **options})  # type: ignore[arg-type]


def test_the_counter_is_perfect_under_the_leaked_pool_and_blind_under_the_honest_one(world: Interactions) -> None:
    for candidates, by_chance in (("sampled99", 0.1), ("full", 10 / 370)):
        leaked = training_checks.counter(case(world, f"honest,neg_pool=leaked,candidates={candidates}"))
        honest = training_checks.counter(case(world, f"honest,candidates={candidates}"))
        assert (leaked.status, honest.status) == ("fail", "pass")
        assert leaked.figure["hr@10"] > 0.95
        assert honest.figure["hr@10"] == pytest.approx(by_chance, abs=0.1)
        assert honest.figure["chance"] == pytest.approx(by_chance, rel=0.05)


def test_the_counter_grows_with_rounds(world: Interactions) -> None:
    curve = case(world, "honest,neg_pool=leaked").exposure.curve
    assert [round for round, _ in curve] == [1, 2, 5, 10, 20, 50, 60]
    assert curve[0][1] < curve[3][1] < curve[5][1]


def test_the_rate_of_held_out_negatives_is_that_of_any_item(world: Interactions) -> None:
    honest = training_checks.held_out_negatives(case(world, "honest"))
    leaked = training_checks.held_out_negatives(case(world, "honest,neg_pool=leaked"))
    assert honest.status == "pass"
    assert honest.figure["ratio"] == pytest.approx(1, abs=0.1)
    assert (leaked.status, leaked.figure["drawn"]) == ("fail", 0)


def test_compiled_and_torch_count_the_same_draws(world: Interactions) -> None:
    found = case(world, "honest,neg_pool=leaked,partition=7:random").draws
    assert isinstance(found, SampledDraws)
    chunk = found.data.chunk(np.array([5, 1, 2]))
    counts = [np.zeros((len(chunk.places), chunk.world.items), np.int32) for _ in range(2)]
    for round in range(3):
        add_torch(chunk, round, counts[0])
        add_compiled(chunk, round, counts[1])
    assert counts[0].sum() == 3 * 4 * len(chunk.items)
    assert (counts[0] == counts[1]).all()


def test_parts_cover_every_user_once(world: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = case(world, "honest", rounds=3)
    monkeypatch.setattr("fedrec.experiment.audit.draws.CELLS", 10_000)
    parts = case(world, "honest", rounds=3)
    assert parts.draws is not None
    assert len(list(parts.draws.parts())) > 3
    assert parts.exposure == whole.exposure


def test_local_training_is_suspect_under_the_leaked_pool_only(world: Interactions) -> None:
    leaked = training_checks.local(case(world, "honest,neg_pool=leaked"))
    honest = training_checks.local(case(world, "honest"))
    assert (leaked.status, honest.status) == ("fail", "pass")
    assert leaked.figure["local"] > 2 * leaked.figure["popularity"]
    quick = training_checks.local(case(world, "honest", quick=True))
    assert "after 20 rounds" in quick.sentence


def test_local_is_one_user_per_client_also_where_the_protocol_has_silos(world: Interactions) -> None:
    alone, silos = (
        training_checks.local(case(world, f"honest,neg_pool=leaked,partition={partition}", quick=True))
        for partition in ("user", "5")
    )
    assert alone.figure == silos.figure


@pytest.mark.parametrize(
    ("spec", "check", "status"),
    [
        ("honest", ranking_checks.selection, "pass"),
        ("honest,select_on=test", ranking_checks.selection, "fail"),
        ("honest", ranking_checks.constant_scorer, "pass"),
        ("honest,ties=first", ranking_checks.constant_scorer, "fail"),
        ("honest,ties=item_id", ranking_checks.constant_scorer, "fail"),
        ("honest", ranking_checks.nan_scores, "pass"),
        ("honest", ranking_checks.masks, "pass"),
        ("honest,mask_val_at_test=false", ranking_checks.masks, "fail"),
        ("honest,candidates=sampled99", ranking_checks.masks, "n/a"),
        ("honest", ranking_checks.validation_masks, "pass"),
        ("honest,mask_test_at_validation=true", ranking_checks.validation_masks, "fail"),
        ("honest,candidates=sampled99", ranking_checks.validation_masks, "fail"),
        ("fedcia,partition=4", ranking_checks.validation_masks, "pass"),
        ("honest,split=cold-items", ranking_checks.validation_masks, "n/a"),
        ("honest", ranking_checks.histories, "pass"),
        ("honest,history_at_test=train", ranking_checks.histories, "pass"),
        ("honest", ranking_checks.check_sampling, "pass"),
        ("honest,candidates=sampled99", ranking_checks.check_sampling, "warn"),
        ("honest,candidates=split198", ranking_checks.check_repetitions, "pass"),
        ("honest,candidates=split198", ranking_checks.check_candidates, "pass"),
        ("honest,candidates=split198", ranking_checks.own_item_candidates, "pass"),
    ],
)
def test_each_check_hears_its_field(world: Interactions, spec: str, check: object, status: str) -> None:
    assert callable(check)
    assert check(case(world, spec)).status == status


def test_a_history_that_holds_what_is_tested_fails(world: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    there = case(world, "honest")
    assert ranking_checks.histories(there).figure["more at test"] == len(there.split.valid)

    def everything(split: Split) -> tuple[np.ndarray, np.ndarray]:
        parts = (split.train, split.valid, split.test)
        return np.concatenate([part.user for part in parts]), np.concatenate([part.item for part in parts])

    monkeypatch.setattr("fedrec.data.before_test", everything)
    found = ranking_checks.histories(there)
    assert (found.status, found.figure["tested at test"]) == ("fail", len(there.split.test))


def test_an_evaluation_that_swallows_nan_fails(world: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    there = case(world, "honest,ties=item_id")  # ranks by a sort, which puts NaN somewhere
    monkeypatch.setattr("torch.isfinite", lambda scores: torch.ones_like(scores, dtype=torch.bool))
    assert ranking_checks.nan_scores(there).status == "fail"


def test_tie_rules_are_not_blamed_on_the_negatives(world: Interactions) -> None:
    """With lower ids first a constant scorer may beat chance; the counter is measured against that."""
    assert training_checks.counter(case(world, "honest,ties=item_id", rounds=1)).status == "pass"


def test_chance_is_that_of_the_evaluation(world: Interactions) -> None:
    for spec in ("honest", LEAKED, "honest-time", "honest,split=ratio"):
        there = case(world, spec)
        assert there.chance == pytest.approx(chance(there.targets, (there.k,))[f"recall@{there.k}"])


def test_time_is_judged_by_the_split(world: Interactions) -> None:
    found = {spec: audit(_without_training(case(world, spec))) for spec in ("honest", "honest-time")}
    assert found["honest"]["others' future in training"].status == "warn"
    assert found["honest-time"]["others' future in training"].status == "pass"
    assert found["honest-time"]["others' future in training"].figure["share"] == 0
    assert {report["own future in training"].status for report in found.values()} == {"pass"}
    random = audit(_without_training(case(world, "honest,split=ratio")))
    assert random["own future in training"].status == "warn"


def _without_training(there: Case) -> Case:
    return dataclasses.replace(there, prepared=None, draws=None)


def test_cold_items_are_meant_to_be_cold(world: Interactions) -> None:
    finding = audit(_without_training(case(world, "honest,split=cold-items")))["items never trained"]
    assert (finding.status, finding.figure["share"]) == ("pass", 1.0)


def test_negatives_are_drawn_from_what_training_can_meet(world: Interactions) -> None:
    """Under a split by items, as in a run: nobody draws a new item, so nothing about the test can be counted."""
    there = case(world, "honest,split=cold-items", rounds=5)
    assert there.prepared is not None
    assert there.draws is not None
    warm = there.prepared.warm
    assert warm is not None
    assert warm < there.n_items
    for _, rounds in there.draws.parts():
        *_, (_, counts) = rounds
        assert counts.shape[1] == warm
        assert counts.sum(0).min() > 0  # all of the others are drawn
    report = audit(there)
    rate = report["held-out items as training negatives"]
    assert (rate.status, rate.figure) == ("n/a", {"drawn": 0, "expected": 0.0})
    assert there.exposure.curve[-1][1] == pytest.approx(there.recall(there.constant))
    assert report["taste-blind counter"].status == "pass"
    assert report["local against popularity"].status == "n/a"


@pytest.mark.parametrize(("spec", "code"), [("honest", 0), (LEAKED, 1)])
def test_the_command_on_named_data(cli: Cli, tmp_path: Path, spec: str, code: int) -> None:
    data = "synthetic@users=120+items=400+interactions=4000+seed=3"
    outcome = cli("audit", "leak", "--data", data, "--protocol", spec, "--rounds", 60, "--out", "page.html")
    assert (outcome.code, outcome.err) == (code, "")
    assert ("FAIL  taste-blind counter" in outcome.out) == bool(code)
    page = (tmp_path / "page.html").read_text()
    assert "Taste-blind counter" in page
    assert ("Checks failed" in page) == bool(code)
    assert not [mark for mark in ("http://", "https://", "<script") if mark in page]


def test_a_page_needs_a_file_and_escapes_names(world: Interactions, tmp_path: Path) -> None:
    there = dataclasses.replace(_without_training(case(world, "honest")), title="a <b> & c")
    page = write_audit(audit(there), tmp_path / "deep" / "page.html").read_text()
    assert "a &lt;b&gt; &amp; c" in page
    assert "<svg" not in page
