"""Files as they are: bad rows are found, counted, shown with their lines, and can be put aside."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import polars as pl
import pytest

import fedrec
from conftest import Cli
from fedrec.data import read_table
from fedrec.data.file_check import check_file
from fedrec.errors import FedrecError

DAMAGE = {
    12: ("u1,,3,2024-01-02", "no item"),
    22: ("u1,i3", "fewer than 4 cells"),
    32: ('u1,"i3,3,2024-01-02', "a quotation mark that is never closed"),
    42: ("u1,i3,x,2024-01-01", "a rating that is no number"),
    52: ("u1,i3,3,soon", "a time that cannot be read"),
    62: ("u1,i3,3,2024-01-02,9", "more than 4 cells"),
    82: ("nan,i3,3,2024-01-02", "a user that is not an id: it stands for a missing value"),
}


def good_rows() -> list[str]:
    """Some 500 rows of 40 users, whose times are written in three ways."""
    draw = random.Random(0)
    found = []
    for user in range(40):
        for day, item in enumerate(draw.sample(range(60), 14), 1):
            time = (f"2024-01-{day:02}", f"2024-01-{day:02}T10:00:00", str(1704067200 + 86400 * day))[user % 3]
            found.append(f"u{user},i{item},{draw.randint(1, 5)},{time}")
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file with one row of every damage, at the lines of `DAMAGE`."""
    rows = good_rows()
    for line, (text, _) in DAMAGE.items():
        rows[line - 2] = text
    raw = ("user,item,rating,timestamp\n" + "\n".join(rows) + "\n").encode().replace(b"u39,", b"u\xff39,", 1)
    path = tmp_path / "log.csv"
    path.write_bytes(raw)
    return path


def test_every_bad_row_is_put_aside_with_its_line_and_the_others_stay(log: Path) -> None:
    data, _ = read_table(log, skip_bad=True)
    assert data.bad is not None
    found = {row.line: row.problem for row in data.bad.rows}
    assert found == {line: problem for line, (_, problem) in DAMAGE.items()} | {548: "bytes that are not UTF-8 text"}
    assert len(data) == len(good_rows()) - len(found)
    assert data.filtered[0].rows == len(found)
    clean = log.with_name("clean.csv")
    lines = log.read_bytes().split(b"\n")
    clean.write_bytes(b"\n".join(line for number, line in enumerate(lines, 1) if number not in found))
    same, _ = read_table(clean)
    assert (same.user == data.user).all()
    assert (same.timestamp == data.timestamp).all()


def test_without_it_the_first_bad_row_is_an_error_that_names_it(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b"\xff", b""))
    with pytest.raises(FedrecError, match=r"log\.csv, line 12, column item|line 22|line 62"):
        read_table(log)


def test_a_file_of_bad_rows_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item\n,1\n,2\n")
    with pytest.raises(FedrecError, match="no row that can be used: 2 with no user"):
        read_table(path, skip_bad=True)


def test_json_lines_and_parquet(tmp_path: Path) -> None:
    rows = [{"user": n, "item": n % 7, "timestamp": n} for n in range(20)]
    lines = [json.dumps(row) for row in rows]
    lines[5] = "[1, 2]"
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    data, _ = read_table(tmp_path / "log.jsonl", skip_bad=True)
    assert [(row.line, row.problem) for row in data.bad.rows if data.bad] == [(6, "no JSON object on them")]
    users = [None if n == 3 else f"u{n}" for n in range(20)]
    pl.DataFrame({"user": users, "item": ["i"] * 20}).write_parquet(tmp_path / "log.parquet")
    data, _ = read_table(tmp_path / "log.parquet", skip_bad=True)
    assert data.bad is not None
    assert [(row.line, row.problem) for row in data.bad.rows] == [(3, "no user")]


def test_several_formats_of_time_are_one_order(tmp_path: Path) -> None:
    times = ["2024-01-01", "1704153600", "2024-01-03T00:00:00Z", "1704326400000", "05.01.2024 00:00"]
    path = tmp_path / "log.csv"
    path.write_text("user,item,time\n" + "".join(f"1,{n},{time}\n" for n, time in enumerate(times)))
    data, _ = read_table(path)
    assert data.timestamp is not None
    assert ((data.timestamp[1:] - data.timestamp[:-1]) == 86_400_000_000).all()


