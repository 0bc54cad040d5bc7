"""A shop's own log: every command that reads it says which columns it used, and takes others by name."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import fedrec
from conftest import Cli
from fedrec.deploy.node import Settings
from fedrec.deploy.rehearsal import rehearse
from fedrec.deploy.shard import NodeData, prepare_shard
from fedrec.experiment.config import make_config
from fedrec.experiment.folder import RunFolder

NAMES = {"user": "customer_id", "item": "sku", "timestamp": "event_time"}
SAID = "user = column customer_id, item = column sku, timestamp = column event_time; not used: price, channel"
FEW = ("--rounds", 1, "--set", "dim=4")


def shop(path: Path, **names: str) -> Path:
    """24 customers with 12 items each, the later ones further down in the catalogue."""
    rng, rows = np.random.default_rng(0), []
    for customer in range(24):
        for day, sku in enumerate(sorted(rng.choice(60, 12, replace=False).tolist())):
            rows.append((f"C{customer:03}", f"S{sku:03}", f"2025-01-{day + 1:02} 10:00:00", 9.5 + sku, "web"))
    frame = pl.DataFrame(
        rng.permutation(np.array(rows)), schema=["customer_id", "sku", "event_time", "price", "channel"]
    )
    frame.rename(names).write_csv(path)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return shop(tmp_path / "shop.csv")


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "config.toml").read_text())


def test_each_command_says_which_columns_it_used(cli: Cli, tmp_path: Path, log: Path) -> None:
    run = cli("run", "fedmf", "--data", log, "--out", "run", *FEW)
    assert SAID in run.err
    assert "no times" not in run.err
    assert settings(tmp_path / "run") | {**NAMES, "rating": "none"} == settings(tmp_path / "run")
    said = [
        cli("fit", "run"),
        cli("sweep", "fedmf", "--data", log, "--set", "dim=2,4", "--rounds", 1),
        cli("data", "split", log, "--out", "parts"),
        cli("audit", "leak", "--data", log, "--quick"),
        cli("audit", "uploads", "fedmf", "--data", log, "--clients", 3),
    ]
    for outcome in said:
        assert outcome.code in (0, 1), outcome.err
        assert SAID in outcome.err
    assert SAID in cli("data", "import", log, "--name", "mine").out
    assert SAID in cli("data", "show", log).out


def test_a_node_says_it_too(cli: Cli, tmp_path: Path, log: Path) -> None:
    words = ("deploy", "node", "--data", log, "--state-dir", "state", "--ca", "no", "--key", "no", "--superlink", "x:1")
    assert SAID in cli(*words).err
    shop(tmp_path / "other.csv", event_time="moment", sku="thing")
    other = ("deploy", "node", "--data", "other.csv", *words[4:])
    assert "no column for item among customer_id, thing, moment" in cli(*other).err
    assert "item = column thing, timestamp = column moment" in cli(*other, "--item", "thing").err
    assert "has no column 'what'; it has customer_id, thing, moment" in cli(*other, "--item", "what").err


def test_a_node_keeps_its_columns_to_itself(tmp_path: Path, log: Path) -> None:
    """Nodes whose files have other columns than the server's, and than each other's, are one federation."""
    config = make_config({"method": "fedmf", "data": str(log), "timestamp": "event_time", "rounds": 1})
    terms = rehearse(config).terms
    assert b"event_time" not in terms.encode()
    own = NodeData(shop(tmp_path / "other.csv", sku="thing"), columns={"item": "thing", "timestamp": "none"})
    (tmp_path / "node").mkdir()
    Settings(own).write(tmp_path / "node")
    again = Settings.read(tmp_path / "node").own
    assert again.columns == own.columns
    prepared, unknown = prepare_shard(terms, again, RunFolder(tmp_path / "node" / "shard"))
    assert (prepared.source.n_users, prepared.source.time, unknown.rows) == (24, "none", 0)


FLAGS = ("--user", "who", "--item", "what", "--rating", "how", "--timestamp", "then")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "popularity", "--data"),
        ("sweep", "fedmf", "--rounds", 1, "--set", "dim=2,4", "--data"),
        ("tune", "fedmf", "--trials", 1, "--rounds", 1, "--data"),
        ("data", "show"),
        ("data", "import", "--name", "mine"),
        ("data", "split", "--out", "parts"),
        ("audit", "leak", "--quick", "--data"),
        ("audit", "uploads", "fedmf", "--clients", 3, "--data"),
    ],
)
def test_columns_are_named_alike_everywhere(cli: Cli, tmp_path: Path, words: tuple[object, ...]) -> None:
    shop(tmp_path / "odd.csv", customer_id="who", sku="what", event_time="then", price="how")
    assert cli(*words, "odd.csv").code == 2
    outcome = cli(*words, "odd.csv", *FLAGS)
    assert outcome.code in (0, 1), outcome.err
    said = "user = column who, item = column what, rating = column how, timestamp = column then; not used: channel"
    assert said in outcome.err + outcome.out
    shutil.rmtree(tmp_path / "cache" / "imported", ignore_errors=True)
    shutil.rmtree(tmp_path / "parts", ignore_errors=True)
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    missing = cli(*words, "odd.csv", *FLAGS[:-1], "when")
    assert missing.code == 2
    assert missing.err.endswith("odd.csv has no column 'when'; it has who, what, then, how, channel\n")


def test_a_run_goes_on_with_the_columns_that_it_used(cli: Cli, tmp_path: Path) -> None:
    """Named once; resumed, fitted, continued, repeated and served without naming them again."""
    shop(tmp_path / "odd.csv", customer_id="who", sku="what", event_time="then")
    assert cli("run", "fedmf", "--data", "odd.csv", "--user", "who", "--item", 2, "--out", "run", *FEW).code == 0
    noted = {"user": "who", "item": "2", "rating": "none", "timestamp": "then"}
    for words in (
        ("run", "--resume", "--out", "run", "--rounds", 2),
        ("run", "fedmf", "--data", "odd.csv", "--resume", "--out", "run", "--rounds", 2, "--set", "dim=4"),
        ("run", "--config", "run/config.toml", "--out", "again"),
        ("fit", "run", "--out", "fitted"),
        ("fit", "--from", "run", "--out", "warm", "--rounds", 1),
    ):
        outcome = cli(*words)
        assert outcome.code == 0, outcome.err
        folder = tmp_path / str(words[words.index("--out") + 1])
        assert settings(folder) | noted == settings(folder)
    changed = cli("run", "--resume", "--out", "run", "--timestamp", "none")
    assert "was started with other settings (timestamp)" in changed.err
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert summary["dataset"]["columns"] == {**noted, "item": "what"}


def test_a_fit_reads_another_file_with_the_same_columns_or_others(cli: Cli, tmp_path: Path, log: Path) -> None:
    assert cli("run", "fedmf", "--data", log, "--out", "run", *FEW).code == 0
    shop(tmp_path / "later.csv", event_time="moment")
    refused = cli("fit", "run", "--data", "later.csv", "--out", "fitted")
    assert refused.err.endswith("has no column 'event_time'; it has customer_id, sku, moment, price, channel\n")
    assert "timestamp = column moment" in cli("fit", "run", "--data", "later.csv", "--timestamp", "moment").err
    assert cli("data", "import", "later.csv", "--name", "later").code == 0
    outcome = cli("fit", "run", "--data", "later", "--out", "imported")
    assert outcome.code == 0, outcome.err


def test_runs_on_other_columns_share_no_table(cli: Cli, tmp_path: Path, log: Path) -> None:
    for name, when in (("timed", "event_time"), ("untimed", "none")):
        assert cli("run", "fedmf", "--data", log, "--timestamp", when, "--out", name, *FEW).code == 0
    refused = cli("compare", "timed", "untimed", "--no-references")
    assert refused.code == 2
    assert "these runs have different columns of the data" in refused.err
    assert cli("compare", "timed").code == 0


def test_a_run_of_other_rows_is_not_continued(cli: Cli, tmp_path: Path, log: Path) -> None:
    """One that recorded no columns goes on with the rows that it has kept, or not at all."""
    assert cli("run", "fedmf", "--data", log, "--out", "run", *FEW, "--timestamp", "none").code == 0
    kept = (tmp_path / "run" / "config.toml").read_text().splitlines()
    earlier = [line for line in kept if line.split(" = ")[0] not in (*NAMES, "rating")]
    (tmp_path / "run" / "config.toml").write_text("\n".join(earlier) + "\n")
    with np.load(tmp_path / "run" / "prepared.npz") as arrays:
        whole = dict(arrays)
    about = json.loads(whole["about"].tobytes())
    about["settings"] = {name: value for name, value in about["settings"].items() if name not in (*NAMES, "rating")}
    whole["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(tmp_path / "run" / "prepared.npz", **whole)
    refused = cli("run", "--resume", "--out", "run", "--rounds", 2)
    assert (refused.code, "the data of run has changed since the run" in refused.err) == (2, True), refused


def test_histories_have_the_columns_of_the_run_or_their_own(cli: Cli, tmp_path: Path) -> None:
    shop(tmp_path / "odd.csv", customer_id="who", sku="what", event_time="then")
    assert cli("run", "fedmf", "--data", "odd.csv", "--user", "who", "--item", "what", "--out", "run", *FEW).code == 0
    lists = []
    for header, flags in (
        ("who,what,then", ()),
        ("wer,was,wann", ("--user-column", "wer", "--item-column", "was", "--timestamp-column", "wann")),
    ):
        (tmp_path / "new.csv").write_text(f"{header}\nnew,S003,2025-02-02\nnew,S001,2025-02-01\n")
        outcome = cli("recommend", "run", "--history", "new.csv", *flags)
        assert outcome.code == 0, outcome.err
        user, item, time = header.split(",")
        assert f"user = column {user}, item = column {item}, timestamp = column {time}" in outcome.err
        lists.append(outcome.out)
    assert lists[0] == lists[1]
    refused = cli("recommend", "run", "--history", "new.csv", "--item-column", "sku")
    assert refused.err.endswith("new.csv has no column 'sku'; it has wer, was, wann\n")
    (tmp_path / "new.csv").write_text("a,b,wann\nnew,S003,2025-02-02\n")
    assert (
        "choose with: --user-column COLUMN --item-column COLUMN" in cli("recommend", "run", "--history", "new.csv").err
    )
    (tmp_path / "items.csv").write_text("what\nS003\n")
    assert cli("recommend", "run", "--history", "items.csv").code == 0
    assert "are those of --history FILE" in cli("recommend", "run", "--user", "C001", "--item-column", "what").err


def test_a_given_split_has_columns_too(cli: Cli, tmp_path: Path) -> None:
    for part, items in (("train", range(8)), ("valid", range(8, 9)), ("test", range(9, 10))):
        rows = "".join(f"u{user},i{(user + item) % 30},{item}\n" for user in range(12) for item in items)
        (tmp_path / f"{part}.csv").write_text(f"wer,was,then\n{rows}")
    files = ("--train", "train.csv", "--valid", "valid.csv", "--test", "test.csv")
    flags = ("--user", "wer", "--item", "was", "--timestamp", "then")
    outcome = cli("run", "popularity", *files, *flags, "--protocol", "honest,ks=5,select_metric=ndcg@5", "--out", "run")
    assert outcome.code == 0, outcome.err
    assert settings(tmp_path / "run") | {"rating": "none", "timestamp": "then"} == settings(tmp_path / "run")
    assert "no column for user" in cli("audit", "leak", *files).err
    audited = cli("audit", "leak", *files, *flags)
    assert "timestamp = column then" in audited.err
    assert "pass  split overlap" in audited.out


def test_named_data_has_no_columns_to_choose(cli: Cli) -> None:
    for words in (("run", "popularity", "--data"), ("data", "show")):
        outcome = cli(*words, "synthetic@users=30", "--timestamp", "when")
        assert outcome.code == 2
        assert "the columns of 'synthetic' are known; leave timestamp out" in outcome.err


def test_columns_are_named_in_python_too(tmp_path: Path) -> None:
    path = shop(tmp_path / "odd.csv", customer_id="who", sku="what", event_time="then")
    few: dict[str, Any] = {"rounds": 1, "dim": 4}
    for data in (path, str(path), pl.read_csv(path)):
        with pytest.raises(fedrec.FedrecError, match="no column for user and item"):
            fedrec.run("popularity", data)
        result = fedrec.run("fedmf", data, user="who", item="what", **few)
        assert result.config.timestamp == "then"
        assert fedrec.load(data, user="who", item=2, timestamp="none").timestamp is None
    with pytest.raises(fedrec.FedrecError, match="choose user where it is loaded"):
        fedrec.run("fedmf", fedrec.load(path, user="who", item="what"), user="who")
    first = fedrec.run("fedmf", path, user="who", item="what", out=tmp_path / "run", **few)
    again = fedrec.run("fedmf", path, user="who", item="what", out=tmp_path / "run", **few)
    assert first.test == again.test
