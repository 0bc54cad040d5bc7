from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from fedrec.data import list_published_splits, load, load_split
from fedrec.errors import FedrecError

ROWS = {
    "ml-100k:fedcia100": (72_000, 8_000, 20_000, 100),
    "ml-100k:fedcia943": (72_000, 8_000, 20_000, 943),
    "ml-1m:fedcia100": (720_150, 80_017, 200_042, 100),
    "lastfm:fedcia100": (411_676, 41_188, 103_138, 100),
    "beauty:fedcia100": (142_921, 0, 0, 100),
    "bx:fedcia100": (347_150, 0, 0, 100),
    "citeulike-a:coldstart": (164_210, 13_037, 27_739, 5551),
}


@pytest.mark.skipif("FEDREC_DATA" not in os.environ, reason="needs real data: set FEDREC_DATA to its folder")
@pytest.mark.parametrize("name", ROWS)
def test_stored_rows_are_the_published_ones(name: str) -> None:
    split, partition = load_split(name)
    assert (len(split.train), len(split.valid), len(split.test), partition.n_clients) == ROWS[name]
    assert partition.n_users == split.train.n_users
    if partition.n_clients == 100:
        assert set(partition.sizes()[:-1]) == {partition.n_users // 100}
    if name == "citeulike-a:coldstart":
        assert not set(split.train.item) & set(split.test.item)
        assert split.train.info is not None


def test_client_column_becomes_the_partition(no_data: Path) -> None:
    users = range(943)
    lines = "".join(f"{min(u // 9, 99)},{u},{u % 5}\n" for u in users)
    (no_data / "ml-100k").mkdir(parents=True)
    for part, text in (("train", lines), ("valid", "0,3,7\n"), ("test", "0,3,3\n")):
        content = f"client,user,item\n{text}".encode()
        (no_data / "ml-100k" / f"fedcia100_{part}.csv.gz").write_bytes(gzip.compress(content))
    split, partition = load_split("ml-100k:fedcia100")
    assert partition.sizes().tolist() == [9] * 99 + [52]
    assert (len(split.train), len(split.valid), len(split.test)) == (943, 1, 1)
    assert (split.train.n_items, split.train.item_ids[0]) == (1682, 1)
    assert "1 (user, item) pairs are in both train and test" in split.notes


def test_missing_files_and_names(no_data: Path) -> None:
    for stored in list_published_splits():
        with pytest.raises(FedrecError, match=r"are missing: put .*train\.csv"):
            load_split(stored.name)
    with pytest.raises(FedrecError, match="load_split"):
        load("ml-100k:fedcia100")
    with pytest.raises(FedrecError, match="did you mean 'ml-100k:fedcia100'"):
        load_split("ml-100k:fedcia10")
