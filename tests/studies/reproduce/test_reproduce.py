"""The tables of the papers: their definitions, and the runs, pages and errors of a small one."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.params import build_method
from fedrec.methods import IFedRec
from fedrec.methods.average.fedmf import FedMF
from fedrec_studies.commands.reproduce import ReproduceRequest, reproduce
from fedrec_studies.reproduce.cells import plan_cells, require_runnable, run_cells
from fedrec_studies.reproduce.measured import collect_finished
from fedrec_studies.reproduce.table_definition import Row, Table, _table, narrow_tables, papers, select_tables, tables
from fedrec_studies.reproduce.table_page import write_page
from waiting import GENEROUS

TINY = "synthetic@users=50+items=200"
SMALL = Table(
    name="small",
    title="A small table",
    metrics=["recall@10", "ndcg@10"],
    protocols=["honest", "honest,neg_pool=leaked"],
    datasets=[TINY],
    seeds=[0, 1],
    run={"rounds": 2},
    rows=[
        Row("FedMF", {"method": "fedmf", "set": {"dim": 4}}, printed={TINY: [0.5, 0.25]}),
        Row("Only honest", {"method": "popularity", "rounds": 1}, only=["honest"]),
    ],
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("paper", papers())
def test_every_defined_run_can_be_built(paper: str, tmp_path: Path) -> None:
    for table in tables(paper).values():
        planned = plan_cells(table, tmp_path, "cpu", "8G")
        require_runnable(planned)
        assert len({cell.folder for cell in planned}) == len(planned)
        for row in table.rows:
            assert all(len(figures) == len(table.metrics) for figures in row.printed.values()), row.label


def test_ifedrec_runs_as_released_wherever_its_paper_is_compared_with() -> None:
    """Published rates, short last batches kept, and the released gradient, in every table and figure."""
    found = [table.config(row, "ml-100k", "ifedrec", 0) for table in tables("ifedrec").values() for row in table.rows]
    own = [config for config in found if config.method in ("ifedrec", "ifedrec-lan", "cs-pfedrec")]
    built: list[Any] = [
        build_method(run.method, backbone=run.backbone, preset=run.preset, params=run.params) for run in own
    ]
    assert {method.saturate for method in built} == {"released"}
    aligned = [method for method in built if isinstance(method, IFedRec)]
    assert {(method.backbone, method.lr, method.rate_scale, method.last_batch) for method in aligned} == {
        ("ncf", 0.5, 80.0, "keep"),
        ("linear", 0.1, 80.0, "keep"),
    }
    weights = {run.params["align"] for run in own if run.method == "ifedrec" and "align" in run.params}
    assert {10.0, 30.0} <= weights, "the published grid, to its ends"


def test_a_table_without_print_has_no_column_for_it(tmp_path: Path) -> None:
    bare = dataclasses.replace(SMALL, rows=[Row("FedMF", {"method": "fedmf"}), Row("Not here", {}, datasets=["other"])])
    planned = plan_cells(bare, tmp_path, "cpu", "8G")
    assert {cell.row for cell in planned} == {"FedMF"}, "a row runs on its own datasets"
    page = write_page(bare, planned, {}, tmp_path).read_text()
    assert "| method | recall@10 | ndcg@10 | seeds | s |" in page
    assert "print" in write_page(SMALL, plan_cells(SMALL, tmp_path, "cpu", "8G"), {}, tmp_path).read_text()


def test_a_table_runs_once_and_shows_what_its_runs_measured(tmp_path: Path) -> None:
    planned = plan_cells(SMALL, tmp_path, "cpu", "8G")
    assert len(planned) == 2 * (2 + 1)  # one row only under one of two protocols
    told: list[str] = []
    assert run_cells(planned, 2, told.append) == {}
    assert not list(tmp_path.rglob("last.safetensors")), "states to resume from would fill the disk"
    page = write_page(SMALL, planned, {}, tmp_path).read_text()
    mine = [cell for cell in planned if cell.row == "FedMF" and cell.protocol == "honest"]
    values = [cell.summary()["test"]["recall@10"] for cell in mine]  # type: ignore[index]
    average = sum(values) / 2
    assert f"| FedMF | {average:.4f} ± " in page
    assert f"{average - 0.5:+.4f}" in page
    assert page.count("Only honest") == 1
    records = json.loads((tmp_path / "small" / "table.json").read_text())
    assert sorted(r["test"]["recall@10"] for r in records if r["row"] == "FedMF" and r["printed"]) == sorted(values)
    again: list[str] = []
    run_cells(planned, 1, again.append)
    assert again == [f"{len(planned)} runs, {len(planned)} already done"]


def test_a_failed_run_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    rows = [
        Row("Gone", {"method": "popularity", "rounds": 1}, on={TINY: {"data": "no-such-file.csv"}}),
        SMALL.rows[1],
    ]
    table = dataclasses.replace(SMALL, rows=rows, seeds=[0], protocols=["honest"])
    planned = plan_cells(table, tmp_path, "cpu", "8G")
    failed = run_cells(planned, 1, lambda line: None)
    assert list(failed) == [f"Gone, {TINY}, honest, seed 0"]
    assert "no-such-file.csv" in failed[f"Gone, {TINY}, honest, seed 0"]
    page = write_page(table, planned, failed, tmp_path).read_text()
    assert "| Gone | - |" in page
    assert "Failed:" in page


def test_changed_settings_are_not_taken_for_the_same_run(tmp_path: Path) -> None:
    table = dataclasses.replace(SMALL, rows=SMALL.rows[:1], seeds=[0], protocols=["honest"])
    run_cells(plan_cells(table, tmp_path, "cpu", "8G"), 1, lambda line: None)
    other = dataclasses.replace(table, rows=[Row("FedMF", {"method": "fedmf", "set": {"dim": 8}})])
    with pytest.raises(FedrecError, match="other settings"):
        require_runnable(plan_cells(other, tmp_path, "cpu", "8G"))


def test_a_run_of_fewer_rounds_is_not_taken_for_the_whole_one(tmp_path: Path) -> None:
    """As after --quick: neither by a table nor by what was measured."""
    rows = [dataclasses.replace(SMALL.rows[0], run={**SMALL.rows[0].run, "rounds": count}) for count in (1, 2)]
    quick, whole = (dataclasses.replace(SMALL, rows=[row], seeds=[0], protocols=["honest"]) for row in rows)
    (short,), (long,) = (plan_cells(table, tmp_path, "cpu", "8G") for table in (quick, whole))
    run_cells([short], 1, lambda line: None)
    require_runnable([short])
    with pytest.raises(FedrecError, match="--quick"):
        require_runnable([long])
    assert [run.rounds for run in collect_finished([("t", short)])] == [1]
    assert collect_finished([("t", long)]) == []
    RunFolder(short.folder).config.unlink()
    with pytest.raises(FedrecError, match="other settings"):
        require_runnable([short])


def test_quick_is_one_seed_and_a_tenth_of_the_rounds() -> None:
    paper, found = select_tables("fedca/table2-pmf")
    (quick,) = narrow_tables(found, ["ml-100k"], ["honest"], ["FedAvg"], [], quick=True)
    assert paper == "fedca"
    assert [quick.config(row, "ml-100k", "honest", 0).rounds for row in quick.rows] == [10]
    assert list(quick.seeds) == [0]


def test_print_stands_beside_its_own_protocol_only(tmp_path: Path) -> None:
    _, found = select_tables("fedca/table2-pmf")
    (part,) = narrow_tables(found, ["ml-100k"], ["honest"], ["FedAvg"], [0], quick=False)
    page = write_page(part, plan_cells(part, tmp_path, "cpu", "8G"), {}, tmp_path).read_text()
    assert "recall@10" in page
    assert "print" not in page.split("## ml-100k")[1]


def test_a_row_of_one_table_leaves_out_the_tables_without_it() -> None:
    _, found = select_tables("fedca")
    names = {table.name for table in found}
    assert {table.name for table in narrow_tables(found, [], [], ["FedAtt"], [], quick=False)} < names


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["fedcca"], "did you mean 'fedca'"),
        (["fedca/table22"], "table of fedca"),
        (["fedca/table2-pmf", "--datasets", "ml-10k"], "did you mean 'ml-100k'"),
        (["fedca/table2-pmf", "--rows", "Fedavg"], "did you mean 'FedAvg'"),
        (["fedca/table2-pmf", "--protocols", "honst", "--dry-run"], "honest"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, words: list[str], answer: str, tmp_path: Path) -> None:
    done = cli("reproduce", *words)
    assert done.code == 2
    assert answer in done.err
    assert done.err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_table_shows_what_was_tested_block_by_block(tmp_path: Path) -> None:
    """Means over seeds, and nothing where nobody was tested."""
    row = Row("Two kinds", {"method": "local", "preset": "silo", "set": {"blocks": "mf:4+mf:2"}})
    table = dataclasses.replace(SMALL, rows=[*SMALL.rows, row], protocols=["honest"], metrics=["recall@10"])
    planned = plan_cells(table, tmp_path, "cpu", "8G")
    assert "users tested" not in write_page(table, planned, {}, tmp_path).read_text()
    for cell in [cell for cell in planned if cell.row == row.label]:
        value = 0.2 + 0.1 * cell.config.seed
        first = {"name": "0-mf:4", "users": 30, "users_tested": 20, "test": {"recall@10": value}}
        second = {"name": "1-mf:2", "users": 20, "users_tested": 0, "test": {}}
        summary = {"test": {"recall@10": value}, "seconds": {"total": 1}, "best_round": 0, "blocks": [first, second]}
        cell.folder.mkdir(parents=True)
        (cell.folder / "summary.json").write_text(json.dumps(summary))
    page = write_page(table, planned, {}, tmp_path).read_text()
    assert "| method | block | users tested | recall@10 |" in page
    assert "| Two kinds | 0-mf:4 | 20 of 30 | 0.2500 ± 0.0707 |" in page
    assert "| Two kinds | 1-mf:2 | 0 of 20 | - |" in page


def test_a_dry_run_shows_commands_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ReproduceRequest(datasets=["ml-100k"], protocols=["honest"], rows=["FedCA (paper)"], seeds=[0])
    assert reproduce("fedca/table2-pmf", wanted, tmp_path / "x", dry_run=True)
    said = capsys.readouterr().out
    assert "fedrec run fedca --protocol" in said or "fedrec run fedca --backbone mf --preset paper" in said
    assert not (tmp_path / "x").exists()


def test_a_row_for_each_value() -> None:
    found = tables("ifedrec")["figure5"]
    assert [row.label for row in found.rows[:2]] == ["IFedNCF, 0.1 of the clients", "IFedNCF, 0.2 of the clients"]
    config = found.config(found.rows[1], "ml-100k", "ifedrec", 3)
    assert (config.participation, config.rounds, config.backbone) == (0.2, 500, "ncf")
    assert config.params == {}
    align = tables("ifedrec")["figure3"]
    assert [align.config(row, "ml-100k", "ifedrec", 0).params for row in align.rows[:2]] == [
        {"align": 0.1},
        {"align": 0.2},
    ]
    row = {"label": "{dim}", "method": "fedmf", "each": {"dim": [1, 2], "rounds": [3]}}
    heads = {"title": "T", "metrics": ["ndcg@10"], "protocols": ["honest"], "datasets": ["ml-100k"]}
    with pytest.raises(FedrecError, match="of one length"):
        _table("t", {**heads, "rows": [row]})
    with pytest.raises(FedrecError, match=r"t\.rows\.0 has no label; fix its TOML file"):
        _table("t", {**heads, "rows": [{"method": "fedmf"}]})


def test_finished_runs_may_come_from_another_machine(tmp_path: Path) -> None:
    table = dataclasses.replace(SMALL, rows=SMALL.rows[1:], seeds=[0], protocols=["honest"])
    (cell,) = plan_cells(table, tmp_path, "cpu", "8G")
    run_cells([cell], 1, lambda line: None)
    elsewhere = plan_cells(table, tmp_path, "cpu", "2G")
    require_runnable(elsewhere)
    told: list[str] = []
    run_cells(elsewhere, 1, told.append)
    assert told == ["1 run, 1 already done"]
    (cell.folder / "summary.json").unlink()
    with pytest.raises(FedrecError, match=r"other settings \(memory\)"):  # what is under way goes on where it began
        require_runnable(elsewhere)


def test_equal_work_is_done_once(tmp_path: Path) -> None:
    """Another table's row with another name, and a default written out; a changed setting is other work."""
    one = dataclasses.replace(SMALL, rows=SMALL.rows[:1], seeds=[0], protocols=["honest"])
    row = Row("The same", {"method": "fedmf", "set": {"dim": 4, "lr": FedMF().lr}})
    other = Row("Another", {"method": "fedmf", "set": {"dim": 5}})
    two = dataclasses.replace(one, name="second", rows=[row, other])
    first, second = plan_cells(one, tmp_path, "cpu", "8G"), plan_cells(two, tmp_path, "cpu", "8G")
    run_cells(first, 1, lambda line: None)
    told: list[str] = []
    assert run_cells(second, 1, told.append, [*first, *second], drop_models=True) == {}
    for name in ("best", "prepared"):
        there = [getattr(RunFolder(cell.folder), name).exists() for cell in (*first, *second)]
        assert there == [True, False, False], name
    assert told[0] == "2 runs, 0 already done, 1 in other tables"
    assert told[1].startswith("1 of 1: Another")
    assert second[0].summary() == first[0].summary()
    require_runnable(second)


