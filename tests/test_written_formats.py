"""What --out writes is what the ending of its name says, or nothing."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import polars as pl
import pytest

from conftest import Cli

DATA = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1")
COLUMNS = ["user", "item", "rank", "score", "title", "served"]
Rows = list[tuple[str, str, int, float]]


def separated(by: str) -> object:
    def read(path: Path) -> Rows:
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file, delimiter=by)
            assert lines.fieldnames == COLUMNS
            return [(line["user"], line["item"], int(line["rank"]), float(line["score"])) for line in lines]

    return read


def as_rows(records: list[dict[str, object]]) -> Rows:
    assert all(list(record) == COLUMNS for record in records)
    return [(str(r["user"]), str(r["item"]), r["rank"], r["score"]) for r in records]  # type: ignore[misc]


READERS = {
    "recs.csv": separated(","),
    "recs.tsv": separated("\t"),
    "recs.CSV": separated(","),
    "recs.json": lambda path: as_rows(json.loads(path.read_text())),
    "recs.jsonl": lambda path: as_rows([json.loads(line) for line in path.read_text().splitlines()]),
    "recs.parquet": lambda path: as_rows(pl.read_parquet(path).to_dicts()),
}


@pytest.fixture
def run(cli: Cli) -> str:
    assert cli("run", "fedmf", *DATA, "--rounds", 2, "--set", "dim=4", "--out", "run", "-q").code == 0
    return "run"


@pytest.mark.parametrize("name", READERS)
def test_recommendations_are_written_as_the_ending_says(cli: Cli, tmp_path: Path, run: str, name: str) -> None:
    from fedrec.serve import Recommender

    wanted = [(str(rec.user), str(rec.item), rec.rank, rec.score) for rec in Recommender(run).for_all(3)]
    outcome = cli("recommend", run, "--all", "-k", 3, "--out", name)
    assert (outcome.code, outcome.out) == (0, f"{name}: {len(wanted)} recommendations\n")
    found = READERS[name](tmp_path / name)  # type: ignore[operator]
    assert [row[:3] for row in found] == [row[:3] for row in wanted]
    assert [row[3] for row in found] == pytest.approx([row[3] for row in wanted], rel=1e-5)


def test_parquet_is_whole_where_it_is_written_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedrec.serve import Recommendation, list_files

    monkeypatch.setattr(list_files, "AT_ONCE", 7)
    recs = [Recommendation(f"u{n}", n, 1, n / 3, "Été" if n > 9 else None) for n in range(20)]
    assert list_files.write_recommendations(tmp_path / "r.parquet", iter(recs)) == 20
    table = pl.read_parquet(tmp_path / "r.parquet")
    assert table.schema == {
        "user": pl.String,
        "item": pl.Int64,
        "rank": pl.Int64,
        "score": pl.Float64,
        "title": pl.String,
        "served": pl.String,
    }
    assert table.rows() == [(rec.user, rec.item, rec.rank, rec.score, rec.title, rec.served) for rec in recs]


@pytest.mark.parametrize("name", READERS)
def test_nothing_to_recommend_is_an_empty_table(tmp_path: Path, name: str) -> None:
    from fedrec.serve.list_files import write_recommendations

    assert write_recommendations(tmp_path / name, iter(())) == 0
    assert READERS[name](tmp_path / name) == []  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "use"),
    [
        (("recommend", "gone", "--all", "--out", "recs.xlsx"), ".csv, .tsv, .json, .jsonl or .parquet"),
        (("recommend", "gone", "--all", "--out", "recs"), ".csv, .tsv, .json, .jsonl or .parquet"),
        (("recommend", "gone", "--user", "1", "--out", "recs.csv.gz"), ".csv, .tsv, .json, .jsonl or .parquet"),
        (("cold-add", "gone", "new.csv", "--out", "recs.txt"), ".csv, .tsv, .json, .jsonl or .parquet"),
        (("compare", "gone", "--out", "table.xlsx"), ".md, .csv, .tex or .json"),
        (("compare", "gone", "--out", "table"), ".md, .csv, .tex or .json"),
        (("compare", "gone", "--format", "yaml"), "unknown format 'yaml'"),
        (("compare", "gone", "--format", "csv", "--out", "table.json"), "json file, but --format says csv"),
        (("report", "gone", "--out", "page.pdf"), ".html"),
        (("report", "gone", "--figure", "bars", "--out", "page.gif"), ".html, .svg, .pdf or .png"),
        (("data", "show", "gone", "--out", "page.csv"), ".html"),
        (("audit", "leak", "--data", "gone", "--out", "page.txt"), ".html"),
    ],
)
def test_another_ending_is_refused_before_any_work(cli: Cli, tmp_path: Path, words: tuple[str, ...], use: str) -> None:
    """Before anything is read: what is named does not even exist."""
    outcome = cli(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert use in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_is_named_needs_no_ending(cli: Cli, tmp_path: Path, run: str) -> None:
    for name in ("table.txt", "table", "table.csv"):
        assert cli("compare", run, "--no-references", "--format", "csv", "--out", name).code == 0
        assert (tmp_path / name).read_text().startswith("data,protocol,part,method,seeds,")
