"""Files and flags of people in a hurry: one line says what is wrong and what to do, or it simply works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from conftest import Cli
from fedrec.data import read_table
from fedrec.data.dates import parse_dates
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Listener, execute


def rows(users: int = 24, items: int = 60, each: int = 14) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(0)
    return [(user, item, time) for user in range(users) for time, item in enumerate(rng.permutation(items)[:each])]


def write(path: Path, lines: list[str], encoding: str = "utf-8", header: str = "user,item,timestamp") -> Path:
    path.write_bytes(("\n".join([header, *lines]) + "\n").encode(encoding))
    return path


PLAIN = [f"{user},{item},{time}" for user, item, time in rows()]


@pytest.mark.parametrize("word", ["nan", "NULL", "None", "NaN", "<NA>"])
@pytest.mark.parametrize("role", ["user", "item"])
def test_what_stands_for_a_missing_value_is_nobody(cli: Cli, tmp_path: Path, word: str, role: str) -> None:
    cells = {"user": f"{word},3,1", "item": f"3,{word},1"}
    write(tmp_path / "logs.csv", [*PLAIN, cells[role]])
    outcome = cli("run", "popularity", "--data", "logs.csv", "--out", "run")
    assert outcome.code == 2
    assert f"line {len(PLAIN) + 2}, column {role}: '{word}' is not an id: it stands for a missing value" in outcome.err


@pytest.mark.parametrize("header", ["user,item,item,timestamp", "user,user,item,timestamp"])
def test_a_column_that_is_there_twice(cli: Cli, tmp_path: Path, header: str) -> None:
    write(tmp_path / "logs.csv", [f"{user},{item},{item + 1},{time}" for user, item, time in rows()], header=header)
    outcome = cli("run", "popularity", "--data", "logs.csv", "--out", "run")
    assert outcome.code == 2
    twice = max(header.split(","), key=header.split(",").count)
    assert f"has two columns '{twice}'; rename one, or choose by number" in outcome.err
    assert cli("data", "import", "logs.csv", "--name", "mine", "--user", 1, "--item", 3, "--timestamp", 4).code == 0


def test_another_column_may_be_there_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "logs.csv", [f"{u},{i},a,b" for u, i, _ in rows()], header="user,item,note,note")
    assert read_table(path)[0].n_users == 24


DATES = [
    "2024-01-31",
    "2024-01-31T10:00:00Z",
    "2024-01-31 10:00",
    "2024-01-31T12:00:00.250+02:00",
    "31.01.2024 13:45",
    "31 Jan 2024",
    "January 31, 2024",
    "2024/01/31 10:00:01",
]
MOMENTS = [
    "2024-01-31 00:00",
    "2024-01-31 10:00",
    "2024-01-31 10:00",
    "2024-01-31 10:00:00.250",
    "2024-01-31 13:45",
    "2024-01-31 00:00",
    "2024-01-31 00:00",
    "2024-01-31 10:00:01",
]


def test_dates_in_several_formats_are_the_moments_they_say(tmp_path: Path) -> None:
    path = write(tmp_path / "logs.csv", [f'{n},{n},"{date}"' for n, date in enumerate(DATES)])
    found = read_table(path)[0].timestamp
    assert found is not None
    assert (found.astype("datetime64[us]") == np.array(MOMENTS, dtype="datetime64[us]")).all()


@pytest.mark.parametrize(
    ("some", "read"),
    [
        (["13/02/2024", "01/02/2024"], ["2024-02-13", "2024-02-01"]),
        (["02/13/2024", "01/02/2024 10:30"], ["2024-02-13 00:00", "2024-01-02 10:30"]),
    ],
)
def test_slashes_are_read_where_the_column_says_which_part_is_the_day(some: list[str], read: list[str]) -> None:
    found = parse_dates(pl.Series("timestamp", some)).to_numpy()
    assert (found == np.array(read, dtype="datetime64[us]")).all()


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (["01/02/2024", "03/04/2024"], "column timestamp: dates such as 01/02/2024 are ambiguous; write the"),
        (["13/02/2024", "02/13/2024"], "are ambiguous"),
        (["12", "2024-01-31"], "line 2, column timestamp: '12' is not a time (a number, or a date such as 2024-01-31)"),
        (["2024-01-31", "12"], "line 3, column timestamp: '12' is not a time (a number, or a date such as 2024-01-31)"),
        (["2024-01-31", "soon"], "line 3, column timestamp: 'soon' is not a time"),
        (["2024-01-31", ""], "line 3, column timestamp: timestamp is missing"),
    ],
)
def test_dates_that_cannot_be_put_in_order(tmp_path: Path, times: list[str], says: str) -> None:
    path = write(tmp_path / "logs.csv", [f"{n},{n},{time}" for n, time in enumerate(times)])
    with pytest.raises(FedrecError) as wrong:
        read_table(path)
    assert says in str(wrong.value)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([f"a,{n},{n}" for n in range(30)], "has a single user with at least 10 different items, so there is nobody"),
        ([f"a,1,{n}" for n in range(15)], "at least 10 different items: the most is 1 (repeats count once); add users"),
        ([f"a,{n},{n}" for n in range(8)], "the most is 8 (repeats count once); lower the minimum, for instance with"),
    ],
)
def test_too_little_to_learn_from(cli: Cli, tmp_path: Path, lines: list[str], says: str) -> None:
    write(tmp_path / "logs.csv", lines)
    outcome = cli("run", "popularity", "--data", "logs.csv", "--out", "run")
    assert outcome.code == 2
    assert says in outcome.err


@pytest.mark.parametrize("name", ["logs", "./logs"])
def test_a_folder_is_not_data(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "logs").mkdir()
    outcome = cli("run", "popularity", "--data", name, "--out", "run")
    assert (outcome.code, outcome.err) == (
        2,
        "error: logs is a folder; give the file in it that has the interactions\n",
    )
    write(tmp_path / "logs" / "may.csv", PLAIN)
    assert "interactions, e.g. logs/may.csv" in cli("data", "show", name).err


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le-mark", "utf-8-sig"])
def test_text_of_spreadsheets_is_read(tmp_path: Path, encoding: str) -> None:
    path = write(
        tmp_path / "logs.csv", [f"ü{user},{item},{time}" for user, item, time in rows()], encoding.removesuffix("-mark")
    )
    if encoding.endswith("-mark"):
        path.write_bytes(b"\xff\xfe" + path.read_bytes())
    assert "ü3" in read_table(path)[0].user_ids


def test_half_a_utf16_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs.csv").write_bytes(b"\xff\xfeu\x00s")
    with pytest.raises(FedrecError, match=r"save the file as UTF-8|fewer than two columns"):
        read_table(tmp_path / "logs.csv")
    (tmp_path / "odd.csv").write_bytes(b"\xff\xfe\x00\xd8u")
    with pytest.raises(FedrecError, match="starts like UTF-16 text but is not; save the file as UTF-8"):
        read_table(tmp_path / "odd.csv")


def test_json_lines_are_read(cli: Cli, tmp_path: Path) -> None:
    lines = [
        json.dumps({"when": f"2024-01-{time + 1:02d}", "movie_id": f'a "{item}"', "user_id": user, "tags": ["x"]})
        for user, item, time in rows()
    ]
    (tmp_path / "logs.jsonl").write_text("\n".join(lines) + "\n")
    outcome = cli("data", "import", "logs.jsonl", "--name", "mine", "--timestamp", "when")
    assert outcome.code == 0, outcome.err
    assert "logs.jsonl read as JSON Lines: user = column user_id, item = column movie_id" in outcome.out
    table = read_table(tmp_path / "logs.jsonl", {"timestamp": "when"})[0]
    assert table.user_ids.tolist() == list(range(24))
    assert 'a "3"' in table.item_ids
    (tmp_path / "bad.jsonl").write_text('{"user": 1, "item": 2}\n{"user": 1,\n')
    outcome = cli("run", "popularity", "--data", "bad.jsonl")
    assert outcome.code == 2
    assert 'line 2: not a JSON object; write one such as {"user": 1, "item": 2} on each line' in outcome.err


def test_a_metric_that_is_none_is_named_as_it_was_written(cli: Cli) -> None:
    outcome = cli("run", "fedmf", "--protocol", "honest,metrics=foo+bar")
    assert outcome.code == 2
    assert outcome.err.startswith("error: unknown metric 'foo'; known: coverage")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--memory", "1K"), "memory '1K' is too little for training; write at least 16M"),
        (("--seed", "1.5"), "Invalid value for '--seed': write a whole number"),
        (("--participation", "half"), "Invalid value for '--participation': write a number"),
    ],
)
def test_flags_that_hold_no_number(cli: Cli, words: tuple[str, ...], says: str) -> None:
    outcome = cli("run", "fedmf", "--data", "synthetic", *words)
    assert (outcome.code, outcome.err) == (2, f"error: {says}\n")


def test_escapes_in_ids_reach_no_terminal(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "logs.csv", [f"\x1b[31mu{user},\x1b]0;i{item}\x07,{time}" for user, item, time in rows()])
    execute(RunConfig("fedmf", data=str(tmp_path / "logs.csv"), rounds=1, params={"dim": 4}), tmp_path / "run")
    shown = [
        cli("data", "show", "logs.csv"),
        cli("recommend", "run", "--user", "\x1b[31mu3"),
        cli("recommend", "run", "--user", "\x1b[31mnobody"),
        cli("similar", "run", "--item", "\x1b]0;i3\x07"),
        cli("similar", "run", "--item", "\x1b]0;none"),
    ]
    assert [outcome.code for outcome in shown] == [0, 0, 2, 0, 2]
    for outcome in shown:
        assert "\x1b" not in outcome.out + outcome.err
        assert "\x07" not in outcome.out + outcome.err
    assert r"\x1b[31mu3" in shown[1].out


def test_a_page_is_written_whoever_stops_reading(tmp_path: Path) -> None:
    write(tmp_path / "logs.csv", PLAIN)
    command = f"{sys.executable} -m fedrec data show logs.csv --out page.html | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert "</html>" in (tmp_path / "page.html").read_text()


class Removing(Listener):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def round(self, log: object, score: object, progress: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_folder_that_is_removed_while_its_run_goes_on(tmp_path: Path, rounds: int) -> None:
    write(tmp_path / "logs.csv", PLAIN)
    config = RunConfig("fedmf", data=str(tmp_path / "logs.csv"), rounds=rounds, params={"dim": 4})
    with pytest.raises(FedrecError, match="was removed or emptied while its run was under way"):
        execute(config, tmp_path / "run", listener=Removing(tmp_path / "run"))
    assert not (tmp_path / "run").exists(), "nothing is made anew"
