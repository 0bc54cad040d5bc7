"""The leaderboard: its definition, runs that go on, groups, records, pages made from data alone, the front."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrec.errors import FedrecError
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.params import build_method, method_of
from fedrec.experiment.tuning import Trial
from fedrec.methods import FedMF
from fedrec.methods.kinds import variants_of
from fedrec.report.charts.front import Offer, front
from fedrec_studies.leaderboard import board_page, users, work
from fedrec_studies.leaderboard import record as records
from fedrec_studies.leaderboard.board_definition import (
    NOT_SEARCHED,
    Board,
    Row,
    beginning,
    best_trials,
    board,
    cells_of,
    narrow_board,
    trials_found,
)
from fedrec_studies.leaderboard.board_page import END, START, finding, picture, with_block, write_pages
from fedrec_studies.leaderboard.pace import clock_of, too_long
from fedrec_studies.leaderboard.record import NOTHING, SINGLE, SUMS, groups, read_records, server_sees, write_records
from fedrec_studies.leaderboard.work import run_rows, run_trials, why_not
from fedrec_studies.reproduce import table_definition
from fedrec_studies.reproduce.estimate import Clock
from fedrec_studies.reproduce.measured import read_shipped

ONE, TWO = "synthetic@users=50+items=200", "synthetic@users=40+items=150"
FEDMF = Row("fedmf", {"method": "fedmf", "rounds": 3, "set": {"dim": 4}}, tuned=True)
SMALL = Board(
    protocol="honest",
    metrics=["recall@10", "ndcg@10"],
    tuned_on=ONE,
    trials=2,
    minutes=20,
    datasets=[ONE, TWO],
    seeds={ONE: [0, 1]},
    skipped={TWO: "no order here"},
    rows=[
        Row("popularity", {"method": "popularity"}),
        FEDMF,
        Row("fedgram", {"method": "fedgram", "set": {"order": True}}),
        Row("ease", {"method": "ease"}),
    ],
    studies=[FEDMF],
    new_items={
        "table": "ifedrec/table1",
        "dataset": "citeulike-a:coldstart",
        "protocol": "ifedrec",
        "metrics": ["recall@20", "ndcg_index@20"],
    },
    print={"fedca": {"table": "fedca/table2-pmf", "dataset": "ml-100k", "metric": "HR@10 of 99"}},
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FEDREC_COMMIT", "abc1234")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of runs and results of the small board, all of it run."""
    runs, results = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("FEDREC_COMMIT", "abc1234")
        run_trials(SMALL, runs, results, "cpu", lambda line: None)
        run_rows(SMALL, SMALL.datasets, runs, results, "cpu", 2, 20, lambda line: None)
    write_records(SMALL, SMALL.datasets, runs, results)
    return runs, results


# -- the definition --


def test_every_row_can_be_built_and_searched() -> None:
    whole = board()
    for dataset in whole.every_dataset():
        for cell in cells_of(whole, dataset, {}, Path("runs"), "cpu"):
            assert method_of(cell.config)
    for row in whole.rows:
        if row.tuned:
            assert whole.study(row, Path("runs"), "cpu").space


def test_three_seeds_where_the_board_says_so_and_one_elsewhere() -> None:
    whole = board()
    seeds = {d: {c.config.seed for c in cells_of(whole, d, {}, Path("runs"), "cpu")} for d in whole.every_dataset()}
    assert {len(seeds[d]) for d in whole.seeds} == {3}
    assert {len(seeds[d]) for d in whole.every_dataset() if d not in whole.seeds} == {1}


def test_what_a_paper_calls_a_row_is_in_its_table() -> None:
    whole = board()
    for row in whole.rows:
        for paper, name in row.printed.items():
            _, (table,) = table_definition.select_tables(whole.print[paper]["table"])
            dataset = whole.print[paper]["dataset"]
            assert dataset in next(one for one in table.rows if one.label == name).printed, (row.label, paper)


def test_unknown_names_are_one_line(cli: Any) -> None:
    for flag, name in (("--datasets", "ml-100"), ("--rows", "fedfm")):
        outcome = cli("leaderboard", flag, name)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "did you mean" in outcome.err


def test_dry_run_shows_trials_and_runs_and_does_nothing(cli: Any, tmp_path: Path) -> None:
    outcome = cli("leaderboard", "--dry-run", "--rows", "fedmf;fedblend;popularity", "--datasets", "ml-100k")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "fedrec tune fedmf --eval-every 5 --trials 24"
    assert lines[1].startswith("fedrec tune fedblend")
    assert "--trials 24  # first trial: l2=1000.0 half_life=3.2" in lines[1]
    assert sum(line.startswith("fedrec run fedmf") for line in lines) == 3
    assert not list(tmp_path.glob("r*"))


