"""An audit as text in the terminal and as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from fedrec.experiment.audit.finding import Finding
from fedrec.experiment.audit.leak import Report
from fedrec.html import write_page
from fedrec.report import charts
from fedrec.report.pages import PAGES

WORDS = {"fail": "FAIL", "warn": "warn", "pass": "pass", "n/a": "n/a"}


def lines(report: Report) -> list[str]:
    """Per check a line with verdict, name and figure and one with the sentence; the verdict on the whole last."""
    return [f"leak audit of {report.case.title}", *map(_line, report.findings), report.verdict]


def _line(finding: Finding) -> str:
    head = f"{WORDS[finding.status]:<5} {finding.name}"
    if finding.status == "n/a":
        return f"{head}: {finding.sentence}"
    return (f"{head}: {finding.figure_text}" if finding.figure else head) + f"\n      {finding.sentence}"


def write_audit(report: Report, path: Path) -> Path:
    """The page looks like the run reports."""
    return write_page(
        path,
        "leak.html",
        PAGES,
        title=f"Leak audit of {report.case.title}",
        report=report,
        facts=_facts(report),
        chart=Markup(_curve(report)),
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    split, case = report.case.split, report.case
    rows = {name: len(getattr(split, name)) for name in ("train", "valid", "test")}
    return [
        ("users", f"{split.train.n_users:,}"),
        ("items", f"{split.train.n_items:,}"),
        *(("left out", str(record)) for record in case.filters),
        ("rows", ", ".join(f"{name} {count:,}" for name, count in rows.items())),
        ("evaluated users", f"{len(case.targets):,}"),
        ("candidates", f"{case.candidates.mean():,.0f} on average"),
    ]


def _curve(report: Report) -> str:
    """How fast the counter finds the held-out items, where there are rounds to show."""
    case = report.case
    if case.draws is None or not case.draws.rounds:
        return ""
    rounds, values = zip(*case.exposure.curve, strict=True)
    drawn = [charts.Line("counter", rounds, values), charts.Line("chance", [rounds[0]], [case.chance], style="ref")]
    title = f"{case.metric} of a counter of training negatives, which has no information about taste"
    return charts.line_chart(
        drawn, title=title, x_label="rounds", y_label=case.metric, x_log=len(rounds) > 1, y_zero=True, y_top=1.0
    )
