"""What a filter left out is said wherever a result is read: terminal, summary, report, and to whom it concerns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import Cli

FILTERS = [
    {"rule": "ratings of 0 or less", "users": 1, "items": 1, "rows": 2},
    {"rule": "repeats of a user-item pair", "users": 0, "items": 0, "rows": 1},
    {"rule": "users with fewer than 10 items", "users": 3, "items": 1, "rows": 7},
]
LINES = [
    "1 user, 1 item and 2 rows (ratings of 0 or less)",
    "1 row (repeats of a user-item pair)",
    "3 users, 1 item and 7 rows (users with fewer than 10 items)",
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """20 users of 12 items out of 40; three users of one to three items, one of them of an item of their own."""
    rows = [(user, (7 * user + 3 * n) % 40, 5) for user in range(20) for n in range(12)]
    rows += [
        (0, 999, 0),
        (77, 0, -2),
        (0, 0, 4),
        (90, 1, 5),
        (91, 1, 5),
        (91, 2, 5),
        (91, 3, 5),
        (92, 555, 5),
        (92, 1, 3),
        (92, 2, 3),
    ]
    path = tmp_path / "mine.csv"
    path.write_text("user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows))
    return path


@pytest.fixture
def run(cli: Cli, table: Path) -> Path:
    assert cli("run", "popularity", "--data", "mine.csv", "--out", "run", "-q").code == 0
    return table.parent / "run"


def test_the_terminal_says_it_before_and_after(cli: Cli, table: Path) -> None:
    outcome = cli("run", "popularity", "--data", "mine.csv", "--out", "run")
    for line in LINES:
        assert f"note: left out: {line}\n" in outcome.err
        assert f"left out: {line}\n" in outcome.out


def test_the_summary_and_the_report_say_it(cli: Cli, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["filtered"] == FILTERS
    assert (summary["dataset"]["users"], summary["dataset"]["interactions"]) == (20, 240)
    page = re.sub(r"\s+", " ", (run / "report.html").read_text())
    assert all(f"<dt>left out</dt><dd>{line}</dd>" in page for line in LINES)


def test_a_run_without_filters_says_nothing(cli: Cli, tmp_path: Path) -> None:
    data = "synthetic@users=40+items=80+interactions=700+seed=1"
    outcome = cli("run", "popularity", "--data", data, "--protocol", "honest,min_interactions=1", "--out", "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["filtered"] == []
    assert "left out" not in outcome.out + outcome.err + (tmp_path / "run" / "report.html").read_text()


def test_a_run_from_before_this_was_recorded_can_be_read(cli: Cli, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    del summary["filtered"]
    (run / "summary.json").write_text(json.dumps(summary))
    assert cli("report", "run").code == 0
    assert cli("compare", "run", "--no-references").code == 0


@pytest.mark.parametrize("damage", ["text", [1], [{"rule": "x"}], [{"rule": 1, "users": 0, "items": 0, "rows": 0}]])
def test_a_damaged_record_is_one_line(cli: Cli, run: Path, damage: object) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"filtered": damage}))
    outcome = cli("report", "run")
    assert outcome.code == 2
    assert "is damaged (" in outcome.err
    assert "filtered" in outcome.err


def test_data_split_says_it(cli: Cli, table: Path) -> None:
    outcome = cli("data", "split", "mine.csv", "--out", "parts")
    assert all(f"left out: {line}\n" in outcome.out for line in LINES)


def test_an_audit_says_it(cli: Cli, table: Path, tmp_path: Path) -> None:
    outcome = cli("audit", "leak", "--data", "mine.csv", "--quick", "--rounds", 2, "--out", "page.html")
    page = re.sub(r"\s+", " ", (tmp_path / "page.html").read_text())
    for line in LINES:
        assert f"left out: {line}\n" in outcome.out
        assert f"<dt>left out</dt><dd>{line}</dd>" in page


def test_counts_of_the_file_stay_those_of_the_file(cli: Cli, table: Path) -> None:
    shown = cli("data", "show", "mine.csv").out
    assert re.search(r"users +24\n", shown)
    assert re.search(r"interactions +250\n", shown)


def test_a_sparsity_study_says_how_many_rows_it_keeps_from_clients(cli: Cli, table: Path, tmp_path: Path) -> None:
    spec = "honest,train_fraction=0.5"
    assert cli("run", "popularity", "--data", "mine.csv", "--protocol", spec, "--out", "run", "-q").code == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["filtered"]
    assert found == [
        *FILTERS,
        {"rule": "training rows kept from clients by train_fraction=0.5", "users": 0, "items": 0, "rows": 100},
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--user", "91", "--as-tested"),
            "user '91' is in the data but was left out of this run (users with fewer than 10 "
            "items); train with a lower min_interactions in --protocol, or give their items with --history FILE",
        ),
        (
            ("--user", "77", "--as-tested"),
            r"user '77' is in the data but was left out of this run (ratings of 0 or less); "
            "train with a lower --min-rating, or give their items with --history FILE",
        ),
        (("--user", "nobody"), "user 'nobody' is not in this run's data (its ids look like 0, 1, 2)"),
    ],
)
def test_whoever_was_left_out_is_told_why(cli: Cli, run: Path, words: tuple[str, ...], says: str) -> None:
    outcome = cli("recommend", "run", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"error: {says}\n"


@pytest.mark.parametrize("user", ["91", "77"])
def test_whoever_was_left_out_is_served_and_told_so(cli: Cli, run: Path, user: str) -> None:
    outcome = cli("recommend", "run", "--user", user, "-k", "3")
    assert outcome.code == 0
    assert outcome.out.count("\n") == 4
    assert re.search(
        r"1 user was (folded in|served by popularity).*: this run trains on users with at least 10 items", outcome.err
    )


def test_an_item_that_was_left_out_is_told_from_one_that_never_was(cli: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("item\n3\n555\n")
    outcome = cli("recommend", "run", "--history", "history.csv")
    assert outcome.code == 0
    assert "note: 1 item not in the model and skipped: 555" in outcome.err
    (tmp_path / "history.csv").write_text("item\n555\n")
    outcome = cli("recommend", "run", "--history", "history.csv")
    assert outcome.code == 2
    assert "item '555' is in the data but was left out of this run (users with fewer than 10 items)" in outcome.err
