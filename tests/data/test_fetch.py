from __future__ import annotations

import hashlib
import http.server
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedrec.data import catalogue, fetch, load
from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n2\t20\t5\t99\n1\t10\t3\t7\n2\t10\t1\t8\n"
ITEM = (
    "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "10\tToy Story\t1995\tAnimation Comedy\n20\tunknown\t\tunknown\n"
)


def make_zip(path: Path, members: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server for a folder; what is called short.zip promises more bytes than it sends."""
    root = tmp_path / "www"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(root))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            if not self.path.endswith("short.zip"):
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"x" * 500)
            return None

        def log_message(self, *args: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}", root
    httpd.shutdown()
    httpd.server_close()


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_download_unpacks_into_the_cache_and_reports_progress(no_data: Path, server: tuple[str, Path]) -> None:
    url, root = server
    archive = make_zip(root / "d.zip", {"d/ratings.txt": "1 1 2\n", "d/other": "x", "../evil": "x"})
    digest = hashlib.md5(archive.read_bytes()).hexdigest()
    (root / "d.zip.md5").write_text(f"MD5 (d.zip) = {digest}\n")
    seen: list[tuple[int, int | None]] = []
    source = fetch.Zip(f"{url}/d.zip", f"{url}/d.zip.md5")
    folder = fetch.fetch("filmtrust", ("ratings.txt",), source, lambda done, total: seen.append((done, total)))
    assert files_below(no_data) == ["filmtrust/ratings.txt"]
    assert seen[-1] == (archive.stat().st_size, archive.stat().st_size)
    assert fetch.find_folder("filmtrust", ("ratings.txt",)) == folder
    assert len(load("filmtrust")) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("short.zip", "only 500 of 100000|cannot be reached"), ("absent.zip", "not found"), ("text.zip", "readable zip")],
)
def test_failed_downloads_leave_nothing(no_data: Path, server: tuple[str, Path], name: str, message: str) -> None:
    url, root = server
    (root / "text.zip").write_text("hello")
    with pytest.raises(FedrecError, match=message):
        fetch.fetch("d", ("ratings.txt",), fetch.Zip(f"{url}/{name}"))
    assert list(no_data.rglob("*")) == []


def test_an_interrupted_download_leaves_nothing(no_data: Path, server: tuple[str, Path]) -> None:
    url, root = server
    (root / "d.zip").write_bytes(b"x" * 300_000)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("d", ("ratings.txt",), fetch.Zip(f"{url}/d.zip"), interrupt)
    assert list(no_data.rglob("*")) == []


def test_a_wrong_or_missing_checksum_is_refused(no_data: Path, tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "d.zip", {"ratings.txt": "1 1 2\n"})
    for text, message in (("0" * 32 + "  d.zip", "damaged"), ("<html>", "no checksum found")):
        (tmp_path / "md5").write_text(text)
        source = fetch.Zip(archive.as_uri(), (tmp_path / "md5").as_uri())
        with pytest.raises(FedrecError, match=message):
            fetch.fetch("d", ("ratings.txt",), source)
    with pytest.raises(FedrecError, match=r"checksum .* cannot be reached"):
        fetch.fetch("d", ("ratings.txt",), fetch.Zip(archive.as_uri(), (tmp_path / "none").as_uri()))
    with pytest.raises(FedrecError, match=r"does not contain u\.data"):
        fetch.fetch("d", ("u.data",), fetch.Zip(archive.as_uri()))
    assert list(no_data.rglob("*")) == []


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Instead of pip: a wheel with a tiny ml-100k, put where pip would put it. Everything else cannot be reached."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        inside = "recbole/dataset_example/ml-100k"
        members = {f"{inside}/ml-100k.inter": INTER, f"{inside}/ml-100k.item": ITEM, f"{inside}/ml-100k.user": "x"}
        make_zip(folder / "recbole-1.2.1-py3-none-any.whl", members)
        return subprocess.CompletedProcess(command, 0, "", "")

    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no network in tests")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(fetch.urllib.request, "urlopen", unreachable)
    return calls


def test_ml_100k_falls_back_to_the_wheel(no_data: Path, fake_pip: list[list[str]]) -> None:
    data = load("ml-100k@ties3")
    assert data.user_ids.tolist() == [1, 2]
    assert data.user.tolist() == [1, 0, 1]
    assert data.timestamp is not None
    assert data.timestamp.tolist() == [99, 7, 8]
    assert (data.time, data.version) == ("real", "ties3")
    assert data.info is not None
    assert data.info.titles is not None
    assert data.info.years is not None
    assert data.info.titles.tolist() == ["Toy Story (1995)", "unknown"]
    assert data.info.years.tolist() == [1995, 0]
    load("ml-100k")
    assert len(fake_pip) == 1  # the second time it came from the cache
    assert "recbole==1.2.1" in fake_pip[0]


def test_both_sources_of_ml_100k_give_the_same_table(
    no_data: Path, fake_pip: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = load("ml-100k")
    flags = {"Animation": 3, "Comedy": 5, "unknown": 0}
    official = tmp_path / "given" / "ml-100k"
    official.mkdir(parents=True)
    (official / "u.data").write_text(INTER.split("\n", 1)[1])
    lines = [("10", "Toy Story (1995)", ["Animation", "Comedy"]), ("20", "unknown", ["unknown"])]
    cells = [
        "|".join([i, t, "", "", "", *("1" if j in {flags[g] for g in gs} else "0" for j in range(19))])
        for i, t, gs in lines
    ]
    (official / "u.item").write_text("\n".join(cells) + "\n", encoding="latin-1")
    monkeypatch.setenv("FEDREC_DATA", str(tmp_path / "given"))
    given = load("ml-100k")
    for column in ("user", "item", "rating", "timestamp", "user_ids", "item_ids", "first_line"):
        assert np.array_equal(getattr(given, column), getattr(wheel, column))
    assert given.info is not None
    assert wheel.info is not None
    assert np.array_equal(given.info.titles, wheel.info.titles)  # type: ignore[arg-type]
    assert (given.info.tags != wheel.info.tags).nnz == 0
    assert given.info.tag_names == wheel.info.tag_names


def test_without_network_one_line_says_what_to_put_where(
    no_data: Path, fake_pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no matching distribution\n")

    monkeypatch.setattr(subprocess, "run", fails)
    for name, wanted in (("ml-100k", "u.data"), ("ml-1m@official", "ratings.dat"), ("amazon-video", "ratings.dat")):
        with pytest.raises(FedrecError) as caught:
            load(name)
        message = str(caught.value)
        assert wanted in message
        assert str(no_data) in message
        assert "https://" in message
        assert "\n" not in message


def test_the_first_folder_in_fedrec_data_wins_over_the_cache(
    no_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    for folder, text in ((no_data, "1 1 1\n"), (tmp_path / "b", "1 1 1\n1 2 1\n")):
        (folder / "filmtrust").mkdir(parents=True)
        (folder / "filmtrust" / "ratings.txt").write_text(text)
    assert len(load("filmtrust")) == 1
    monkeypatch.setenv("FEDREC_DATA", os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")]))
    assert len(load("filmtrust")) == 2
    assert catalogue.entry("FilmTrust").available() == tmp_path / "b" / "filmtrust"


def test_atomic_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.csv"

    def write_half() -> None:
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert list(path.parent.iterdir()) == []
    with atomic_file(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"
