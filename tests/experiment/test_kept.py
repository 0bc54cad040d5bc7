"""The data of a run is read once; what is kept of it gives the same lists, and notices when the data has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrec
from conftest import Cli
from fedrec import data as rooms
from fedrec.data import Interactions, load, stored
from fedrec.data.table import write_csv
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.finished_run import find_runs
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import read_kept, read_prepared
from fedrec.experiment.opening import open_finished
from fedrec.experiment.prepare import Prepared, prepare_config
from fedrec.experiment.run_plan import plan_run
from fedrec.report.comparison import compare
from fedrec.report.groups import group_comparison
from fedrec.serve import Recommender

from . import SMALL

WIDE = "synthetic@users=60+items=300+interactions=1200+seed=1"
FEW: dict[str, Any] = {"rounds": 2, "params": {"dim": 4}}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read, in order: by any of the ways in which a run comes to its data."""
    found: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(rooms, name)

        def read(*words: Any, **named: Any) -> Any:
            found.append(name)
            return real(*words, **named)

        return read

    for name in ("load", "load_split", "read"):
        monkeypatch.setattr(rooms, name, counted(name))
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Users and items with names, times, and users whom a filter leaves out."""
    path = tmp_path / "own.csv"
    rows = [f"{u},{i},{t}" for u, lasts in enumerate(_orders(60, 50, 15)) for t, i in enumerate(lasts)]
    path.write_text("\n".join(["user,item,timestamp", *rows, "somebody,1,7"]) + "\n")
    return path


def _orders(users: int, items: int, each: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.permutation(items)[:each].tolist() for _ in range(users)]


def lists(folder: Path) -> list[tuple[Any, ...]]:
    return [(rec.user, rec.item, rec.rank, rec.score, rec.title) for rec in Recommender(folder).for_all(5)]


@pytest.mark.parametrize("seeds", [(), ("--seeds", "0,1,2")])
def test_a_run_and_its_report_read_the_data_once(cli: Cli, tmp_path: Path, reads: list[str], seeds: list[str]) -> None:
    outcome = cli("run", "fedmf", "--data", SMALL, "--rounds", "2", "--set", "dim=4", "--quiet", *seeds, "--out", "run")
    assert outcome.code == 0, outcome.err
    assert reads == ["load"]
    page = next((tmp_path / "run").rglob("report.html")).read_text()
    assert "held out" in page, "users are shown"
    assert "Popularity reaches" in page, "so is the reference"


def test_recommending_and_reporting_later_read_nothing(cli: Cli, table: Path, reads: list[str]) -> None:
    assert cli("run", "fedmf", "--data", table, "--rounds", "2", "--set", "dim=4", "--quiet", "--out", "run").code == 0
    del reads[:]
    for words in (
        ("recommend", "run", "--user", "3"),
        ("report", "run", "--references"),
        ("compare", "run", "--groups", "activity"),
        ("report", "run", "--figure", "embeddings"),
        ("recommend", "run", "--all", "--out", "lists.csv"),
    ):
        outcome = cli(*words)
        assert outcome.code == 0, outcome.err
    assert reads == []


@pytest.mark.parametrize(
    "config",
    [
        RunConfig("fedmf", data=SMALL, **FEW),
        RunConfig("fedmf", data=SMALL, protocol="honest,neg_pool=leaked", **FEW),
        RunConfig("fedmf", data=SMALL, protocol="honest,train_fraction=0.5", **FEW),
        RunConfig("fedavg", data=SMALL, silos="4:taste", **FEW),
        RunConfig("ease", data=SMALL),
        RunConfig("sasrec", data=SMALL, rounds=1, params={"dim": 4}),
        RunConfig("fedmf", data=SMALL, protocol="honest,split=ratio", **FEW),
        RunConfig("fedmf", data=SMALL, protocol="honest,split=global-time", **FEW),
        RunConfig("fedmf", data=WIDE, protocol="honest,candidates=sampled99", **FEW),
        RunConfig("ifedrec", data=WIDE, protocol="ifedrec,ks=3,select_metric=ndcg@3", rounds=1, params={"dim": 4}),
    ],
    ids=lambda config: f"{config.method}-{config.protocol}",
)
def test_what_is_kept_is_what_was_prepared(tmp_path: Path, config: RunConfig) -> None:
    execute(config, tmp_path / "run")
    kept = read_prepared(RunFolder(tmp_path / "run"), config)
    assert kept is not None
    run = Run(plan_run(config))
    same(kept, run.prepared)
    with_it = lists(tmp_path / "run")
    (tmp_path / "run" / "prepared.npz").unlink()
    assert lists(tmp_path / "run") == with_it, "an old run folder works as before"


def same(kept: Prepared, read: Prepared) -> None:
    """Everything but the rows of the source, ratings, and the lines in which items first appear."""
    for name in ("notes", "warm", "n_interactions", "protocol", "n_trained"):
        assert getattr(kept, name) == getattr(read, name), name
    parts = [(getattr(kept.split, name), getattr(read.split, name)) for name in ("train", "valid", "test")]
    assert (kept.dropped is None) == (read.dropped is None)
    if kept.dropped is not None and read.dropped is not None:
        parts.append((kept.dropped, read.dropped))
    for one, two in parts:
        for column in ("user", "item", "timestamp", "user_ids", "item_ids"):
            equal(getattr(one, column), getattr(two, column))
        assert one.time == two.time
    for column in ("user_ids", "item_ids"):
        equal(getattr(kept.source, column), getattr(read.source, column))
    assert kept.source.identity() == read.source.identity()
    assert [str(one) + one.remedy for one in kept.filters] == [str(one) + one.remedy for one in read.filters]
    for one, two in zip(kept.filters, read.filters, strict=True):
        equal(one.user_ids.astype(str), two.user_ids.astype(str))
    for name in ("users", "offsets"):
        equal(getattr(kept.partition, name), getattr(read.partition, name))
    for part in ("valid", "test"):
        for name in ("users", "indptr", "items", "mask_indptr", "mask_items", "candidates", "catalogue"):
            one, two = (getattr(getattr(whole, part), name, None) for whole in (kept, read))
            equal(one, two)
    assert (kept.source.info is None) == (read.source.info is None)
    if kept.source.info is not None:
        equal(kept.item_features[0], read.item_features[0])


def equal(one: Any, two: Any) -> None:
    assert (one is None) == (two is None)
    if one is not None:
        assert one.dtype.kind == two.dtype.kind
        assert np.array_equal(one, two)


def test_words_and_numbers_stay_what_they_were(tmp_path: Path, table: Path) -> None:
    """Ids, titles, tags and whom a filter left out."""
    items = tmp_path / "about.csv"
    items.write_text("item,title,tags,year\n" + "".join(f"{i},Film {i} ü,a|b{i % 3},1990\n" for i in range(50)))
    config = make_config({"method": "fedmf", "data": str(table), "attributes": str(items), **FEW})
    done = execute(config, tmp_path / "run")
    kept = read_prepared(RunFolder(tmp_path / "run"), done.config)
    assert kept is not None
    same(kept, Run(plan_run(config)).prepared)
    assert kept.source.info is not None
    assert kept.source.info.titles is not None
    assert kept.source.info.titles[0] == "Film 0 ü"
    assert {rec.served for rec in Recommender(tmp_path / "run").for_user("somebody")} == {"folded in"}
    with pytest.raises(FedrecError, match=r"'somebody' is in the data but was left out of this run"):
        Recommender(tmp_path / "run", as_tested=True).for_user("somebody")


def test_a_run_folder_outlives_its_data(cli: Cli, tmp_path: Path, table: Path) -> None:
    fedrec.run("fedmf", str(table), out=tmp_path / "run", rounds=2, dim=4)
    before = lists(tmp_path / "run")
    table.unlink()
    assert lists(tmp_path / "run") == before
    assert cli("report", "run").code == 0
    assert "held out" in (tmp_path / "run" / "report.html").read_text()
    (tmp_path / "run" / "prepared.npz").unlink()
    assert cli("recommend", "run", "--user", "3").code == 2


def test_a_table_that_was_handed_over_needs_no_file(tmp_path: Path, reads: list[str]) -> None:
    given = replace(load(SMALL), name="mine", version="v1")
    fedrec.run("fedmf", given, out=tmp_path / "run", rounds=2, dim=4)
    assert len(lists(tmp_path / "run")) == 5 * given.n_users
    assert reads == []


def test_files_that_changed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named dataset has the same version whatever is in its files."""
    folder = tmp_path / "data" / "ml-1m"
    folder.mkdir(parents=True)
    lines = [f"{u + 1}::{i + 1}::5::{t}" for u, own in enumerate(_orders(30, 60, 22)) for t, i in enumerate(own)]
    (folder / "ratings.dat").write_text("\n".join(lines) + "\n")
    (folder / "movies.dat").write_text("".join(f"{i}::Film {i} (1990)::Drama\n" for i in range(1, 61)))
    monkeypatch.setenv("FEDREC_DATA", str(tmp_path / "data"))
    fedrec.run("fedmf", "ml-1m", out=tmp_path / "run", rounds=2, dim=4)
    before = lists(tmp_path / "run")
    (folder / "movies.dat").write_text("".join(f"{i}::Movie {i} (1990)::Drama\n" for i in range(1, 61)))
    assert {rec[4][:4] for rec in lists(tmp_path / "run")} == {"Film"}, "a model serves what it was made of"
    assert open_finished(tmp_path / "run").run.prepared.source.info.titles[0].startswith("Movie"), "figures read again"
    (folder / "ratings.dat").write_text("\n".join([*lines[1:], lines[0].replace("1::", "2::", 1)]) + "\n")
    assert lists(tmp_path / "run") == before
    with pytest.raises(FedrecError, match=r"the data of .*run has changed since the run; put the old data back"):
        open_finished(tmp_path / "run")


