"""What comes from data is shown, never obeyed: by the terminal, by a browser, by who reads an SVG."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from conftest import Cli
from fedrec.commands import console
from fedrec.errors import visible, visible_line

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
"""Sets the title of a window and clears it."""
SHOWN = r"\x1b]0;owned\x07\x1b[2J"
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
PROTOCOL = ("--protocol", "honest,ks=3,select_metric=ndcg@3,min_interactions=3")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Users, items, titles and a column whose names hold commands, in a file that does so too."""
    file = tmp_path / f"my{ESCAPE}.csv"
    rows = [f"u{u}{ESCAPE},i{(u * 7 + k * k) % 30}{ESCAPE},{k}" for u in range(20) for k in range(8)]
    file.write_text("\n".join(["user,item,timestamp", *dict.fromkeys(rows)]) + "\n")
    items = [f'i{i}{ESCAPE},"{ESCAPE}<script>alert(1)</script>\n{i}",a|b{i % 3}' for i in range(30)]
    (tmp_path / "items.csv").write_text("\n".join(["item,title,tags", *items]) + "\n")
    return file


def harmless(text: str) -> str:
    assert not COMMANDS.search(text), text
    return text


def test_ids_titles_and_names_do_not_reach_the_terminal(cli: Cli, tmp_path: Path, hostile: Path) -> None:
    run = (
        "run",
        "fedmf",
        "--data",
        hostile.name,
        "--attributes",
        "items.csv",
        *PROTOCOL,
        "--rounds",
        "2",
        "--set",
        "dim=2",
        "--out",
        f"run{ESCAPE}",
    )
    done = cli(*run)
    assert done.code == 0, done.err
    assert SHOWN in harmless(done.out)
    assert SHOWN in harmless(done.err)
    for words, code in {
        ("recommend", f"run{ESCAPE}", "--user", f"u3{ESCAPE}", "-k", "3"): 0,
        ("recommend", f"run{ESCAPE}", "--user", ESCAPE): 2,
        ("recommend", f"run{ESCAPE}", "--all", "--out", f"recs{ESCAPE}.csv"): 0,
        ("compare", f"run{ESCAPE}", "--no-references"): 0,
        ("compare", f"run{ESCAPE}", "--no-references", "--format", "markdown"): 0,
        ("report", f"run{ESCAPE}"): 0,
        ("data", "show", hostile.name): 0,
        ("data", "import", hostile.name, "--name", "mine"): 0,
        ("data", "import", hostile.name, "--name", "other", "--user", ESCAPE): 2,
        ("run", ESCAPE, "--data", "synthetic"): 2,
        ("run", "fedmf", "--data", f"{ESCAPE}.csv"): 2,
        ("audit", "leak", "--train", hostile.name, "--test", hostile.name): 1,
    }.items():
        outcome = cli(*words)
        assert outcome.code == code, outcome
        assert r"\x1b]0" in harmless(outcome.out) + harmless(outcome.err), words  # narrow columns break the rest


@pytest.mark.parametrize("kind", ["", "markdown", "csv", "latex", "json"])
def test_a_received_summary_does_not_reach_the_terminal(cli: Cli, tmp_path: Path, kind: str) -> None:
    data = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1")
    assert cli("run", "popularity", *data, "--quiet", "--out", "run").code == 0
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"method": f"best{ESCAPE}"}))
    outcome = cli("compare", "run", "--no-references", *(("--format", kind) if kind else ()))
    assert outcome.code == 0
    assert r"best\u001b]0" in outcome.out if kind == "json" else f"best{SHOWN}" in outcome.out
    harmless(outcome.out)
    if kind == "json":  # which has its own way to write them
        assert json.loads(outcome.out)["rows"][0]["method"].startswith(f"best{ESCAPE}")


def test_pages_hold_names_as_text(cli: Cli, tmp_path: Path, hostile: Path) -> None:
    run = (
        "run",
        "fedmf",
        "--data",
        hostile.name,
        "--attributes",
        "items.csv",
        *PROTOCOL,
        "--rounds",
        "2",
        "--set",
        "dim=2",
        "--out",
        "<script>alert(2)</script>",
        "--quiet",
    )
    assert cli(*run).code == 0
    page = next(tmp_path.rglob("report.html")).read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    path = next(tmp_path.rglob("summary.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": f"best{ESCAPE}<b>"}))
    figure = ("report", next(tmp_path.rglob("report.html")).parent, "--figure", "activity", "--set", "metric=ndcg@3")
    assert cli(*figure, "--out", "figure.svg").code == 0
    assert cli(*figure, "--out", "figure.html").code == 0
    ET.fromstring((tmp_path / "figure.svg").read_text())
    assert "<script" not in (tmp_path / "figure.html").read_text()


def test_a_table_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(["a\nb"], [["one\ntwo\tthree"], ["\u202eback"]])
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == [r"a\nb", r"one\ntwo\tthree", r"\u202eback"]


def test_what_is_written_out() -> None:
    assert visible("a\x1b[31m\x9b\x00\x7f\ud800\u202e\u2028") == r"a\x1b[31m\x9b\x00\x7f\ud800\u202e\u2028"
    assert visible("naïve 日本 שלום\u200f – 😀\tone\ntwo") == "naïve 日本 שלום\u200f – 😀\tone\ntwo"
    assert visible_line("one\ttwo\nthree") == r"one\ttwo\nthree"
