"""`fedrec fit --from` with a day's new rows: they are joined with the log that the model was fitted to."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrec
from conftest import Cli
from fedrec.data import stored
from fedrec.experiment import checkpoint
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.log import read_log
from fedrec.experiment.opening import open_model
from fedrec.federation.simulator import Simulator
from fedrec.serve import Recommender

from . import SMALL
from .test_kept import published

DELTA = ("newcomer,i1,99", "newcomer,i2,98", "u1,brand-new,99")
SETTINGS: dict[str, dict[str, Any]] = {"fedmf": {"rounds": 4, "dim": 4}, "fedgram": {}}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write("delta.csv", *rows)`: a file with a header, in the folder of the test."""

    def written(name: str, *rows: str, header: str = "user,item,timestamp") -> Path:
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    return written


@pytest.fixture
def rows() -> list[str]:
    """Twenty users with 14 items, ten with 3."""
    rng = np.random.default_rng(0)
    return [
        f"u{user},i{item},{time}"
        for user in range(30)
        for time, item in enumerate(rng.permutation(50)[: 14 if user < 20 else 3].tolist())
    ]


@pytest.fixture
def log(write: Write, rows: list[str]) -> Path:
    return write("logs.csv", *rows)


def tables(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(RunFolder(folder).best)[0]


def same_tables(one: Path, two: Path) -> bool:
    first, second = tables(one), tables(two)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def fitted(cli: Cli, method: str, data: object) -> None:
    """The run `r` and the model `m`."""
    fedrec.run(method, str(data), out=Path("r"), **SETTINGS[method])
    outcome = cli("fit", "r", "--out", "m", "-q")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("method", SETTINGS)
def test_new_rows_are_joined_with_the_log_of_the_model(cli: Cli, log: Path, write: Write, method: str) -> None:
    fitted(cli, method, log)
    write("delta.csv", *DELTA)
    outcome = cli("fit", "--from", "m", "--data", "delta.csv", "--out", "m2", "-q")
    assert outcome.code == 0, outcome.err
    assert "fitted to all 313 interactions of 31 users and 51 items\n" in outcome.out
    assert "delta.csv: 3 new rows joined with 310; 0 were already there\n" in outcome.out
    assert "new users: 1, new items: 1\n" in outcome.out
    recommender = Recommender(Path("m2"))
    assert len(recommender.for_user("u3")) == 10, "somebody the new rows do not speak of"
    assert {rec.served for rec in recommender.for_user("newcomer")} == {"trained"}
    assert "brand-new" in {rec.item for rec in recommender.for_user("u3", 37)}
    assert "brand-new" not in {rec.item for rec in recommender.for_user("u1", 36)}
    assert json.loads(Path("m2/fit.json").read_text())["log"] == {"before": 310, "new": 3, "there": 0, "repeated": 0}


@pytest.mark.parametrize("method", SETTINGS)
def test_joined_rows_are_those_of_the_whole_log(
    cli: Cli, log: Path, rows: list[str], write: Write, method: str
) -> None:
    """The same numbers, bit by bit, and a longer log counts its old rows once."""
    fitted(cli, method, log)
    write("delta.csv", *DELTA)
    write("longer.csv", *rows, *DELTA)
    for name, words in {
        "joined": ("delta.csv",),
        "longer": ("longer.csv",),
        "whole": ("longer.csv", "--replace"),
    }.items():
        outcome = cli("fit", "--from", "m", "--out", name, "-q", "--data", *words)
        assert outcome.code == 0, outcome.err
        if name == "longer":
            assert "longer.csv: 3 new rows joined with 310; 310 were already there\n" in outcome.out
        if name == "whole":
            assert "longer.csv is the whole log and drops nothing of the earlier one\n" in outcome.out
    assert same_tables(Path("joined"), Path("whole"))
    assert same_tables(Path("longer"), Path("whole"))
    assert not same_tables(Path("joined"), Path("m"))


@pytest.mark.parametrize("method", SETTINGS)
def test_one_delta_follows_another(cli: Cli, log: Path, rows: list[str], write: Write, method: str) -> None:
    fitted(cli, method, log)
    write("monday.csv", *DELTA[:2])
    write("tuesday.csv", DELTA[1], DELTA[2])
    assert cli("fit", "--from", "m", "--data", "monday.csv", "--out", "m2", "-q").code == 0
    log.unlink()
    outcome = cli("fit", "--from", "m2", "--data", "tuesday.csv", "--out", "m3", "-q")
    assert outcome.code == 0, outcome.err
    assert "tuesday.csv: 1 new row joined with 312; 1 was already there\n" in outcome.out
    assert "of 31 users and 51 items\n" in outcome.out
    write("longer.csv", *rows, *DELTA)
    assert cli("fit", "--from", "m2", "--data", "longer.csv", "--replace", "--out", "whole", "-q").code == 0
    assert same_tables(Path("m3"), Path("whole"))


def test_a_run_on_a_named_data_set_is_continued_too(cli: Cli, write: Write) -> None:
    """Its log is read again by name; so it is without --data, from a run and from a model."""
    fitted(cli, "fedmf", SMALL)
    data = fedrec.load(SMALL)
    assert data.timestamp is not None
    write("delta.csv", f"1000,1,{data.timestamp.max()}", f"1,2000,{data.timestamp.max()}")
    for source in ("r", "m"):
        outcome = cli("fit", "--from", source, "--data", "delta.csv", "--out", f"{source}2", "-q")
        assert outcome.code == 0, outcome.err
        assert f"delta.csv: 2 new rows joined with {len(data):,}; 0 were already there\n" in outcome.out
        assert f"of {data.n_users + 1} users and {data.n_items + 1} items\n" in outcome.out
    outcome = cli("fit", "--from", "m", "--data", SMALL, "--out", "again", "-q")
    assert f"0 new rows joined with {len(data):,}; {len(data):,} were already there\n" in outcome.out
    outcome = cli("fit", "--from", "m2", "--out", "more", "-q")
    assert outcome.code == 0, outcome.err
    assert f"delta.csv: 0 new rows joined with {len(data) + 2:,}; 2 were already there\n" in outcome.out


def test_what_a_whole_log_lacks_is_said_before_and_after(cli: Cli, log: Path, rows: list[str], write: Write) -> None:
    fitted(cli, "fedmf", log)
    write("less.csv", *rows[:28])
    outcome = cli("fit", "--from", "m", "--data", "less.csv", "--replace", "--out", "m2")
    assert outcome.code == 0, outcome.err
    items = len({row.split(",")[1] for row in rows}) - len({row.split(",")[1] for row in rows[:28]})
    told = f"less.csv is the whole log and drops 28 users, {items} items and 282 rows of the earlier one\n"
    assert told in outcome.out
    assert f"note: {told}" in outcome.err
    about = json.loads(Path("m2/fit.json").read_text())
    assert about["dropped"] == {"users": 28, "items": items, "rows": 282}
    assert about["dataset"]["users"] == 2
    assert told in cli("fit", "r", "--data", "less.csv", "--out", "afresh", "-q").out, "settings of r, and other rows"


def test_a_file_that_was_overwritten_drops_nobody(cli: Cli, log: Path, rows: list[str], write: Write) -> None:
    """The data of the model is where it was, but holds the new rows alone."""
    fitted(cli, "fedmf", log)
    write("logs.csv", *DELTA)
    outcome = cli("fit", "--from", "m", "--out", "m2", "-q")
    assert outcome.code == 0, outcome.err
    assert "logs.csv: 3 new rows joined with 310; 0 were already there\n" in outcome.out
    again = cli("fit", "m", "--out", "afresh", "-q")
    assert "of 31 users and 51 items\n" in again.out
    refused = cli("fit", "--from", "r", "--out", "m3", "-q")
    assert (refused.code, refused.err.count("\n"), Path("m3").exists()) == (2, 1, False)
    assert "logs.csv lacks 29 users, 48 items and 310 rows that r was trained on" in refused.err
    assert "--replace" in refused.err
    log.unlink()
    alone = cli("fit", "--from", "m", "--out", "m4", "-q")
    assert alone.code == 0, alone.err
    assert "logs.csv is no longer there: fitted to the 310 rows that are kept with the model\n" in alone.out


def test_an_earlier_model_without_a_log_drops_nobody(cli: Cli, log: Path, rows: list[str], write: Write) -> None:
    """Its data is read again where that still holds all its rows; otherwise one line says what to do."""
    fitted(cli, "fedmf", log)
    write("delta.csv", *DELTA)
    RunFolder(Path("m")).interactions.unlink()
    words = ("fit", "--from", "m", "--data", "delta.csv", "-q")
    outcome = cli(*words, "--out", "m2")
    assert outcome.code == 0, outcome.err
    assert "delta.csv: 3 new rows joined with 310; 0 were already there\n" in outcome.out
    write("logs.csv", *rows[14:])
    refused = cli(*words, "--out", "m3")
    assert (refused.code, refused.err.count("\n"), Path("m3").exists()) == (2, 1, False)
    assert "logs.csv lacks 1 user and 14 rows that m was trained on" in refused.err
    log.unlink()
    refused = cli(*words, "--out", "m3")
    assert (refused.code, refused.err.count("\n"), Path("m3").exists()) == (2, 1, False)
    assert "m keeps no log, and its data is no longer at" in refused.err
    assert "give the whole log, old rows and new ones, with --data FILE --replace" in refused.err
    write("longer.csv", *rows, *DELTA)
    whole = cli("fit", "--from", "m", "--data", "longer.csv", "--replace", "--out", "m3", "-q")
    assert whole.code == 0, whole.err
    assert "longer.csv is the whole log and drops nothing of the earlier one\n" in whole.out


def test_the_log_is_its_owners_alone_and_whole(cli: Cli, log: Path, write: Write) -> None:
    """Ratings below the threshold are in it, too: the next fit may join and filter as for any log."""
    write(
        "rated.csv",
        *(f"u{user},i{(user + item) % 9},{1 + item % 5},{item}" for user in range(9) for item in range(6)),
        header="user,item,rating,timestamp",
    )
    fedrec.run(
        "fedmf",
        "rated.csv",
        out=Path("r"),
        protocol="honest,min_rating=3,min_interactions=3,ks=2,select_metric=ndcg@2",
        rounds=1,
        dim=4,
    )
    assert cli("fit", "r", "--out", "m", "-q").code == 0
    file = RunFolder(Path("m")).interactions
    assert os.name == "nt" or stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = read_log(RunFolder(Path("m")))
    assert kept is not None
    assert kept.rating is not None
    assert (len(kept), kept.rating.min(), kept.time) == (54, 1.0, "real")
    write("delta.csv", "u0,i8,5,7", "u0,i7,1,8", "u0,i0,5,9", "critic,i1,1,9", header="user,item,rating,timestamp")
    outcome = cli("fit", "--from", "m", "--data", "delta.csv", "--out", "m2", "-q")
    assert "delta.csv: 4 new rows joined with 54; 0 were already there\n" in outcome.out
    assert len(open_model(Path("m2")).run.prepared.split.train) == 9 * 3 + 2, "i7 is disliked, and i0 now liked"
    assert not {"i7", "i8"} & {rec.item for rec in Recommender(Path("m2")).for_user("u0", 1)}
    assert {rec.served for rec in Recommender(Path("m2")).for_user("critic", 1)} == {"popularity"}


def test_a_damaged_log_is_named(cli: Cli, log: Path, write: Write) -> None:
    fitted(cli, "fedmf", log)
    write("delta.csv", *DELTA)
    file = RunFolder(Path("m")).interactions
    whole = file.read_bytes()
    at = whole.index(b"rows.item.npy") + 200
    for content in (b"", b"PK", whole[:-200], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
        file.write_bytes(content)
        refused = cli("fit", "--from", "m", "--data", "delta.csv", "--out", "m2", "-q")
        assert (refused.code, refused.err.count("\n"), Path("m2").exists()) == (2, 1, False)
        assert "log.npz is damaged" in refused.err
        assert "--replace" in refused.err
    whole_log = cli("fit", "--from", "m", "--data", log, "--replace", "--out", "m2", "-q")
    assert whole_log.code == 0, whole_log.err
    file.unlink()
    file.symlink_to(RunFolder(Path("m2")).interactions.resolve())
    refused = cli("fit", "--from", "m", "--data", "delta.csv", "--out", "m3", "-q")
    assert (refused.code, "m/log.npz is a link" in refused.err) == (2, True)


def test_an_interrupted_join_goes_on_as_told(
    cli: Cli, log: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(cli, "fedmf", log)
    write("delta.csv", *DELTA)
    words = ("fit", "--from", "m", "--data", "delta.csv", "-q", "--rounds", 4)
    assert cli(*words, "--out", "whole").code == 0
    rounds, done = Simulator.begin, list[int]()

    def stopped(self: Simulator, number: int, *rest: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(number)
        return rounds(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "begin", stopped)
        assert cli(*words, "--out", "m2").code == 130
    again = cli(*words, "--out", "m2", "--resume")
    assert again.code == 0, again.err
    assert same_tables(Path("m2"), Path("whole"))
    assert RunFolder(Path("m2")).interactions.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("r", "--data", "delta.csv", "--replace"), "--replace goes with --from"),
        (("--from", "m", "--replace"), "--replace needs --data FILE"),
    ],
)
def test_what_is_replaced_must_be_said(cli: Cli, log: Path, write: Write, words: tuple[str, ...], told: str) -> None:
    write("delta.csv", *DELTA)
    fitted(cli, "fedmf", log)
    outcome = cli("fit", *words, "--out", "m2")
    assert (outcome.code, told in outcome.err, Path("m2").exists()) == (2, True, False)


def test_titles_and_attributes_stay(cli: Cli, log: Path, write: Write) -> None:
    """Those of an item file, of the old rows and of the new ones; also where the item file is gone."""
    write("items.csv", *(f"i{item},Item {item}" for item in range(50)), header="item,title")
    outcome = cli(
        "run", "fedmf", "--data", log, "--attributes", "items.csv", "--rounds", 2, "--set", "dim=4", "--out", "r", "-q"
    )
    assert outcome.code == 0, outcome.err
    assert cli("fit", "r", "--out", "m", "-q").code == 0
    write("delta.csv", *(f"{row},New one" for row in DELTA), header="user,item,timestamp,item_title")
    for name in ("m2", "m3"):
        outcome = cli("fit", "--from", "m", "--data", "delta.csv", "--out", name, "-q")
        assert outcome.code == 0, outcome.err
        recommender = Recommender(Path(name))
        titles = {rec.item: rec.title for rec in recommender.for_user("u3", 37)}
        assert titles["i7" if "i7" in titles else "i8"] in ("Item 7", "Item 8")
        (Path("items.csv")).unlink(missing_ok=True)
    assert titles["brand-new"] == "New one"
    outcome = cli("fit", "--from", "m3", "--data", log, "--replace", "--out", "m4", "-q")
    assert outcome.code == 0, outcome.err
    assert Recommender(Path("m4")).titles.tolist() == [f"Item {name[1:]}" for name in Recommender(Path("m4")).item_ids]


def test_a_split_of_ones_own_takes_new_rows(cli: Cli, log: Path, write: Write) -> None:
    assert cli("data", "split", log, "--out", "parts").code == 0
    parts = [word for name in ("train", "valid", "test") for word in (f"--{name}", f"parts/{name}.csv")]
    assert cli("run", "fedmf", *parts, "--rounds", 1, "--set", "dim=4", "--out", "r", "-q").code == 0
    write("delta.csv", *DELTA)
    for source, out in (("r", "m"), ("m", "m2")):
        outcome = cli("fit", "--from", source, "--data", "delta.csv", "--out", out, "-q")
        assert outcome.code == 0, outcome.err
        assert "of 21 users and 51 items\n" in outcome.out
    assert cli("fit", "r", "--out", "afresh", "-q").code == 0
    shutil.rmtree("parts")
    outcome = cli("fit", "--from", "afresh", "--data", "delta.csv", "--out", "m3", "-q")
    assert "delta.csv: 3 new rows joined with 280; 0 were already there\n" in outcome.out
    outcome = cli("fit", "--from", "afresh", "--out", "m4", "-q")
    assert "train.csv is no longer there: fitted to the 280 rows that are kept with the model\n" in outcome.out


def test_a_published_split_takes_no_new_rows(
    cli: Cli, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with clients, to which nobody else belongs."""
    monkeypatch.setattr(stored, "_STORED", (*stored.list_published_splits(), published(tmp_path / "data" / "pub", 300)))
    monkeypatch.setenv("FEDREC_DATA", str(tmp_path / "data"))
    fitted(cli, "fedgram", "pub:clients")
    assert cli("fit", "--from", "m", "--out", "more", "-q").code == 0
    write("delta.csv", "1,2", header="user,item")
    refused = cli("fit", "--from", "m", "--data", "delta.csv", "--out", "m2", "-q")
    assert (refused.code, refused.err.count("\n"), Path("m2").exists()) == (2, 1, False)
    assert "pub:clients is a published split with clients of its own" in refused.err
