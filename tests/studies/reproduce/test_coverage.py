"""What a paper prints against what was measured: the arithmetic, the pages, and that no printed cell is left over."""

from __future__ import annotations

import csv
import dataclasses
import json
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrec.cli import app
from fedrec.errors import FedrecError
from fedrec.report.figures import FIGURES
from fedrec_studies.commands.reproduce import ReproduceRequest, reproduce, show_coverage
from fedrec_studies.reproduce.causes import Findings, read_findings
from fedrec_studies.reproduce.cells import plan_cells
from fedrec_studies.reproduce.collect import match_runs, trim_figures
from fedrec_studies.reproduce.coverage import CellCoverage, Comparison, counts, coverage, plan_all_cells
from fedrec_studies.reproduce.coverage_page import (
    by_table,
    draw_scatter,
    lines,
    missing_data,
    not_run,
    summary_line,
    too_long,
    turn,
    wrap,
    write_coverage,
)
from fedrec_studies.reproduce.estimate import Clock, Estimate, hours
from fedrec_studies.reproduce.measured import (
    MeasuredRun,
    merge_runs,
    read_all_shipped,
    read_shipped,
    still_asked_for,
    write,
)
from fedrec_studies.reproduce.printed import PrintedCell, read_print, select_cells
from fedrec_studies.reproduce.run_figures import figures_of, guidance_figures
from fedrec_studies.reproduce.studies import study_lines, without_print
from fedrec_studies.reproduce.table_definition import Table, names, papers, tables
from fedrec_studies.reproduce.verdicts import judge

PRINTED = {"fedca": 596, "fedcia": 189, "cgfedrec": 112, "ifedrec": 576, "fedrkg": 344}
"""Result cells of each paper."""


def run_of(paper: str, table: str, row: str, dataset: str, **changed: object) -> MeasuredRun:
    """A run as the table asks for it, with figures of its own."""
    found = tables(paper)[table]
    cell = next(
        cell
        for cell in plan_cells(found, Path(), "cpu", "8G")
        if (cell.row, cell.dataset, cell.protocol) == (row, dataset, found.published)
    )
    usual = {"figures": {}, "rounds": 10, "best_round": 3, "seconds": 20.0, "interactions": 100_000, "backbone": "mf"}
    values = usual | changed
    return MeasuredRun(table, row, dataset, cell.protocol, cell.config.seed, cell.command(), "cpu", **values)  # type: ignore[arg-type]


def reached(paper: str, runs: list[MeasuredRun], **where: str) -> list[CellCoverage]:
    some = coverage(paper, runs)
    return [one for one in some if all(getattr(one.cell, key) == value for key, value in where.items())]


@pytest.mark.parametrize("paper", PRINTED)
def test_every_printed_cell_is_measured_or_says_why_not(paper: str) -> None:
    found = coverage(paper, read_shipped(paper), timed=read_all_shipped())
    assert [one.cell for one in found if one.state == "not run"] == []
    assert all(one.time is not None for one in found if one.state == "too long"), "with the time that it takes"


@pytest.mark.parametrize("paper", papers())
def test_every_printed_cell_is_claimed_by_a_row_or_said_to_be_missing(paper: str) -> None:
    found = coverage(paper, read_shipped(paper))
    assert len(found) == PRINTED.get(paper, 0)
    assert sum(counts(found).values()) == len(found)
    assert not [one for one in found if one.why == "no table has it"]
    assert all(one.why for one in found if one.state != "measured")


