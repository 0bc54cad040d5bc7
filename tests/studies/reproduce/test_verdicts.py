"""The verdict on every printed cell: what agrees, what does not and why, and what is not counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrec.cli import app
from fedrec_studies.reproduce import causes
from fedrec_studies.reproduce.causes import REASONS, Cause, Cells, Findings, read_findings
from fedrec_studies.reproduce.coverage import CellCoverage, Comparison
from fedrec_studies.reproduce.coverage_page import lines
from fedrec_studies.reproduce.overview_page import judge_papers, overview_lines, overview_table
from fedrec_studies.reproduce.printed import PrintedCell, read_print
from fedrec_studies.reproduce.table_definition import papers
from fedrec_studies.reproduce.verdicts import VERDICTS, agreement, count_verdicts, judge

PAPERS = [paper for paper in papers() if read_print(paper)]
DOCS = Path(__file__).parents[3] / "docs" / "coverage"
JUDGED = judge_papers()


def measured(value: float, method: str = "Local", metric: str = "HR@10") -> CellCoverage:
    cell = PrintedCell("table2", "ML-100K", method, "", "", metric, "0.5")
    return CellCoverage(cell, "measured", [Comparison("table2", method, value, 1, 0.5)])


def test_a_cell_that_does_not_agree_has_the_first_cause_that_holds() -> None:
    leak = Cause(Cells(method="Local"), "nobody gets it", "The leak.")
    rest = Cause(Cells(metric="NDCG*|HR*"), "data differ", "Other users.")
    known = Findings(causes=[leak, rest])
    near, local, other = judge([measured(0.5), measured(0.9), measured(0.9, "FedAvg")], known)
    assert (near.verdict, near.cause) == ("agrees", None), "a cause says nothing of what agrees"
    assert (local.verdict, local.number, local.cause) == ("nobody gets it", 1, leak)
    assert (other.verdict, other.number) == ("data differ", 2)
    (unknown,) = judge([measured(0.9, metric="F1@10")], Findings(causes=[rest]))
    assert unknown.verdict == "not explained yet"


def test_what_was_not_measured_says_so_whatever_causes_there_are() -> None:
    cell = measured(0.9).cell
    known = Findings(causes=[Cause(Cells(), "data differ", "Everything.")])
    states = [CellCoverage(cell, "unavailable"), CellCoverage(cell, "too long"), CellCoverage(cell, "not run")]
    assert [one.verdict for one in judge(states, known)] == ["data missing", "too long", "not run yet"]


def test_any_row_that_corresponds_may_serve_and_the_page_marks_it() -> None:
    far, near = Comparison("table2", "as written", 0.9, 1, 0.5), Comparison("table2", "as released", 0.52, 1, 0.5)
    one = CellCoverage(measured(0.9).cell, "measured", [far, near])
    assert one.best is near
    assert CellCoverage(one.cell, "measured", [far]).best is far
    page = [line for line in lines("A paper", [one], Findings()) if line.startswith("| table2 | Local")]
    assert ["| agrees |" in line for line in page] == [False, True]


def test_derived_and_repeated_cells_have_a_verdict_and_are_not_counted() -> None:
    known = Findings(uncounted=[(Cells(method="FedAvg"), "repeated")])
    judged = judge([measured(0.5), measured(0.5, "FedAvg"), measured(0.9)], known)
    assert [one.verdict for one in judged] == ["agrees", "agrees", "not explained yet"]
    assert count_verdicts(judged) == {"agrees": 1, "not explained yet": 1}
    assert agreement(judged) == (1, 2)
    assert "agrees, repeated" in "\n".join(lines("A paper", [one.coverage for one in judged], known))


def test_agreement_leaves_out_the_leak_and_missing_data_but_not_what_takes_too_long() -> None:
    cell = measured(0.9, "FedAvg").cell
    known = Findings(causes=[Cause(Cells(method="Local"), "nobody gets it", "The leak.")])
    states = [CellCoverage(cell, "unavailable"), CellCoverage(cell, "too long"), measured(0.9), measured(0.5)]
    assert agreement(judge(states, known)) == (1, 2)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_cause_and_pattern_is_of_cells_that_need_it(paper: str) -> None:
    """What a run has put right leaves the file."""
    known, judged = read_findings(paper), JUDGED[paper]
    used = {one.number for one in judged}
    assert [cause.cells for number, cause in enumerate(known.causes, 1) if number not in used] == []
    cells = [one.coverage.cell for one in judged]
    patterns = [part for part, _ in known.uncounted] + [one.cells for one in known.authors]
    assert [part for part in patterns if not any(part.has(cell) for cell in cells)] == []
    assert known.sceptic
    assert known.settle


@pytest.mark.parametrize("paper", PAPERS)
def test_a_repeated_cell_has_the_figure_of_one_that_counts(paper: str) -> None:
    cells = [(one.coverage.cell, one.uncounted) for one in JUDGED[paper]]
    once = {(cell.dataset, cell.value) for cell, uncounted in cells if uncounted is None}
    again = [cell for cell, uncounted in cells if uncounted == "repeated"]
    assert [cell for cell in again if (cell.dataset, cell.value) not in once] == []


def test_every_reason_is_explained() -> None:
    assert {*REASONS} <= {*VERDICTS}
    assert [*Path(causes.__file__).parent.glob("*.toml")], "the causes come with the package"


def test_the_overview_counts_every_printed_cell_once() -> None:
    header, *rows = overview_table(JUDGED)
    found = {row[0]: row[1:] for row in rows}
    assert header[-1] == "all"
    for column, name in enumerate(header[1:]):
        counted = [int(some[column]) for word, some in found.items() if word not in ("printed", "agreement")]
        assert int(found["printed"][column]) == sum(counted), name


@pytest.mark.skipif(not DOCS.is_dir(), reason="the documentation is not here")
def test_the_documentation_has_the_overview() -> None:
    """Made by `make coverage`; not edited by hand."""
    assert (DOCS / "README.md").read_text(encoding="utf-8") == "\n".join(overview_lines(JUDGED)) + "\n"


def test_the_command_writes_the_overview(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "--coverage", "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "overview.svg"}
    refused = CliRunner().invoke(app, ["reproduce", "--coverage", "--datasets", "ml-100k"])
    assert "leave --datasets" in str(refused.exception)