def test_other_settings_are_not_answered_from_what_is_kept(tmp_path: Path) -> None:
    config = RunConfig("fedmf", data=SMALL, **FEW)
    execute(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert read_kept(folder, replace(config, seed=3, method="ease")) is not None
    assert read_kept(folder, replace(config, protocol="honest,neg_pool=leaked")) is None
    assert read_kept(folder, replace(config, data="synthetic")) is None


@pytest.mark.parametrize("place", [0.02, 0.3, 0.6, 0.98])
def test_a_damaged_file_is_not_believed(tmp_path: Path, place: float) -> None:
    config = RunConfig("fedmf", data=SMALL, **FEW)
    execute(config, tmp_path / "run")
    before, file = lists(tmp_path / "run"), tmp_path / "run" / "prepared.npz"
    content = bytearray(file.read_bytes())
    for at in range(int(place * len(content)), int(place * len(content)) + 3):
        content[at] ^= 0x15
    file.write_bytes(bytes(content))
    assert lists(tmp_path / "run") == before
    file.write_bytes(bytes(content[: len(content) // 2]))
    assert read_kept(RunFolder(tmp_path / "run"), config) is None
    assert lists(tmp_path / "run") == before


def test_it_is_small_and_for_its_owner_alone(tmp_path: Path) -> None:
    write_csv(load("synthetic@users=400+items=300"), tmp_path / "own.csv")
    fedrec.run("popularity", str(tmp_path / "own.csv"), out=tmp_path / "run")
    file = tmp_path / "run" / "prepared.npz"
    assert file.stat().st_size < (tmp_path / "own.csv").stat().st_size
    assert os.name == "nt" or file.stat().st_mode & 0o777 == 0o600


def test_a_published_split_keeps_its_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference beside a run that has all data in one place has the clients of the split again."""
    monkeypatch.setattr(stored, "_STORED", (*stored.list_published_splits(), published(tmp_path / "data" / "pub")))
    monkeypatch.setenv("FEDREC_DATA", str(tmp_path / "data"))
    central = RunConfig("ease", data="pub:clients")
    execute(central, tmp_path / "run")
    kept = read_prepared(RunFolder(tmp_path / "run"), central)
    assert kept is not None
    assert kept.partition.n_clients == 1
    local = RunConfig("local", data="pub:clients", **FEW)
    want = prepare_config(local, kept.protocol, centralised=False)
    assert want.partition.n_clients == 5
    equal(Run(plan_run(local, kept)).prepared.partition.users, want.partition.users)
    found = group_comparison(compare(find_runs([tmp_path / "run"])), "activity", "ndcg@10")
    assert sum(found.users) > 0


def published(folder: Path, interactions: int = 450) -> stored.StoredSplit:
    folder.mkdir(parents=True)
    whole = load(f"synthetic@users=30+items=40+interactions={interactions}")
    split = rooms.leave_one_out(whole)
    for name in ("train", "valid", "test"):
        part: Interactions = getattr(split, name)
        rows = "".join(f"{u % 5},{u},{i}\n" for u, i in zip(part.user.tolist(), part.item.tolist(), strict=True))
        (folder / f"{name}.csv").write_text("client,user,item\n" + rows)
    return stored.StoredSplit(
        "pub:clients", "pub", "train.csv", "valid.csv", "test.csv", whole.n_users, whole.n_items, "nobody", ""
    )
