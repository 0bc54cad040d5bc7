from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedrec.data.atomic import atomic_file, require_unlinked
from fedrec.errors import FedrecError


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut can leave a file of the right name and no content; then the name itself is made safe."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def sync(place: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(place).st_mode) else f"file of {os.fstat(place).st_size}")
        fsync(place)

    def rename(old: Path, new: Path) -> None:
        done.append("name")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    with atomic_file(tmp_path / "out.csv") as temporary:
        temporary.write_text("whole")
    assert done == ["file of 5", "name", "folder"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with atomic_file(tmp_path / "own", private=True) as temporary:
            temporary.write_text("state")
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        with atomic_file(tmp_path / "open") as temporary:
            temporary.write_text("result")
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("own", "open")] == [0o600, 0o666]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "absent").symlink_to(tmp_path / "elsewhere.txt")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("absent", "circle"):
        with pytest.raises(FedrecError, match="it is a link"), atomic_file(tmp_path / name):
            pytest.fail("the block must not begin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["absent", "circle"]
    with pytest.raises(FedrecError, match="absent is a link"):
        require_unlinked(tmp_path / "absent" / "below", tmp_path)
    require_unlinked(tmp_path / "new" / "below", tmp_path)
    require_unlinked(tmp_path / "absent", tmp_path / "absent")  # what the user names may be a link