def test_the_figures_of_a_cell_are_compared_with_its_print() -> None:
    runs = [run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", figures={"hr@10": 0.4578, "ndcg@10": 0.5})]
    (hr,) = reached("fedca", runs, table="table2", method="FedAvg", backbone="PMF", dataset="ML-100K", metric="HR@10")
    (found,) = hr.found
    assert (found.printed, found.value, found.seeds) == (0.4878, 0.4578, 1)
    assert found.difference == pytest.approx(-0.03)
    assert found.agrees, "a tenth of 0.4878 is more"
    (ndcg,) = reached(
        "fedca", runs, table="table2", method="FedAvg", backbone="PMF", dataset="ML-100K", metric="NDCG@10"
    )
    assert not ndcg.found[0].agrees
    (ncf,) = reached("fedca", runs, table="table2", method="FedAvg", backbone="NCF", dataset="ML-100K", metric="HR@10")
    assert ncf.state == "not run"


def test_seeds_are_averaged_and_percentages_are_fractions() -> None:
    first = run_of("fedrkg", "table1", "FedRKG", "filmtrust", figures={"recall@10": 0.9})
    runs = [first, dataclasses.replace(first, seed=1, figures={"recall@10": 1.0})]
    (one,) = reached("fedrkg", runs, table="table1", method="FedRKG", dataset="FilmTrust", metric="Recall@10(%)")
    assert (one.found[0].printed, one.found[0].value, one.found[0].seeds) == (1.0, 0.9, 1), "seed 1 is not asked for"


def test_a_mean_of_several_seeds_counts_as_so_many() -> None:
    one = run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", figures={"hr@10": 0.4}, seeds=3, seconds=0.0, fedrec="0.1")
    place = {"table": "table2", "method": "FedAvg", "backbone": "PMF", "dataset": "ML-100K", "metric": "HR@10"}
    planned = plan_cells(tables("fedca")["table2-pmf"], Path(), "cpu", "8G")
    mine = [cell for cell in planned if (cell.row, cell.dataset, cell.protocol) == ("FedAvg", "ml-100k", "fedca")]
    second = next(cell for cell in mine if cell.config.seed == 1)
    two = dataclasses.replace(one, seed=1, command=second.command(), seeds=1, figures={"hr@10": 0.8})
    (hr,) = reached("fedca", [one, two], **place)
    assert (hr.found[0].seeds, hr.found[0].earlier) == (4, "0.1")
    assert hr.found[0].value == pytest.approx(0.5)
    assert "| 4 (fedrec 0.1) |" in "\n".join(lines("FedCA", [hr], Findings()))
    assert Clock([one]).estimate(mine[0]) is None, "it took no time that is known"


@pytest.mark.parametrize(
    ("value", "printed", "deviation", "agrees"),
    [
        (0.55, 0.5, None, True),
        (0.551, 0.5, None, False),
        (0.551, 0.5, 0.03, True),
        (0.561, 0.5, 0.03, False),
        (0.55, 0.5, 0.0, True),
        (0.0115, 0.0036, None, False),
        (0.01, 0.0, None, False),
        (0.0, 0.0, None, True),
        (-0.5, 0.5, None, False),
    ],
)
def test_a_figure_agrees_within_a_tenth_or_two_deviations(
    value: float, printed: float, deviation: float | None, agrees: bool
) -> None:
    """However small it is: there is no absolute floor."""
    assert Comparison("t", "r", value, 1, printed, deviation=deviation).agrees is agrees


def test_deviations_need_three_runs_of_one_seed_each() -> None:
    first = run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", figures={"hr@10": 0.4})
    planned = plan_cells(tables("fedca")["table2-pmf"], Path(), "cpu", "8G")
    runs = [
        dataclasses.replace(first, seed=cell.config.seed, command=cell.command(), figures={"hr@10": value})
        for cell, value in zip(
            [one for one in planned if (one.row, one.dataset, one.protocol) == ("FedAvg", "ml-100k", "fedca")],
            (0.3, 0.4, 0.5),
            strict=True,
        )
    ]
    where = {"table": "table2", "method": "FedAvg", "backbone": "PMF", "dataset": "ML-100K", "metric": "HR@10"}
    (one,) = reached("fedca", runs, **where)
    assert one.best.deviation == pytest.approx(0.1)
    assert one.best.agrees, "print, 0.4878, is less than two deviations from 0.4"
    (two,) = reached("fedca", runs[:2], **where)
    assert two.best.deviation is None
    assert not two.best.agrees


def test_runs_of_other_settings_do_not_count() -> None:
    run = run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", figures={"hr@10": 0.5})
    planned = plan_all_cells(tables("fedca").values(), "cuda")
    assert still_asked_for([run], planned) == [run], "the device is no setting"
    other = dataclasses.replace(run, command=run.command + " --set lr=3")
    assert still_asked_for([other], planned) == []
    assert not [one for one in coverage("fedca", [other]) if one.state == "measured"]


def test_a_gain_follows_from_the_rows_beside_it() -> None:
    rows = [row.label for row in tables("fedrkg")["table1"].rows if row.print]
    figures = {label: {"ndcg@5": 0.1 + 0.01 * index} for index, label in enumerate(rows)}
    runs = [run_of("fedrkg", "table1", label, "filmtrust", figures=figures[label]) for label in rows]
    place = {"table": "table1", "dataset": "FilmTrust", "metric": "NDCG@5 gain(%)"}
    (gain,) = reached("fedrkg", runs, **place)
    best = max(value["ndcg@5"] for label, value in figures.items() if label != "FedRKG")
    assert gain.state == "measured"
    assert gain.found[0].value == pytest.approx((figures["FedRKG"]["ndcg@5"] - best) / best)
    (waiting,) = reached("fedrkg", runs[1:], **place)
    assert waiting.state != "measured", "a baseline is missing"


def test_a_table_that_prints_a_metric_under_another_name() -> None:
    """FedRKG's Table 2 has Recall@5 under N@10."""
    row = next(row for row in tables("fedrkg")["table2"].rows if row.label == "w/ GIE")
    assert [cell.value for cell in row.cells["amazon-video", "recall@5"]] == ["3.72"]


def test_one_run_may_stand_for_cells_of_two_tables() -> None:
    row = next(row for row in tables("ifedrec")["table1"].rows if row.label == "IFedNCF")
    assert [cell.table for cell in row.cells["citeulike-a:coldstart", "recall@20"]] == ["table1", "table2"]


def test_the_cells_of_a_row_are_found_by_all_that_is_given() -> None:
    some = read_print("fedca")
    assert {cell.table for cell in select_cells(some, {"table": "table5|table6"})} == {"table5", "table6"}
    assert len(select_cells(some, {"table": "table12", "setting": "rho=0.8"})) == 8
    with pytest.raises(FedrecError, match="print has no key 'metod'"):
        select_cells(some, {"metod": "FedCA"})


def test_groups_have_figures_of_their_own(tmp_path: Path) -> None:
    inside = {
        "gate distinct": 0.5,
        "gate followers": 0.6,
        "logit distinct": -0.1,
        "logit followers": 0.1,
        "gate cold 10%": 0.4,
        "gate warm 10%": 0.5,
        "ndcg@5 change distinct": -0.2,
        "improved": 0.7,
    }
    found = guidance_figures(inside)
    assert found["gate change followers to distinct"] == pytest.approx(0.2)
    assert found["logit change followers to distinct"] == pytest.approx(2.0), "of the size of the first"
    assert found["gate change warm to cold 10%"] == pytest.approx(0.25)
    assert (found["ndcg@5 change distinct"], found["improved"]) == (-0.2, 0.7)
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n' + json.dumps({"round": 1, "inside": inside}) + "\n")
    summary = {"test": {"ndcg@10": 0.3}, "bytes": {"up_per_client_round": 1024.0, "down_per_client_round": 512.0}}
    figures = figures_of(summary, tmp_path)
    assert (figures["ndcg@10"], figures["upload_kb"], figures["download_kb"]) == (0.3, 2.0, 1.0)
    assert figures["improved"] == 0.7


def test_time_is_estimated_from_the_nearest_run() -> None:
    planned = {
        (cell.row, cell.dataset): cell for cell in plan_cells(tables("fedca")["table2-pmf"], Path(), "cpu", "8G")
    }
    here = run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", seconds=50.0, rounds=100)
    assert Clock([here]).estimate(planned["FedAvg", "ml-100k"]) == Estimate(50.0, "cpu")
    size = run_of("fedca", "table2-pmf", "Popularity", "ml-1m", interactions=1_000_000)
    assert Clock([here, size]).estimate(planned["FedAvg", "ml-1m"]) == Estimate(pytest.approx(500.0), "cpu")  # type: ignore[arg-type]
    assert Clock([here]).estimate(planned["FedAvg", "ml-1m"]) is None, "nothing says how large ml-1m is"
    assert Clock([here]).estimate(planned["FedCA (paper)", "ml-100k"]) is None
    other = run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", seconds=50.0, rounds=100, backbone="ncf")
    rough = Clock([other]).estimate(planned["FedAvg", "ml-100k"])
    assert rough == Estimate(50.0, "cpu", rough=True), "another backbone of the method is better than nothing"
    assert rough.describe() == "50 s on cpu (by its other runs)"
    assert Clock([here, other]).estimate(planned["FedAvg", "ml-100k"]) == Estimate(50.0, "cpu")
    begun = dataclasses.replace(here, seed=1, rounds=2, seconds=40.0)
    assert Clock([begun, here]).estimate(planned["FedAvg", "ml-100k"]) == Estimate(50.0, "cpu"), (
        "two rounds tell little"
    )
    assert Clock([begun]).estimate(planned["FedAvg", "ml-100k"]) == Estimate(2000.0, "cpu")
    assert [hours(seconds) for seconds in (0.2, 60, 600, 7200)] == ["1 s", "60 s", "10 min", "2.0 h"]


def test_a_figure_of_a_run_that_diverged_later_says_so() -> None:
    figures = {"figures": {"recall@10": 0.3}}
    whole, cut = (run_of("fedrkg", "table1", "PFedRec", "ml-1m", **figures, diverged=why) for why in ("", "overflow"))
    for run, words in ((whole, "1"), (cut, "1, 1 diverged later")):
        text = "\n".join(lines("A paper", coverage("fedrkg", [run]), Findings()))
        (row,) = [line for line in text.splitlines() if line.startswith("| table1") and "| 0.3000 |" in line]
        assert row.endswith(f"| {words} |")


def test_the_time_of_one_variant_says_little_about_another() -> None:
    """Without clusters CGFedRec is PFedRec, which takes a tenth of its time."""
    planned = {
        cell.row: cell
        for cell in plan_cells(tables("cgfedrec")["table3"], Path(), "cpu", "8G")
        if cell.dataset == "ml-100k"
    }
    short, whole = (
        run_of("cgfedrec", "table3", row, "ml-100k", seconds=seconds, rounds=100, backbone="linear")
        for row, seconds in (("CGFedRec-E (= PFedRec)", 7.0), ("CGFedRec", 60.0))
    )
    clock = Clock([short, whole])
    assert clock.estimate(planned["CGFedRec"]) == Estimate(pytest.approx(60.0), "cpu")  # type: ignore[arg-type]
    assert clock.estimate(planned["CGFedRec-E (= PFedRec)"]) == Estimate(pytest.approx(7.0), "cpu")  # type: ignore[arg-type]


def test_what_does_not_fit_into_the_hour_of_its_table_takes_too_long() -> None:
    """In the table's order, by device; what was measured has spent its time, and a shorter row may still fit."""
    slow = run_of("fedca", "table2-pmf", "FedAvg", "ml-100k", figures={"hr@10": 0.4}, rounds=100, seconds=3000.0)
    timed = [
        run_of("fedca", "table2-pmf", row, "ml-100k", rounds=100, seconds=seconds)
        for row, seconds in (("FedAtt", 700.0), ("FedFast", 500.0))
    ]

    def states(timed: list[MeasuredRun]) -> dict[str, CellCoverage]:
        where = {"table": "table2", "dataset": "ML-100K", "backbone": "PMF", "metric": "HR@10"}
        some = coverage("fedca", [slow], timed=timed)
        return {one.cell.method: one for one in some if where.items() <= vars(one.cell).items()}

    found = states(timed)
    assert (found["FedAvg"].state, found["FedAtt"].state, found["FedFast"].state) == ("measured", "too long", "not run")
    assert found["FedAtt"].time == Estimate(700.0, "cpu")
    assert found["PFedRec"].state == "not run", "nothing says how long it takes"
    expected = ["table2", "FedAtt PMF", "ML-100K", "1", "12 min on cpu", "beyond the 1 h of table2-pmf"]
    assert too_long([found["FedAtt"]]) == [expected]
    assert "| " + " | ".join(expected) + " |" in "\n".join(lines("FedCA", [*found.values()], Findings()))
    on_gpu = states([dataclasses.replace(run, device="cuda") for run in timed])
    assert on_gpu["FedAtt"].state == "not run", "a GPU has an hour of its own"


def test_a_row_may_say_that_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tables("cgfedrec")
    rows = [dataclasses.replace(row, too_long={"ml-100k": "9 h on an H200"}) for row in known["table4"].rows]
    known["table4"] = dataclasses.replace(known["table4"], rows=rows)
    monkeypatch.setattr("fedrec_studies.reproduce.coverage.tables", lambda paper: known)
    (one,) = reached("cgfedrec", [], table="table4", setting="noise=0", dataset="ML-100K", metric="NDCG@5")
    assert (one.state, one.why) == ("too long", "9 h on an H200")
    assert "- 12 cells: 9 h on an H200" in lines("CGFedRec", reached("cgfedrec", [], table="table4"), Findings())
    known["table4"] = dataclasses.replace(tables("cgfedrec")["table4"], too_long={"ml-100k": "a day of two cores"})
    (one,) = reached("cgfedrec", [], table="table4", setting="noise=0", dataset="ML-100K", metric="NDCG@5")
    assert (one.state, one.why) == ("too long", "a day of two cores"), "what a table says holds for its rows"
    measured = run_of("cgfedrec", "table4", "noise 0", "ml-100k", figures={"ndcg@5": 0.9})
    (one,) = reached("cgfedrec", [measured], table="table4", setting="noise=0", dataset="ML-100K", metric="NDCG@5")
    assert one.state == "measured", "what was measured counts, whatever was said"


@pytest.mark.parametrize("paper", papers())
def test_a_table_calls_only_data_too_long_that_misses_a_cell(paper: str) -> None:
    missing = {
        one.cell for one in coverage(paper, read_shipped(paper), timed=read_all_shipped()) if one.state == "too long"
    }
    for table in tables(paper).values():
        for dataset in {*table.too_long, *(name for row in table.rows for name in row.too_long)}:
            claimed = {
                one for row in table.rows for (name, _), same in row.cells.items() if name == dataset for one in same
            }
            assert claimed & missing, f"remove `too_long` of {dataset} from {table.name}: everything is measured"


def test_coverage_counts_and_names_what_is_missing() -> None:
    runs = [run_of("cgfedrec", "table4", "noise 0", "ml-100k", figures={"hr@5": 0.97, "ndcg@5": 0.5})]
    found = coverage("cgfedrec", runs)
    assert counts(found) == {"measured": 2, "unavailable": 40, "not run": 70}
    judged = judge(found, Findings())
    header, *rows = turn(by_table(judged), "verdict")
    assert header[-1] == "all"
    assert {row[0]: row[-1] for row in rows} == {
        "printed": "112",
        "agrees": "1",
        "not explained yet": "1",
        "data missing": "40",
        "not run yet": "70",
    }
    assert [(name, number) for name, number, _ in missing_data(found)] == [("KU", "20"), ("Beauty", "20")]
    assert ["table2", "CoFedRec", "Filmtrust", "2", "unknown"] in not_run(found)
    assert "112 printed cells. 1 agree" in summary_line(judged)
    assert "of 72 whose data is here" in summary_line(judged)
    page = "\n".join(lines("CGFedRec", found, Findings()))
    figures = "0.8927 | 0.5000 | -0.3927 | not explained yet"
    assert f"| table4 | CGFedRec noise=0 | ML-100K | NDCG@5 | {figures} | table4: noise 0 | 1 |" in page
    assert "NineRec" in page


DOCS = Path(__file__).parents[3] / "docs" / "coverage"


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not here")
@pytest.mark.parametrize("paper", PRINTED)
def test_the_documentation_has_what_was_measured(paper: str) -> None:
    """Made by `make coverage`; not edited by hand."""
    made = coverage(paper, read_shipped(paper), timed=read_all_shipped())
    assert (DOCS / paper / "coverage.md").read_text(encoding="utf-8") == "\n".join(
        lines(names(paper).title, made, read_findings(paper), [*names(paper).words.values()])
    ) + "\n"


def test_a_word_of_the_paper_is_explained_where_a_row_has_it() -> None:
    meaning = names("fedca").words["FCF"]
    having = {name for name, table in tables("fedca").items() if meaning in table.notes}
    assert having == {"table2-pmf", "table2-ncf", "table3", "table4", "table7", "figure5"}
    assert wrap(meaning) in lines("FedCA", coverage("fedca", []), Findings(), [meaning])


def test_seconds_of_stages_stand_beside_print(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {("ml-100k", "SVD"): 0.00123}
    monkeypatch.setattr("fedrec_studies.reproduce.coverage.read_stage_seconds", lambda paper: known)
    found = coverage("fedca", [])
    assert [one.cell.setting for one in found if one.beside is not None] == ["stage=SVD"], "of ml-100k alone"
    assert counts(found)["elsewhere"] == 15, "it is no measured cell"
    assert "| table8 | FedCA stage=SVD | ML-100K | 0.005 | 0.0012 |" in "\n".join(lines("FedCA", found, Findings()))


def test_the_picture_has_a_point_for_each_cell(tmp_path: Path) -> None:
    runs = [run_of("cgfedrec", "table4", "noise 0", "ml-100k", figures={"hr@5": 0.97, "ndcg@5": 0.5})]
    svg = draw_scatter("CGFedRec", coverage("cgfedrec", runs))
    assert svg.count("<circle cx") == 2
    assert "agrees: 1" in svg
    assert "apart: 1" in svg
    nothing = write_coverage("CGFedRec", coverage("cgfedrec", []), Findings(), tmp_path)
    assert [path.name for path in nothing] == ["coverage.md"]


def test_the_command_shows_and_writes_coverage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_coverage("cgfedrec/table4", "cpu", tmp_path)
    said = capsys.readouterr().out
    assert "12 printed cells" in said
    assert (tmp_path / "coverage.md").read_text().startswith("# CGFedRec")
    done = CliRunner().invoke(app, ["reproduce", "fedgram", "--coverage", "--out", str(tmp_path / "x")])
    assert done.exit_code == 0, "a study of our own methods has no print, but a page of what was measured"
    assert len([*(tmp_path / "x").iterdir()]) == 1


DRAWN = [(paper, table) for paper in PRINTED for table in tables(paper).values() if table.name.startswith("figure")]


@pytest.mark.parametrize(("paper", "table"), DRAWN, ids=[f"{paper}-{table.name}" for paper, table in DRAWN])
def test_every_figure_has_commands_that_draw_it(paper: str, table: Table) -> None:
    """Of its own folders, by a figure that exists."""
    assert table.drawn
    for command in table.drawn:
        words = command.split()
        assert words[:2] == ["fedrec", "report"]
        assert words[2].startswith(f"runs/reproduce/{paper}/{table.name}/{table.published}/")
        folders = [cell.folder for cell in plan_cells(table, Path("runs/reproduce") / paper, "cpu", "8G")]
        assert any(place.match(words[2]) for folder in folders for place in (folder, folder.parent)), command
        assert words[words.index("--figure") + 1] in FIGURES


def test_a_dry_run_says_what_there_is_and_what_cannot_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ReproduceRequest(datasets=["ml-100k"], protocols=["cgfedrec"], seeds=[0])
    assert reproduce("cgfedrec/table4", wanted, tmp_path / "x", dry_run=True)
    said = capsys.readouterr().out
    assert "table4: CGFedRec, Table 4: Laplace noise on uploads\n6 runs, about " in said
    assert "  noise 0.1: 1 run, 2 printed cells\n    fedrec run cgfedrec --protocol cgfedrec" in said
    assert "all: 6 runs" in said
    assert "NineRec" in said
    assert not (tmp_path / "x").exists()


def test_what_is_measured_survives_being_written(tmp_path: Path) -> None:
    old = run_of("cgfedrec", "table4", "noise 0", "ml-100k", figures={"hr@5": 0.1, "mrr@10": 0.2})
    new = dataclasses.replace(old, figures={"hr@5": 0.3, "mrr@10": 0.2})
    (kept,) = trim_figures(merge_runs([old], [new]), tables("cgfedrec").values())
    assert kept.figures == {"hr@5": 0.3}
    write(tmp_path / "some.json", "About.", [kept])
    assert [MeasuredRun(**record) for record in json.loads((tmp_path / "some.json").read_text())["runs"]] == [kept]


def test_a_run_counts_wherever_its_command_is_asked_for() -> None:
    planned = plan_all_cells(tables("fedca").values(), "cpu")
    asked = [cell.command() for _, cell in planned]
    twice = next(command for command in asked if asked.count(command) > 1)
    table, cell = next(one for one in planned if one[1].command() == twice)
    run = run_of("fedca", table, cell.row, cell.dataset, figures={"hr@10": 0.5}, seeds=1)
    run = dataclasses.replace(run, command=twice)
    found = match_runs([run], planned)
    assert len(found) == asked.count(twice)
    assert len({one.key() for one in found}) == len(found)
    assert all(one.figures == run.figures for one in found)


def test_a_study_shows_the_mean_of_its_runs_and_counts_the_rows_without() -> None:
    table = tables("champion")["rounds-and-bytes"]
    first = run_of("champion", table.name, "FedOpt", "ml-100k", figures={"recall@10": 0.1, "MB up": 2.0})
    second = dataclasses.replace(first, seed=1, figures={"recall@10": 0.3, "MB up": 4.0})
    text = list(study_lines("Study", [table], [first, second]))
    assert f"**ml-100k**: 1 of {len(table.rows)} rows measured." in text
    assert "| FedOpt | 0.2000 ± 0.1414 | - | - | 3.0000 ± 1.4142 | - | 4 | 2 | cpu |" in text
    second = dataclasses.replace(second, diverged="the loss is no longer finite in round 9")
    text = list(study_lines("Study", [table], [first, second]))
    assert any(line.endswith("| 4, 1 of 2 diverged later | 2 | cpu |") for line in text)


def test_the_documentation_has_what_was_measured_of_the_champion() -> None:
    page = Path(__file__).parents[3] / "docs" / "coverage" / "champion" / "measured.md"
    made = study_lines(names("champion").title, list(tables("champion").values()), read_shipped("champion"))
    assert page.read_text(encoding="utf-8") == "\n".join(made) + "\n"


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not here")
@pytest.mark.parametrize("paper", PRINTED)
def test_the_documentation_has_what_was_measured_without_print(paper: str) -> None:
    """Figures of a paper and runs for a cause; every other table has print."""
    known = list(tables(paper).values())
    drawn = without_print(known)
    assert all(table.name.startswith("figure") or table.name == "causes" for table in drawn)
    assert {table.name for table in known if table.name.startswith("figure")} <= {table.name for table in drawn}
    made = study_lines(f"{names(paper).title}: what has no printed figures", drawn, read_shipped(paper))
    assert (DOCS / paper / "measured.md").read_text(encoding="utf-8") == "\n".join(made) + "\n"


def test_print_is_kept_as_it_stands_in_the_papers() -> None:
    for paper, number in PRINTED.items():
        with (resources.files("fedrec_studies.reproduce.printed") / f"{paper}.csv").open(
            encoding="utf-8", newline=""
        ) as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == number
        assert len({tuple(list(row.values())[:-1]) for row in rows}) == number, "no cell stands there twice"
        assert all(PrintedCell(**row).number() is not None for row in rows)