def test_what_trials_found_is_carried_over_and_a_row_without_all_of_them_waits() -> None:
    trials = {"fedmf": [Trial(0, {"lr": 1.0}, 0.1), Trial(1, {"lr": 5.0}, 0.2)], "other": [Trial(0, {}, 0.3)]}
    best = best_trials(SMALL, trials)
    assert list(best) == ["fedmf"]
    found = [cell.config.params for cell in cells_of(SMALL, TWO, best, Path("runs"), "cpu") if cell.row == "fedmf"]
    assert found == [{"dim": 4, "lr": 5.0}]


def test_a_row_like_another_has_what_its_trials_found_and_waits_for_them() -> None:
    part = dataclasses.replace(SMALL, rows=[Row("also", {"method": "fedavg"}, like="fedmf")])
    best = best_trials(part, {"fedmf": [Trial(0, {"lr": 1.0}, 0.1), Trial(1, {"lr": 5.0}, 0.2)]})
    assert [cell.config.params for cell in cells_of(part, TWO, best, Path("runs"), "cpu")] == [{"lr": 5.0}]
    assert (part.waiting({}), part.waiting(best)) == ({"also"}, set())


# -- runs --


def test_a_cell_says_what_made_it_and_an_empty_one_says_why(ended: tuple[Path, Path]) -> None:
    found = read_records(ended[1], SMALL.datasets)
    rows = {row["label"]: row for row in found[ONE]["rows"]}
    assert [cell["seed"] for cell in rows["fedmf"]["cells"]] == [0, 1]
    assert rows["fedmf"]["trials"] == 2
    assert rows["popularity"]["trials"] == 0
    cell = rows["fedmf"]["cells"][0]
    assert cell["commit"] == "abc1234"
    assert cell["command"].startswith("fedrec run fedmf --data synthetic@users=50+items=200")
    elsewhere = {row["label"]: row for row in found[TWO]["rows"]}
    assert (elsewhere["fedgram"]["cells"], elsewhere["fedgram"]["why"]) == ([], "no order here")
    assert rows["fedgram"]["cells"]


def test_the_table_is_the_runs(ended: tuple[Path, Path]) -> None:
    runs, results = ended
    best = best_trials(SMALL, trials_found(SMALL, runs, results))
    found = {row["label"]: row for row in read_records(results, [ONE])[ONE]["rows"]}
    for cell in cells_of(SMALL, ONE, best, runs, "cpu"):
        summary = json.loads((cell.folder / "summary.json").read_text())
        kept = next(one for one in found[cell.row]["cells"] if one["seed"] == cell.config.seed)
        assert kept["test"]["ndcg@10"] == pytest.approx(summary["test"]["ndcg@10"], abs=1e-6)
        lines = [json.loads(line) for line in (cell.folder / "metrics.jsonl").read_text().splitlines()]
        sent = sum(line["bytes_up"] for line in lines[: summary["best_round"] + 1]) / summary["clients"]
        assert kept["up"] == round(sent)


def test_trials_are_kept_with_what_was_searched_then(ended: tuple[Path, Path]) -> None:
    runs, results = ended
    kept = json.loads((results / "trials" / "fedmf.json").read_text())
    began = json.loads((runs / "trials" / "fedmf" / "study.json").read_text())
    assert (kept["searched"], kept["config"]) == (began["space"], began["config"])
    assert len(kept["trials"]) == SMALL.trials


def test_trials_kept_with_the_results_are_the_beginning_of_the_study_elsewhere(
    ended: tuple[Path, Path], tmp_path: Path
) -> None:
    """On a machine without its folder it goes on, as it would have gone on at home."""
    runs, results = ended
    home, away, copied = tmp_path / "home", tmp_path / "away", tmp_path / "results"
    shutil.copytree(runs / "trials", home / "trials")
    shutil.copytree(results, copied)
    more, said = dataclasses.replace(SMALL, trials=4), list[str]()
    run_trials(more, away, copied, "cpu", said.append)
    run_trials(more, home, tmp_path / "none", "cpu", lambda line: None)
    assert said[0] == f"fedmf: trials 3 to 4 on {ONE}"
    before = json.loads((copied / "trials" / "fedmf.json").read_text())["trials"]
    write_records(more, [ONE], away, copied)
    after = json.loads((copied / "trials" / "fedmf.json").read_text())["trials"]
    assert (after[:2], [trial["number"] for trial in after]) == (before, [0, 1, 2, 3])
    at_home = trials_found(more, home, tmp_path / "none")["fedmf"]
    assert [(t["params"], t["value"]) for t in after] == [(t.params, t.value) for t in at_home]


