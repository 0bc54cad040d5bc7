from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from fedrec.data import datasets, entry, load
from fedrec.errors import FedrecError

MOVIES = "1::Toy Story (1995)::Animation|Comedy\n2::Heat (1995)::Action\n9::Never rated (1990)::Drama\n"


@pytest.fixture
def ml_1m(no_data: Path) -> Path:
    """Both versions; user 1's first line has no position, user 2 has rated later but earlier in the file."""
    folder = no_data / "ml-1m"
    folder.mkdir(parents=True)
    (folder / "movies.dat").write_text(MOVIES)
    (folder / "ratings.dat").write_text("1::2::5::100\n1::1::4::90\n2::1::3::80\n")
    ordered = "UserID,MovieID,Rating,Timestamp,Position\n1,2,5,,\n1,1,4,90,0\n2,1,3,,0\n"
    (folder / "ratings_with_order.csv.gz").write_bytes(gzip.compress(ordered.encode()))
    return folder


def test_every_entry_says_whose_it_is_and_how_to_get_it() -> None:
    for dataset in datasets():
        assert dataset.title
        assert dataset.licence
        assert dataset.citation
        assert dataset.obtain
        assert dataset.home.startswith("https://") or dataset.name == "synthetic"
    assert {"ml-100k", "ml-1m", "filmtrust", "synthetic"} <= {dataset.name for dataset in datasets()}


def test_names_and_aliases() -> None:
    assert entry("ML-1M").name == "ml-1m"
    with pytest.raises(FedrecError, match="did you mean 'ml-100k'"):
        entry("ml-100")


def test_positions_are_an_order_with_unplaced_rows_first(ml_1m: Path) -> None:
    data = load("ml-1m")
    assert (data.version, data.time) == ("positions+ties0", "order")
    assert data.timestamp is not None
    assert data.timestamp.tolist() == [-1, 0, 0]
    assert data.item_ids.tolist() == [1, 2]


def test_official_has_real_times_and_only_rated_movies(ml_1m: Path) -> None:
    data = load("ml-1m@official+ties2")
    assert (data.version, data.time, data.tie_seed) == ("official+ties2", "real", 2)
    assert data.timestamp is not None
    assert data.timestamp.tolist() == [100, 90, 80]
    assert data.info is not None
    assert data.info.titles is not None
    assert data.info.titles.tolist() == ["Toy Story (1995)", "Heat (1995)"]
    assert data.info.tag_names == ("Action", "Animation", "Comedy", "Drama")
    assert data.info.tags is not None
    assert data.info.tags.toarray().tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]


def test_what_is_found_decides_the_default_version(ml_1m: Path) -> None:
    (ml_1m / "ratings_with_order.csv.gz").unlink()
    assert load("ml-1m").version == "official+ties0"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ml-1m@offical", "did you mean 'official'"),
        ("ml-1m@ties", "tiesN"),
        ("ml-1m@ties1+ties2", "tiesN"),
        ("nowhere.csv@ties1", "no file"),
        ("folder/ml-1m", "no file"),
        ("ml-100k:foo", "known: ml-100k, ml-100k:fedcia100, ml-100k:fedcia943$"),
        ("nothing like it", "known: .*bx:fedcia100, citeulike-a, citeulike-a:coldstart, .*synthetic"),
    ],
)
def test_bad_specs(ml_1m: Path, spec: str, message: str) -> None:
    with pytest.raises(FedrecError, match=message):
        load(spec)


def test_names_win_over_files_and_paths_over_names(
    ml_1m: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ml-1m", "a@b.csv"):
        (tmp_path / name).write_text("user,item\n1,2\n")
    assert load("ml-1m").name == "ml-1m"
    assert len(load("ml-1m")) == 3
    assert len(load("./ml-1m")) == 1
    assert len(load("a@b.csv")) == 1


def test_damaged_files_are_named(ml_1m: Path) -> None:
    (ml_1m / "ratings.dat").write_text("1::2::5::100\n1::x::4::90\n")
    with pytest.raises(FedrecError, match=r"ratings\.dat is damaged"):
        load("ml-1m@official")


def test_smaller_formats(no_data: Path) -> None:
    texts = {
        "filmtrust/ratings.txt": "1 1 2\n1 2 4\n1 1 3.5\n",
        "lastfm-2k/user_artists.dat": "userID\tartistID\tweight\r\n2\t51\t13883\r\n3\t52\t1\r\n",
        "amazon-video/ratings.dat": "A1,B2,5.0,1198195200\r\nA0,B2,2.0,1281052800\r\n",
        "book-crossing/BX-Book-Ratings.csv": '"User-ID";"ISBN";"Book-Rating"\n"9";"03X";"0"\n"8";"1";"5"\n',
        "citeulike-a/users.dat": "2 0 2\n1 1\n",
        "citeulike-a/item-tag.dat": "1 0\n0\n2 0 1\n",
        "citeulike-a/tags.dat": "first\nsecond\n",
    }
    for name, text in texts.items():
        path = no_data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    film = load("filmtrust")
    assert (len(film), len(film.drop_repeats()), film.time) == (3, 2, "none")
    assert load("lastfm-2k").user_ids.tolist() == [2, 3]
    video = load("amazon-video")
    assert (video.user_ids.tolist(), video.time) == (["A0", "A1"], "real")
    books = load("book-crossing")
    assert (books.user_ids.tolist(), books.item_ids.tolist()) == ([8, 9], ["03X", "1"])
    assert len(books.with_threshold()) == 1
    articles = load("citeulike-a")
    assert list(zip(articles.user.tolist(), articles.item.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 1)]
    assert articles.info is not None
    assert articles.info.tags is not None
    assert articles.info.tags.toarray().tolist() == [[1, 0], [0, 0], [1, 1]]


def test_xing_and_beauty(no_data: Path) -> None:
    for name in ("xing", "amazon-beauty"):
        (no_data / name).mkdir(parents=True)
    for part, text in (("vali_user", "5.0,2.0\n5.0,2.0\n"), ("vali_user_item", "5.0,0.0\n")):
        (no_data / "xing" / f"{part}.csv.gz").write_bytes(gzip.compress(f"uid,iid\n{text}".encode()))
    sp.save_npz(no_data / "xing" / "item_content.npz", sp.csr_matrix(np.diag([0.5, 1.5, -2.0])))
    jobs = load("xing")
    assert (len(jobs), len(jobs.drop_repeats()), jobs.item_ids.tolist()) == (3, 2, [0, 2])
    assert jobs.info is not None
    assert jobs.info.features is not None
    assert jobs.info.features.toarray().tolist() == [[0.5, 0, 0], [0, 0, -2.0]]
    review = '{"reviewerID": "A", "asin": "B", "overall": 4.0, "unixReviewTime": 1390000000, "reviewText": "x"}\n'
    (no_data / "amazon-beauty" / "reviews_Beauty_5.json.gz").write_bytes(gzip.compress(review.encode()))
    beauty = load("amazon-beauty")
    assert (beauty.user_ids.tolist(), beauty.time, len(beauty)) == (["A"], "real", 1)


def test_built_in_data_needs_neither_polars_nor_torch() -> None:
    code = (
        "import sys, fedrec.data as d; d.load('synthetic'); assert not {'polars', 'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
