"""Archives that hold little and unpack to a lot are refused before they fill the memory or the disk."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from conftest import Cli
from fedrec.data import fetch, load, load_split, unpack
from fedrec.data.sniff import read_text
from fedrec.errors import FedrecError

TABLE = "user,item\n" + "".join(f"u{u},i{(u * 7 + k * k) % 30}\n" for u in range(30) for k in range(9))


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can reach."""
    monkeypatch.setattr(unpack, "HARMLESS", 10_000)
    monkeypatch.setattr(unpack, "LARGEST", 100_000)


def bomb(path: Path, member: str, size: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, b"1 1 2\n" * (size // 6))
    return path


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (60_000, "unpacks to more than 100 times its size"),
        (600_000, "unpacks to more than 100,000 bytes"),
    ],
)
def test_a_zip_bomb_is_refused(tmp_path: Path, size: int, reason: str) -> None:
    archive = bomb(tmp_path / "d.zip", "ratings.txt", size)
    (tmp_path / "out").mkdir()
    with pytest.raises(FedrecError, match=reason) as caught:
        fetch.extract(archive, ("ratings.txt",), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir()) <= 10_000 + (1 << 20)


@pytest.mark.usefixtures("low")
def test_all_members_count_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for name in ("a", "b", "c"):
            archive.writestr(name, rng.bytes(40_000))
    fetch.extract(tmp_path / "d.zip", ("a", "b"), tmp_path)
    with pytest.raises(FedrecError, match="more than 100,000 bytes"):
        fetch.extract(tmp_path / "d.zip", ("a", "b", "c"), tmp_path)


@pytest.mark.usefixtures("low")
def test_a_header_that_lies_about_the_size_does_not_help(tmp_path: Path) -> None:
    archive = bomb(tmp_path / "d.zip", "ratings.txt", 600_000)
    content = archive.read_bytes().replace((600_000).to_bytes(4, "little"), (60).to_bytes(4, "little"))
    archive.write_bytes(content)
    with pytest.raises(FedrecError, match=r"d\.zip"):
        fetch.extract(archive, ("ratings.txt",), tmp_path)
    assert not (tmp_path / "ratings.txt").exists() or (tmp_path / "ratings.txt").stat().st_size <= 60


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("where", ["users' file", "dataset"])
def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    path = tmp_path / "ml-100k" / "fedcia100_train.csv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"client,user,item\n" + b"1,1,1\n" * 100_000))
    monkeypatch.setenv("FEDREC_DATA", str(tmp_path))
    for name in ("valid", "test"):
        (path.parent / f"fedcia100_{name}.csv.gz").write_bytes(gzip.compress(b"client,user,item\n1,1,1\n"))
    with pytest.raises(FedrecError, match=r"train\.csv\.gz unpacks to more than 100"):
        read_text(path) if where == "users' file" else load_split("ml-100k:fedcia100")


@pytest.mark.usefixtures("low")
def test_a_matrix_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "xing"
    folder.mkdir()
    for name in ("vali_user", "vali_user_item"):
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(b"user,item\n1,1\n2,0\n"))
    sp.save_npz(folder / "item_content.npz", sp.csr_matrix(np.zeros((100_000, 3), np.float32)))
    monkeypatch.setenv("FEDREC_DATA", str(tmp_path))
    with pytest.raises(FedrecError, match=r"item_content\.npz unpacks to more than"):
        load("xing")


def test_ordinary_files_are_read(cli: Cli, tmp_path: Path) -> None:
    """Several parts in one gzip file too; and repetitive small ones, whatever their ratio."""
    parts = [gzip.compress(part.encode()) for part in (TABLE[:1000], TABLE[1000:])]
    (tmp_path / "parts.csv.gz").write_bytes(b"".join(parts))
    assert read_text(tmp_path / "parts.csv.gz").decode() == TABLE
    (tmp_path / "same.csv.gz").write_bytes(gzip.compress(b"user,item\n" + b"1,1\n" * 200_000))
    assert len(read_text(tmp_path / "same.csv.gz")) == 800_010
    assert cli("data", "show", "parts.csv.gz").code == 0


@pytest.mark.parametrize("damage", ["cut short", "bytes changed", "encrypted"])
def test_damaged_archives_are_one_line(tmp_path: Path, damage: str) -> None:
    archive = bomb(tmp_path / "d.zip", "ratings.txt", 60_000)
    content = bytearray(archive.read_bytes())
    if damage == "bytes changed":
        content[45:60] = bytes(15)
    elif damage == "encrypted":
        content[6] |= 1
        content[content.index(b"PK\1\2") + 8] |= 1
    archive.write_bytes(content[:-30] if damage == "cut short" else content)
    with pytest.raises(FedrecError, match=r"d\.zip"):
        fetch.extract(archive, ("ratings.txt",), tmp_path)
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(TABLE.encode())[:-20])
    with pytest.raises(FedrecError, match=r"cannot read .*d\.csv\.gz"):
        read_text(tmp_path / "d.csv.gz")