@pytest.mark.parametrize(
    ("change", "what"),
    [({"space": {"lr": "1..50"}}, "another space"), ({"run": dict(FEDMF.run) | {"rounds": 4}}, "other settings")],
)
@pytest.mark.parametrize("trials", [2, 3])
def test_trials_of_another_search_are_refused_before_any_work(
    ended: tuple[Path, Path], tmp_path: Path, change: dict[str, Any], what: str, trials: int
) -> None:
    """Begun afresh, the row would have had more trials than it says; a study that has all its trials is no better."""
    other = dataclasses.replace(FEDMF, **change)
    part = dataclasses.replace(SMALL, rows=[other], studies=[other], trials=trials)
    with pytest.raises(FedrecError, match=rf"fedmf\.json has trials with {what} than fedmf has") as error:
        run_trials(part, tmp_path, ended[1], "cpu", lambda line: None)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_finished_study_here_of_another_search_is_refused(ended: tuple[Path, Path], tmp_path: Path) -> None:
    other = dataclasses.replace(FEDMF, space={"lr": "1..50"})
    part = dataclasses.replace(SMALL, rows=[other], studies=[other])
    with pytest.raises(FedrecError, match="started with another --space"):
        run_trials(part, ended[0], tmp_path, "cpu", lambda line: None)


def test_a_cell_that_was_stopped_is_tried_again_with_other_settings(ended: tuple[Path, Path], tmp_path: Path) -> None:
    cell = next(cell for cell in cells_of(SMALL, ONE, {}, tmp_path, "cpu") if cell.row == "fedmf")
    other = dataclasses.replace(cell, config=dataclasses.replace(cell.config, params={"lr": 77.0}))
    cell.folder.mkdir(parents=True)
    (cell.folder / work.WHY).write_text(json.dumps({"why": "stopped", "minutes": "20", "command": cell.command()}))
    assert (work.why_not(cell), work.why_not(other)) == ("stopped", "")


def test_a_run_of_settings_that_a_row_had_before_does_not_count(ended: tuple[Path, Path], tmp_path: Path) -> None:
    """More trials may find something better: the figures of what was best before are not its own."""
    runs, results = ended
    copied = tmp_path / "results"
    shutil.copytree(results, copied)
    path = copied / "trials" / "fedmf.json"
    kept = json.loads(path.read_text())
    better = kept["trials"][0] | {"number": 2, "params": {"lr": 77.0}, "value": 0.99}
    path.write_text(json.dumps(kept | {"trials": [*kept["trials"], better]}))
    more = dataclasses.replace(SMALL, trials=3)
    with pytest.raises(FedrecError, match=r"seed0 is a run with settings that fedmf had before.*; move such runs away"):
        run_rows(more, [ONE], runs, copied, "cpu", 1, 20, lambda line: None)
    write_records(more, [ONE], runs, copied)
    rows = {row["label"]: row for row in read_records(copied, [ONE])[ONE]["rows"]}
    assert (rows["fedmf"]["cells"], rows["fedmf"]["trials"], rows["fedmf"]["why"]) == ([], 3, "not run yet")
    assert rows["ease"]["cells"]


def test_processes_for_different_rows_end_in_any_order(tmp_path: Path) -> None:
    """Each writes what it sees of the common folder; what the last one missed, a last look at the folder brings."""
    runs, results = tmp_path / "runs", tmp_path / "results"
    other = dataclasses.replace(FEDMF, label="other")
    part = dataclasses.replace(SMALL, rows=[FEDMF, other], studies=[FEDMF, other], datasets=[ONE], seeds={})
    for label in ("fedmf", "other"):
        mine = narrow_board(part, [ONE], [label])
        run_trials(mine, runs, results, "cpu", lambda line: None)
        run_rows(mine, [ONE], runs, results, "cpu", 1, 20, lambda line: None)
    write_records(part, [ONE], runs, results)
    whole = {file.relative_to(results): file.read_text() for file in results.rglob("*.json")}
    late = tmp_path / "late"
    shutil.copytree(runs, late, ignore=shutil.ignore_patterns("other"))
    write_records(part, [ONE], late, results)  # one that had looked before the other's runs had ended
    write_records(part, [ONE], runs, results)
    assert {file.relative_to(results): file.read_text() for file in results.rglob("*.json")} == whole