def test_seconds_and_milliseconds_are_one_order_and_small_numbers_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,timestamp\n1,1,1704067200000\n1,2,1704153600\n")
    data, _ = read_table(path)
    assert data.timestamp is not None
    assert data.timestamp.tolist() == [1704067200_000_000, 1704153600_000_000]
    path.write_text("user,item,timestamp\n1,1,3\n1,2,1704153600\n")
    kept, _ = read_table(path)
    assert kept.timestamp is not None
    assert kept.timestamp.tolist() == [3, 1704153600]


def test_what_a_check_says(log: Path) -> None:
    log.write_text(log.read_text("utf-8", "replace").replace("u7,", "U7,", 1).replace("�", ""))
    found = check_file(log)
    facts = dict(found.facts)
    assert facts["times"] == "2024-01-01 00:00 to 2024-01-15 00:00 (UTC)"
    assert facts["rows"] == "560, of which 553 can be used"
    assert ("1 row with no item", "line 12: u1,,3,2024-01-02") in found.problems
    assert any("user ids differ only in capital letters: 'U7' and 'u7'" in doubt for doubt in found.doubts)


def test_on_the_command_line(cli: Cli, log: Path, tmp_path: Path) -> None:
    checked = cli("data", "check", "log.csv", "--out", "aside.csv")
    assert checked.code == 1
    assert "1 row with fewer than 4 cells (line 22: u1,i3)" in checked.out
    with (tmp_path / "aside.csv").open(encoding="utf-8") as file:
        assert [int(row["line"]) for row in csv.DictReader(file)] == [*DAMAGE, 548]
    assert cli("run", "popularity", "--data", "log.csv", "--out", "run").code == 2
    ran = cli("run", "popularity", "--data", "log.csv", "--skip-bad", "--out", "run", "-q")
    assert ran.code == 0, ran.err
    assert "left out: 8 rows (rows that cannot be used: 1 with no item; " in ran.out
    assert len((tmp_path / "run" / "bad-rows.csv").read_text().splitlines()) == 9
    fitted = cli("fit", "run", "--out", "fitted", "-q")
    assert fitted.code == 0, fitted.err
    assert "all 552 interactions" in fitted.out


def test_a_second_import_needs_force(cli: Cli, log: Path) -> None:
    words = ("data", "import", "log.csv", "--name", "shop", "--skip-bad")
    assert cli(*words).code == 0
    refused = cli(*words)
    assert refused.code == 2
    assert "--force" in refused.err
    log.write_text("\n".join(["user,item,rating,timestamp", *good_rows()]) + "\n")
    again = cli("data", "import", "log.csv", "--name", "shop", "--force")
    assert "560 rows of 40 users" in again.out


def test_attributes_of_a_fit_and_runs_with_and_without_titles(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("\n".join(["user,item,rating,timestamp", *good_rows()]) + "\n")
    (tmp_path / "items.csv").write_text("item,title,brand\n" + "".join(f"i{n},Thing {n},b{n % 3}\n" for n in range(60)))
    words = ("--data", "log.csv", "-q")
    assert cli("run", "popularity", *words, "--out", "plain").code == 0
    assert cli("run", "fedgram", *words, "--attributes", "items.csv", "--out", "titled").code == 0
    both = cli("compare", "plain", "titled", "--no-references")
    assert both.code == 0, both.err
    (tmp_path / "new.csv").write_text("user,item,rating,timestamp\nu1,i3,5,2024-02-01\nu1,i99,5,2024-02-01\n")
    (tmp_path / "more.csv").write_text((tmp_path / "items.csv").read_text() + "i99,Thing 99,b0\n")
    fitted = cli("fit", "--from", "titled", "--data", "new.csv", "--attributes", "more.csv", "--out", "day", "-q")
    assert fitted.code == 0, fitted.err
    titles = {rec.title for rec in fedrec.Recommender(tmp_path / "day").for_user("u2", 60)}
    assert "Thing 99" in titles
