"""Companies as they come: a file each, or a column; whose users are whose, and who gains by joining."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from conftest import Cli
from fedrec.data import load, partition_by_company, read_table
from fedrec.data.companies import read_companies
from fedrec.errors import FedrecError

HEADER = "user,item,timestamp"


def rows_of(seed: int, users: int = 20) -> list[str]:
    draw = random.Random(seed)
    return [f"{user},{item},{n}" for user in range(users) for n, item in enumerate(draw.sample(range(60), 14))]


@pytest.fixture
def companies(tmp_path: Path) -> Path:
    """Three files of companies whose users have the same numbers, and one file with all of them and a column."""
    every = []
    for seed, name in enumerate(("north", "south", "west")):
        rows = rows_of(seed, 20 + seed)
        (tmp_path / f"{name}.csv").write_text("\n".join([HEADER, *rows]) + "\n")
        every += [f"{row},{name}" for row in rows]
    (tmp_path / "all.csv").write_text("\n".join([f"{HEADER},company", *every]) + "\n")
    return tmp_path


FILES = ("--data", "north.csv", "--data", "south.csv", "--data", "west.csv", "--silos", "files")


def test_a_file_for_each_company(companies: Path) -> None:
    data = read_companies([str(companies / f"{name}.csv") for name in ("north", "south", "west")])
    assert data.n_users == 20 + 21 + 22
    assert "south:3" in data.user_ids.tolist()
    partition, names = partition_by_company(data)
    assert names == ("north", "south", "west")
    assert partition.sizes().tolist() == [20, 21, 22]
    owners = {
        names[client] for client, user in zip(partition.client_of(), data.user_ids, strict=True) if "west:" in user
    }
    assert owners == {"west"}


def test_ids_that_nobody_shares_stay_as_they_are(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        (tmp_path / f"{name}.csv").write_text(f"{HEADER}\n" + "".join(f"{first + n},{n},1\n" for n in range(5)))
    data = load(f"{tmp_path / 'a.csv'};{tmp_path / 'b.csv'}")
    assert data.user_ids.tolist() == [*range(5), *range(100, 105)]
    assert data.silos is not None
    assert data.silos["103"] == "b"


def test_a_column_is_the_same_as_files(companies: Path) -> None:
    data, _ = read_table(companies / "all.csv", {"silo": "company"})
    files = read_companies([str(companies / f"{name}.csv") for name in ("north", "south", "west")])
    assert data.silos == files.silos
    assert sorted(data.user_ids.tolist()) == sorted(files.user_ids.tolist())


def test_runs_by_files_and_by_a_column_give_the_same_figures(cli: Cli, companies: Path) -> None:
    by_files = cli("run", "fedgram", *FILES, "--out", "files", "-q")
    assert by_files.code == 0, by_files.err
    assert "63 users, 60 items, 882 interactions, 3 clients" in by_files.out
    by_column = cli("run", "fedgram", "--data", "all.csv", "--silo-column", "company", "--out", "column", "-q")
    assert by_column.code == 0, by_column.err
    figures = [
        outcome.out.split("metric")[1].split(" s training")[0].rsplit("\n", 1)[0] for outcome in (by_files, by_column)
    ]
    assert figures[0] == figures[1]
    again = cli("run", "--resume", "--out", "files", "-q")
    assert again.code == 0, again.err


def test_who_gains_by_joining(cli: Cli, companies: Path) -> None:
    for method, more in (("fedgram", ()), ("local", ("--backbone", "mf", "--rounds", "3"))):
        ran = cli("run", method, *more, *FILES, "--out", method, "-q")
        assert ran.code == 0, ran.err
    table = cli("compare", "fedgram", "local", "--no-references", "--groups", "silo")
    assert "north (20)" in table.out
    assert "west (22)" in table.out
    figure = cli("report", "fedgram", "local", "--figure", "joining", "--out", "joining.html")
    assert figure.code == 0, figure.err
    page = (companies / "joining.html").read_text()
    assert "of 3 gain by joining (fedgram)" in page
    alone = cli("report", "fedgram", "--figure", "joining", "--out", "x.html")
    assert (alone.code, "give a run and a run of local" in alone.err) == (2, True)


def test_a_model_of_companies_is_fitted_and_serves_each_user(cli: Cli, companies: Path) -> None:
    assert cli("run", "fedgram", *FILES, "--out", "run", "-q").code == 0
    fitted = cli("fit", "run", "--out", "fitted", "-q")
    assert fitted.code == 0, fitted.err
    lists = cli("recommend", "fitted", "--user", "south:3", "-k", "2")
    assert lists.code == 0, lists.err
    assert lists.out.count("south:3") == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--data", "north.csv", "--data", "south.csv"), "several files are several companies: add --silos files"),
        (("--data", "north.csv", "--silos", "files"), "--silos files needs the companies' files"),
        (("--data", "all.csv", "--silos", "column"), "--silo-column COLUMN and --silos column go together"),
        (("--data", "all.csv", "--silo-column", "firm"), "has no column 'firm'"),
        (("--data", "ml-100k", "--data", "filmtrust", "--silos", "files"), "--silos files needs the companies' files"),
    ],
)
def test_what_does_not_go_together(cli: Cli, companies: Path, words: tuple[str, ...], why: str) -> None:
    outcome = cli("run", "fedgram", *words, "--out", "run")
    assert (outcome.code, why in outcome.err) == (2, True), outcome.err


def test_a_row_without_a_company_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,company\n1,2,a\n1,3,\n2,2,b\n")
    with pytest.raises(FedrecError, match="line 3, column company"):
        read_table(path, {"silo": "company"})
    data, _ = read_table(path, {"silo": "company"}, skip_bad=True)
    assert data.bad is not None
    assert [row.problem for row in data.bad.rows] == ["no company"]


def test_other_commands_know_them_too(cli: Cli, companies: Path) -> None:
    swept = cli("sweep", "fedgram", *FILES, "--set", "l2=10,100", "--out", "sweep", "-q")
    assert swept.code == 0, swept.err
    tuned = cli("tune", "fedgram", "--data", "all.csv", "--silo-column", "company", "--trials", 1, "--out", "t", "-q")
    assert tuned.code == 0, tuned.err
    advised = cli("advise", *FILES, "--minutes", "0.02", "--out", "advice", "-q")
    assert advised.code == 0, advised.err
    assert "with only 3 members" in advised.out