STOPPED = """
import os, signal, sys
from pathlib import Path
from fedrec.experiment import interrupt
from fedrec.experiment.driver import Listener
from fedrec_studies.reproduce.worker import main

def stop(self, log, score, progress):
    if log.round == 4:
        os.kill(os.getpid(), signal.SIGTERM)

interrupt.GRACE, Listener.round = 1e6, stop
sys.exit(main(Path(sys.argv[1])))
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signals")
def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGTERM saves; the same study then has the figures of one that was never stopped, and its report."""
    row = Row("FedMF", {"method": "fedmf", "rounds": 12, "set": {"dim": 4}})
    table = dataclasses.replace(SMALL, rows=[row], seeds=[0], protocols=["honest"])
    (whole,), (cell,) = (
        plan_cells(table, tmp_path / "whole", "cpu", "8G"),
        plan_cells(table, tmp_path / "cut", "cpu", "8G"),
    )
    assert run_cells([whole], 1, lambda line: None) == {}
    RunFolder.create(cell.folder, cell.config.to_dict())
    worker = subprocess.run([sys.executable, "-c", STOPPED, str(cell.folder)], timeout=GENEROUS)
    assert worker.returncode == 128 + signal.SIGTERM
    assert cell.summary() is None
    log = cell.folder / "metrics.jsonl"
    assert log.read_text().count("\n") == 5
    assert (cell.folder / "last.safetensors").exists()
    assert run_cells([cell], 1, lambda line: None) == {}
    one, two = whole.summary(), cell.summary()
    assert one is not None
    assert two is not None
    assert one["test"] == two["test"]
    assert log.read_text().count("\n") == 12
    assert (cell.folder / "report.html").exists()


def test_a_damaged_result_is_one_line(tmp_path: Path) -> None:
    (cell, *_) = plan_cells(SMALL, tmp_path, "cpu", "8G")
    cell.folder.mkdir(parents=True)
    (cell.folder / "summary.json").write_text('{"test": {"ndcg@10": "high"}}')
    with pytest.raises(
        FedrecError, match=r"is damaged \(summary\.test is not metrics with numbers\); remove it and run"
    ):
        run_cells([cell], 1, lambda line: None)


def test_what_a_run_died_of_is_told(tmp_path: Path) -> None:
    row = Row("FedMF", {"method": "fedmf", "set": {"dim": 4, "lr": 1e30}})
    (cell,) = plan_cells(dataclasses.replace(SMALL, rows=[row], seeds=[0], protocols=["honest"]), tmp_path, "cpu", "8G")
    (failed,) = run_cells([cell], 1, lambda line: None).values()
    assert "training diverged; lower" in failed
    assert not failed.startswith("error: ")
