"""Silos of several kinds: which of them were tested, and how each kind did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedrec
from fedrec.evaluation.metrics import precision, recall
from fedrec.experiment.result import Result

USERS, ITEMS, SILOS = 24, 30, 6
KINDS = ["0-mf:4", "1-mf:3", "2-mf:2"]  # two silos of four users each


def split_of(folder: Path, tested: int) -> dict[str, str]:
    """Training and validation for all users, test for the first ones alone."""
    rng = np.random.default_rng(5)
    parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for user in range(USERS):
        items = rng.permutation(ITEMS)[:9]
        for part, own in (("train", items[:6]), ("valid", items[6:7]), ("test", items[7:] if user < tested else [])):
            parts[part] += [f"{user},{item}" for item in own]
    for part, lines in parts.items():
        (folder / f"{part}.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    return {part: str(folder / f"{part}.csv") for part in parts}


def trained(folder: Path, tested: int, blocks: str = "mf:4+mf:3+mf:2") -> Result:
    return fedrec.run(
        "local",
        preset="silo",
        backbone="mf",
        blocks=blocks,
        silos=str(SILOS),
        rounds=2,
        protocol="fedcia,ks=5,select_metric=f1_of_means@5",
        **split_of(folder, tested),
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Ten users are tested: the first kind whole, two users of the second, none of the third."""
    return trained(tmp_path_factory.mktemp("split"), tested=10)


def test_a_kind_that_nobody_tested_is_said_so_and_has_no_figure(result: Result) -> None:
    (note,) = [note for note in result.summary["notes"] if "tested" in note]
    assert note == (
        "tested, cohort by cohort: 0-mf:4 8 of 8 users (2 of 2 clients), 1-mf:3 2 of 8 users (1 of 2 clients), "
        "2-mf:2 0 of 8 users (0 of 2 clients); test metrics do not cover 2-mf:2"
    )
    blocks = result.summary["blocks"]
    assert [block["name"] for block in blocks] == KINDS
    assert [(block["users_tested"], block["clients_tested"]) for block in blocks] == [(8, 2), (2, 1), (0, 0)]
    assert [bool(block["test"]) for block in blocks] == [True, True, False]


def test_figures_of_a_kind_are_of_its_tested_users_alone(result: Result) -> None:
    """Means over users; F1 from the means of precision and recall, as for all users together."""
    found, evaluation = result.summary["blocks"], result.evaluation
    for block, rows in zip(found, (slice(0, 8), slice(8, 10)), strict=False):
        own = evaluation.per_user["ndcg@5"][rows]
        assert block["test"]["ndcg@5"] == pytest.approx(own.mean())
        higher, equal = evaluation.positions
        means = [metric(higher, equal, evaluation.indptr, 5)[rows].mean() for metric in (precision, recall)]
        harmonic = 2 * means[0] * means[1] / sum(means) if sum(means) else 0
        assert block["test"]["f1_of_means@5"] == pytest.approx(harmonic)
    shares = [len(evaluation.per_user["ndcg@5"][:8]), len(evaluation.per_user["ndcg@5"][8:])]
    whole = np.average([block["test"]["ndcg@5"] for block in found[:2]], weights=shares)
    assert whole == pytest.approx(result.summary["test"]["ndcg@5"])


def test_where_every_kind_is_tested_nothing_is_missing(tmp_path: Path) -> None:
    (note,) = [note for note in trained(tmp_path, tested=USERS).summary["notes"] if "tested" in note]
    assert note.endswith("2-mf:2 8 of 8 users (2 of 2 clients)")


def test_silos_of_one_kind_need_no_note(tmp_path: Path) -> None:
    summary = trained(tmp_path, tested=10, blocks="").summary
    assert not any("tested" in note for note in summary["notes"])
    assert "blocks" not in summary