def test_again_it_runs_nothing_and_keeps_what_only_the_data_knows(
    ended: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, results = ended
    said: list[str] = []
    monkeypatch.setattr(work, "search", None)  # would be called for a trial that is missing
    run_trials(SMALL, runs, results, "cpu", said.append)
    run_rows(SMALL, SMALL.datasets, runs, results, "cpu", 1, 20, said.append)
    assert said == ["8 runs, 8 already done", "3 runs, 3 already done"]
    before = read_records(results, [ONE])[ONE]
    copied = tmp_path / "results"
    copied.mkdir()
    for file in results.rglob("*.json"):
        (copied / file.relative_to(results)).parent.mkdir(exist_ok=True)
        (copied / file.relative_to(results)).write_text(file.read_text())
    write_records(SMALL, [ONE], tmp_path / "no runs here", copied)
    after = read_records(copied, [ONE])[ONE]
    assert [row["cells"] for row in after["rows"]] == [row["cells"] for row in before["rows"]]
    assert after["chance"] == before["chance"]
    assert [row["group"] for row in after["rows"]] == [row["group"] for row in before["rows"]]
    assert before["tested"]["p"], "there are tests to keep"
    assert after["tested"] == before["tested"]


def test_a_run_over_the_limit_is_stopped_said_and_not_tried_again(tmp_path: Path) -> None:
    part = dataclasses.replace(SMALL, rows=[Row("slow", {"method": "local", "rounds": 100_000, "set": {"dim": 64}})])
    said: list[str] = []
    for _ in range(2):
        run_rows(part, [TWO], tmp_path, tmp_path, "cpu", 1, 0.05, said.append)
    (cell,) = cells_of(part, TWO, {}, tmp_path, "cpu")
    why = why_not(cell)
    assert re.fullmatch(r"stopped after 0.05 minutes(, in round \d+ of 100000 \(cpu; training alone takes .*\))?", why)
    assert sum("stopped after" in line for line in said) == 1
    write_records(part, [TWO], tmp_path, tmp_path / "results")
    assert read_records(tmp_path / "results", [TWO])[TWO]["rows"][0]["why"] == why


def test_how_far_a_stopped_run_had_come_is_read_off_its_folder(tmp_path: Path) -> None:
    part = dataclasses.replace(SMALL, rows=[Row("slow", {"method": "local", "rounds": 600})])
    (cell,) = cells_of(part, TWO, {}, tmp_path, "cpu")
    assert work._how_far(cell) == ""
    folder = RunFolder.create(cell.folder, cell.config.to_dict())
    for number in range(2):
        folder.log({"round": number, "seconds": 1.0 + number})
    assert work._how_far(cell) == ", in round 2 of 600 (cpu; training alone takes 15 min)"


def test_what_would_take_too_long_is_known_by_the_pace_of_other_runs(tmp_path: Path) -> None:
    part = dataclasses.replace(SMALL, rows=[Row("slow", {"method": "fedmf", "rounds": 100})], datasets=["ml-1m"])
    (cell,) = cells_of(part, "ml-1m", {}, tmp_path, "cpu")
    ran = row("slow", "federated", 0.1, 1) | {"method": "fedmf"}
    ran["cells"] = [
        {"seed": 0, "command": "fedrec run fedmf", "device": "cpu", "rounds_run": 100, "best_round": 0, "seconds": took}
        for took in (5000.0, 5000.0, 5000.0)
    ]
    slow = {"dataset": "ml-1m", "protocol": "honest", "rows": [ran] * 40}
    assert too_long(clock_of([slow]), cell, 20).startswith("more than 20 minutes")
    assert too_long(clock_of([slow]), cell, 200) == ""
    assert too_long(Clock([]), cell, 20) == ""


def test_rows_of_new_items_are_the_measured_runs_of_their_table(tmp_path: Path) -> None:
    """They come with the library: nothing is run for them, and what they sent is not on record."""
    name = SMALL.new_items["dataset"]
    write_records(SMALL, [name], tmp_path, tmp_path / "results")
    record = read_records(tmp_path / "results", [name])[name]
    rows = {row["label"]: row for row in record["rows"]}
    (first,) = [run for run in read_shipped("ifedrec") if (run.table, run.row, run.seed) == ("table1", "IFedNCF", 0)]
    (cell,) = rows["IFedNCF"]["cells"]
    assert (cell["test"]["recall@20"], cell["command"]) == (first.figures["recall@20"], first.command)
    assert all(row["cells"] for row in rows.values())
    assert dict(zip(board_page.HEADS, board_page._line(record, rows["IFedNCF"])[3:], strict=True))["MB up"] == "-"


@pytest.mark.parametrize(
    ("method", "sees"),
    [("fedmf", SUMS), ("fedgram", SUMS), ("fedca", SINGLE), ("local", NOTHING), ("ease", "all data")],
)
def test_what_the_server_sees_is_read_off_the_uploads(method: str, sees: str) -> None:
    whole = dataclasses.replace(SMALL, rows=[Row(method, {"method": method})])
    assert server_sees(whole.config(whole.rows[0])) == sees


# -- which rows are ranked --


def test_a_row_that_nobody_searched_has_no_rank_unless_it_has_nothing_to_search(ended: tuple[Path, Path]) -> None:
    record = read_records(ended[1], [ONE])[ONE]
    rows = {one["label"]: one for one in record["rows"]}
    assert {label: one["unranked"] for label, one in rows.items()} == {
        "popularity": "",
        "fedmf": "",
        "fedgram": NOT_SEARCHED,
        "ease": NOT_SEARCHED,
    }
    assert {label for label, one in rows.items() if one["group"]} == {"popularity", "fedmf"}
    assert {record["tested"]["row"], *record["tested"]["p"]} == {"popularity", "fedmf"}
    assert all(one["cells"] for one in rows.values()), "their figures stay"


def test_a_row_may_be_set_aside_in_spite_of_its_trials_and_so_is_one_like_it() -> None:
    aside = dataclasses.replace(FEDMF, set_aside="its search fell short")
    whole = dataclasses.replace(SMALL, rows=[aside, Row("also", {"method": "fedmf"}, like="fedmf")])
    assert whole.reason_not_to_rank("fedmf", FedMF(), 24) == "its search fell short"
    assert whole.reason_not_to_rank("also", FedMF(), 24) == "its search fell short"
    assert SMALL.reason_not_to_rank("fedmf", FedMF(), 24) == ""
    assert SMALL.reason_not_to_rank("of another table", FedMF(), 0) == NOT_SEARCHED


def test_no_ranked_figure_of_the_committed_results_is_of_settings_that_nobody_searched() -> None:
    whole = board()
    found = read_records(Path(__file__).parents[3] / "results" / "leaderboard", whole.every_dataset())
    ranked = [one for record in found.values() for one in record["rows"] if records.is_ranked(one)]
    assert {one["label"] for one in ranked if not one["trials"]} == {"popularity"}
    aside = {row.label for row in whole.rows if row.set_aside}
    assert aside.isdisjoint(one["label"] for one in ranked)


def test_a_search_that_cannot_reach_the_methods_own_tuned_preset_is_set_aside() -> None:
    whole = board()
    for row in whole.studies:
        config = whole.config(row)
        own, space = method_of(config), whole.space(row, config)
        if not any("tuned" in kind.info.presets for kind in (type(own), *variants_of(type(own)))):
            continue
        tuned = build_method(config.method, backbone=config.backbone, preset="tuned", params=config.params)
        other = {
            item.name: getattr(tuned, item.name)
            for item in dataclasses.fields(tuned)
            if getattr(tuned, item.name) != getattr(own, item.name, item.default)
        }
        reached = all(name in space and space[name].holds(value) for name, value in other.items())
        assert reached or row.set_aside, (row.label, other)


# -- groups --


def test_rows_that_cannot_be_told_apart_are_one_group() -> None:
    random = np.random.default_rng(0)
    hits, noise = random.random(500), random.normal(0, 0.3, 500)
    values = {
        "best": hits + 1,
        "alike": hits + 1 + noise - noise.mean() - 0.001,
        "worse": hits + 0.5,
        "worst": hits,
    }
    assert groups(values) == {"best": 1, "alike": 1, "worse": 2, "worst": 3}


def test_the_best_is_tested_against_every_other_row() -> None:
    hits = np.random.default_rng(0).random(300)
    values = {"a": hits + 1, "b": hits, "c": hits + 1}
    found = records.against_all(values, "a")
    assert found["row"] == "a"
    assert found["p"]["b"] < 0.05 <= found["p"]["c"]
    assert records.against_all(values, "gone") == {"row": "gone", "p": {}}


def test_tests_whose_runs_are_gone_stand_for_rows_that_are_what_they_were() -> None:
    old = made(row("a", "federated", 0.12, 1), row("b", "federated", 0.10, 1), row("c", "federated", 0.05, 2))
    new = [
        row("a", "federated", 0.12, 0),
        row("b", "federated", 0.11, 0),
        row("c", "federated", 0.05, 0),
        row("d", "federated", 0.2, 0),
    ]
    assert records.reuse_groups(new, old, ["d"]) == {"a": 1, "c": 2}
    assert records.reuse_tests(new, old, "a") == {"c": 0.01}
    assert records.reuse_tests(new, old, "d") == {}, "another row is the best now"
    assert records.reuse_groups(new, old, ["a", "b"]) == {}, "as many are at hand: grouped afresh"
    assert records.reuse_groups(new, {}, []) == {}


def test_a_group_whose_best_is_no_longer_ranked_is_none() -> None:
    """All others were compared with it; what they are to each other is not known."""
    old = made(
        row("a", "federated", 0.12, 1),
        row("b", "federated", 0.10, 1),
        row("c", "federated", 0.05, 2),
        row("d", "federated", 0.04, 2),
    )
    new = [one | {"unranked": "not searched"} if one["label"] in "ad" else one for one in old["rows"]]
    assert records.reuse_groups(new, old, []) == {"c": 2}
    assert records.reuse_tests(new, old, "b") == {}


def test_what_users_got_is_kept_and_tested_when_their_runs_are_gone(ended: tuple[Path, Path], tmp_path: Path) -> None:
    _, results = ended
    shutil.copytree(results, tmp_path / "results")
    file = tmp_path / "results" / "users" / f"{records.folder_name(ONE)}.npz"
    before, kept = read_records(results, [ONE])[ONE], users.read(file)
    assert {*kept.of_row} == {row["label"] for row in before["rows"] if row["cells"]}
    for one in before["rows"]:
        mean = np.mean([cell["test"]["ndcg@10"] for cell in one["cells"]])
        assert kept.of_row[one["label"]].mean() == pytest.approx(mean, abs=1e-6)
    for one in before["rows"]:
        one["group"] = None  # of a time when nothing was tested
    (tmp_path / "results" / f"{records.folder_name(ONE)}.json").write_text(json.dumps(before))
    write_records(SMALL, [ONE], tmp_path / "no runs", tmp_path / "results")
    after = read_records(tmp_path / "results", [ONE])[ONE]
    assert [one["group"] for one in after["rows"]] == [
        one["group"] for one in read_records(results, [ONE])[ONE]["rows"]
    ]
    assert {one["label"] for one in after["rows"] if one["group"]} == {"popularity", "fedmf"}, "those that are ranked"


def test_what_users_got_is_dropped_with_the_figures_it_belongs_to(tmp_path: Path) -> None:
    kept = users.UserValues("abc", {"a": np.array([0.2, 0.04]), "b": np.array([0.0, 0.2]), "gone": np.zeros(2)})
    rows = [row("a", "federated", 0.12, 1), row("b", "federated", 0.11, 1)]
    nothing, new = users.UserValues("", {}), users.UserValues("abc", {"b": np.array([0.11, 0.11])})
    assert {*users.merge_user_values(kept, nothing, rows, "ndcg@10").of_row} == {"a"}, "b has other figures now"
    both = users.merge_user_values(kept, new, rows, "ndcg@10")
    assert both.of_row["b"].tolist() == [0.11, 0.11]
    other = users.UserValues("xyz", {"b": np.array([0.11])})
    assert users.merge_user_values(kept, other, rows, "ndcg@10") == other, "of other users nothing is taken over"
    users.write(tmp_path / "u" / "d.npz", both)
    again = users.read(tmp_path / "u" / "d.npz")
    assert (again.users, {*again.of_row}) == ("abc", {"a", "b"})
    (tmp_path / "u" / "d.npz").write_bytes(b"PK nothing")
    with pytest.raises(FedrecError, match="cannot be read"):
        users.read(tmp_path / "u" / "d.npz")


# -- pages --


def row(label: str, kind: str, value: float, group: int, up: float = 1e6) -> dict[str, Any]:
    cell = {
        "seed": 0,
        "command": "",
        "version": "",
        "commit": "",
        "device": "cpu",
        "best_round": 9,
        "rounds_run": 10,
        "seconds": 1.0,
        "test": {"recall@10": 2 * value, "ndcg@10": value},
        "up": up,
        "down": 0,
    }
    return {
        "label": label,
        "method": label,
        "kind": kind,
        "server": SUMS,
        "trials": 2,
        "settings": "",
        "group": group,
        "why": "",
        "cells": [cell],
    }


def made(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "dataset": "d",
        "protocol": "honest",
        "metrics": ["recall@10", "ndcg@10"],
        "chance": {},
        "rows": list(rows),
        "tested": {"row": "a", "p": {"b": 0.2, "c": 0.01}},
    }


def test_the_first_sentence_says_who_is_best_by_how_much_and_how_far_from_all_data() -> None:
    rows = [row("a", "federated", 0.12, 2), row("b", "federated", 0.10, 2), row("c", "centralised", 0.15, 1)]
    assert finding(made(*rows)) == (
        "the best federated method is `a` (Recall@10 0.2400, NDCG@10 0.1200), 20.0 % ahead of `b` in NDCG@10 (not "
        "significant). It is 20.0 % below the best centralised baseline, `c` (Recall@10 0.3000, NDCG@10 "
        "0.1500)."
    )


def test_a_federated_row_tuned_elsewhere_is_not_named_the_best_whatever_the_number() -> None:
    rows = [
        row("a", "federated", 0.12, 2),
        row("b", "federated", 0.10, 2),
        row("c", "federated", 0.15, 1) | {"trials": 1},
    ]
    assert finding(made(*rows), ["c"]).startswith("the best federated method is `a`")
    assert records.best_federated(rows, "ndcg@10", ["c"]) == "a"
    assert records.best_federated(rows, "ndcg@10", []) == "c"


def test_a_row_without_a_rank_is_in_no_headline_picture_or_short_table_and_says_why() -> None:
    aside = {"unranked": "settings not searched"}
    some = made(
        row("a", "federated", 0.12, 1),
        row("b", "federated", 0.20, 0, up=5e5) | aside,
        row("c", "federated", 0.10, 1),
        row("d", "centralised", 0.30, 0) | aside,
    )
    assert finding(some).startswith("the best federated method is `a`")
    assert finding(some).endswith("ahead of `c` in NDCG@10; no centralised baseline is ranked.")
    assert records.best_federated(some["rows"], "ndcg@10", []) == "a"
    assert ">b</text>" not in picture(some)
    assert [offer.label for offer in board_page._offers(some)] == ["a", "c"]
    short, full = list(board_page._short(some, {"d": some}, [])), list(board_page._dataset(some))
    assert [line.split(" | ")[0] for line in short if line.startswith("| `")] == ["| `a`", "| `c`"]
    assert "Measured on d and not ranked: `b`, `d` (settings not searched)." in short
    assert "- settings not searched: `b`, `d`" in full
    below = full.index("Not ranked:")
    assert [line.split(" | ")[0] for line in full[below:] if line.startswith("| `")] == ["| `b`", "| `d`, centralised"]
    assert full[below + 4].split(" | ")[3] == "round", "there is no group"


def test_pages_are_made_from_the_data_alone(ended: tuple[Path, Path], tmp_path: Path) -> None:
    page, readme = tmp_path / "board.md", tmp_path / "README.md"
    readme.write_text(f"# Mine\n\n{START}\nold\n{END}\n\nafter\n")
    write_pages(SMALL, ended[1], page, readme)
    text = page.read_text()
    found = {one["label"]: one for one in read_records(ended[1], [ONE])[ONE]["rows"]}
    for label in ("fedmf", "ease"):
        values = [cell["test"]["ndcg@10"] for cell in found[label]["cells"]]
        assert f"{sum(values) / len(values):.4f} ±" in text
    assert "- no order here: `fedgram`" in text
    assert "- **synthetic@users=50+items=200**: the best federated method is" in text
    assert (tmp_path / "leaderboard.svg").read_text().startswith("<svg xmlns")
    again = readme.read_text()
    assert again.startswith("# Mine")
    assert again.endswith("after\n")
    assert "old" not in again
    assert "`fedmf`" in again
    write_pages(SMALL, ended[1], page, readme)
    assert (page.read_text(), readme.read_text()) == (text, again)


def test_a_page_without_marks_stays_as_it_is() -> None:
    assert with_block("no marks", "block") == "no marks"


def test_without_figures_there_is_no_page(cli: Any, tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match="no figures yet"):
        write_pages(SMALL, tmp_path / "empty", tmp_path / "page.md", None)
    assert not (tmp_path / "page.md").exists()


def test_a_damaged_file_of_results_is_one_line(cli: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "leaderboard"
    folder.mkdir(parents=True)
    (folder / "ml-100k.json").write_text("{}")
    outcome = cli("leaderboard", "--pages-only")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "is damaged" in outcome.err


def test_the_committed_page_is_that_of_the_committed_data(tmp_path: Path) -> None:
    """Nothing on it is typed: made again it is the same."""
    root = Path(__file__).parents[3]
    readme = tmp_path / "README.md"
    readme.write_text((root / "README.md").read_text())
    write_pages(board(), root / "results" / "leaderboard", tmp_path / "leaderboard.md", readme)
    assert (tmp_path / "leaderboard.md").read_text() == (root / "docs" / "leaderboard.md").read_text()
    assert (tmp_path / "leaderboard.svg").read_text() == (root / "docs" / "leaderboard.svg").read_text()
    assert readme.read_text() == (root / "README.md").read_text()


def test_a_commit_that_the_data_names_is_in_the_history_or_said_not_to_be() -> None:
    root = Path(__file__).parents[3]
    git = ["git", "-C", str(root)]
    whole = subprocess.run([*git, "rev-parse", "--is-shallow-repository"], capture_output=True, text=True)
    if whole.stdout.strip() != "false":
        pytest.skip("no history here")
    found = read_records(root / "results" / "leaderboard", board().every_dataset()).values()
    named = {cell["commit"] for record in found for one in record["rows"] for cell in one["cells"]}
    for commit in named - {""}:
        there = subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True)
        assert there.returncode == 0 or commit.endswith("(not in the history)"), commit


def test_ranks_of_print_stand_at_the_top_as_soon_as_two_rows_have_them() -> None:
    whole = dataclasses.replace(
        SMALL,
        rows=[
            Row(name, {"method": name}, printed={"fedca": called})
            for name, called in (("fedmf", "FCF"), ("fedavg", "FedAvg"), ("fedatt", "FedAtt"))
        ],
    )
    some = made(
        *(row(name, "federated", value, 1) for name, value in (("fedmf", 0.1), ("fedavg", 0.2), ("other", 0.3)))
    )
    lines = list(board_page._print(whole, {"ml-100k": some}))
    assert lines[0] == "## Printed rank and honest rank"
    ranks = [line.split(" | ") for line in lines if line.startswith("| `")]
    assert {cells[0]: cells[-1] for cells in ranks} == {"| `fedmf`": "2 |", "| `fedavg`": "1 |"}
    assert list(board_page._print(whole, {"ml-100k": made(row("fedmf", "federated", 0.1, 1))})) == []
    more = made(*some["rows"], row("fedatt", "federated", 0.3, 0) | {"unranked": "settings not searched"})
    left_out = [*lines, "Left out, because they are not ranked: `fedatt`.", ""]
    assert [*board_page._print(whole, {"ml-100k": more})] == left_out


def test_the_page_says_which_trials_are_of_another_search_and_what_the_first_was(tmp_path: Path) -> None:
    row = dataclasses.replace(FEDMF, start={"lr": 5.0}, trials_differ="the first had another clock")
    part = dataclasses.replace(SMALL, studies=[row])
    (tmp_path / "trials").mkdir()
    for first, said in ((5.0, True), (6.0, False)):
        kept = {"trials": [{"number": 0, "params": {"lr": first}, "value": 0.1}], "searched": {}, "config": {}}
        (tmp_path / "trials" / "fedmf.json").write_text(json.dumps(kept))
        text = "\n".join(board_page._trials(part, tmp_path))
        assert ("that of `fedmf`: lr=5.0" in text) == said
        assert "- `fedmf`: the first had another clock." in text


def test_every_study_that_is_kept_can_be_continued() -> None:
    whole, results = board(), Path(__file__).parents[3] / "results" / "leaderboard"
    for row in whole.studies:
        trials = beginning(whole.study(row, Path("runs"), "cpu"), results, row.label)
        assert [trial.number for trial in trials] == list(range(len(trials)))
        assert len(trials) <= whole.trials


def test_no_tuned_row_has_had_more_trials_than_another() -> None:
    root = Path(__file__).parents[3]
    found = [
        one
        for record in read_records(root / "results" / "leaderboard", board().datasets).values()
        for one in record["rows"]
        if one["cells"]
    ]
    earlier = {row.label for row in board().rows if row.chosen_from}
    tuned = {row.label for row in board().rows if row.tuned or row.like}
    assert {one["trials"] for one in found if one["label"] in tuned} == {board().trials}
    assert not any(
        one["trials"] for one in found if one["label"] in {row.label for row in board().rows} - tuned - earlier
    )
    block = (root / "README.md").read_text().partition(START)[2].partition(END)[0]
    assert not [label for label in earlier if f"| `{label}`" in block], "the README shows none of these"


# -- the front --


def test_the_front_is_what_nothing_beats() -> None:
    offers = [Offer("cheap", 1, 0.1), Offer("dear", 9, 0.3), Offer("beaten", 5, 0.1), Offer("middle", 4, 0.2)]
    assert [offer.label for offer in front(offers)] == ["cheap", "middle", "dear"]


def test_the_picture_names_every_federated_row_and_no_other() -> None:
    drawn = picture(
        made(row("a", "federated", 0.1, 1), row("b", "federated", 0.2, 1, up=5e6), row("c", "centralised", 0.3, 1))
    )
    assert all(f">{label}</text>" in drawn for label in ("a", "b"))
    assert ">c</text>" not in drawn


def test_a_part_of_the_board() -> None:
    part = narrow_board(board(), ["filmtrust"], ["fedmf"])
    assert ([row.label for row in part.rows], part.datasets) == (["fedmf"], ["filmtrust"])
    assert part.seeds == board().seeds
    third = narrow_board(board(), [], [], [2])
    assert (third.seeds_of("ml-1m"), third.seeds_of("lastfm-2k")) == ([2], [])
    with pytest.raises(FedrecError, match="the leaderboard has no seed 7; known: 0, 1, 2"):
        narrow_board(board(), [], [], [2, 7])


def test_the_first_trial_is_the_methods_own_except_where_a_row_says_so(tmp_path: Path) -> None:
    usual = Row("usual", {"method": "fedmf", "rounds": 1}, tuned=True, space={"lr": "1..100", "dim": "4,8,32"})
    other = dataclasses.replace(usual, label="other", start={"dim": 8})
    part = dataclasses.replace(SMALL, rows=[usual, other], studies=[usual, other], trials=1)
    run_trials(part, tmp_path, tmp_path, "cpu", lambda line: None)
    found = trials_found(part, tmp_path, tmp_path)
    own = method_of(part.config(usual))
    assert found["usual"][0].params == {"lr": own.lr, "dim": own.dim}
    assert found["other"][0].params == {"lr": own.lr, "dim": 8}
