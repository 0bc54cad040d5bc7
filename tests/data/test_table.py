from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedrec.data import Interactions, load, read_table, write_csv
from fedrec.errors import FedrecError


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows(data: Interactions) -> list[tuple[object, object]]:
    return list(zip(data.user_ids[data.user].tolist(), data.item_ids[data.item].tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("user,item,rating,timestamp\n5,a,3,10\n4,b,4.5,20\n", {"rating", "timestamp"}),
        ("userId;movieId;rating\n5;a;3\n4;b;4.5\n", {"rating"}),
        ("user_id:token\titem_id:token\trating:float\n5\ta\t3\n4\tb\t4.5\n", {"rating"}),
        ("5\ta\t3\t10\n4\tb\t4.5\t20\n", {"rating", "timestamp"}),
        ("5::a::3::10\n4::b::4.5::20\n", {"rating", "timestamp"}),
        ("5 a 3\n4 b 4.5\n", {"rating"}),
        ("5|a\n4|b\n", set()),
        ("5,a,978300760\n4,b,978302109\n", {"timestamp"}),
        ("\ufeffScore,Item ID,User\r\n3,a,5\r\n4.5,b,4\r\n", {"rating"}),
        ('"user","item","rating"\n"5","a","3"\n"4","b","4.5"\n\n', {"rating"}),
        ("name,user,item\nx,5,a\ny,4,b\n", set()),
    ],
)
def test_common_layouts_are_understood(tmp_path: Path, text: str, columns: set[str]) -> None:
    data, guess = read_table(put(tmp_path / "log.csv", text))
    assert rows(data) == [(5, "a"), (4, "b")]
    assert set(guess.columns) == {"user", "item"} | columns
    assert data.time == ("real" if "timestamp" in columns else "none")
    if "rating" in columns:
        assert data.rating is not None
        assert data.rating.tolist() == [3.0, 4.5]
    assert data.notes == (str(guess),)
    assert "\n" not in str(guess)


def test_what_was_guessed_is_said_in_one_line(tmp_path: Path) -> None:
    _, guess = read_table(put(tmp_path / "log.csv", "uid,iid\n1,2\n"))
    expected = "log.csv read as comma-separated, with header: user = column uid, item = column iid; no times"
    assert str(guess).endswith(expected)


def test_rows_that_say_nothing_new_are_counted(tmp_path: Path) -> None:
    data, guess = read_table(put(tmp_path / "log.csv", "user,item\n1,2\n1,3\n1,2\n1,2\n2,2\n"))
    assert data.notes[0] == str(guess)
    assert data.notes[1].endswith("log.csv: 2 of 5 rows repeat a user-item pair")
    assert len(data.drop_repeats()) == 3


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    data, _ = read_table(put(tmp_path / "log.csv", "user,item\n1,2\n"))
    for folder in (tmp_path / "log.csv", tmp_path / "log.csv" / "below"):
        with pytest.raises(FedrecError) as caught:
            write_csv(data, folder / "train.csv")
        assert str(caught.value).endswith(f"train.csv: {folder} is not a folder; choose another one")


def test_gzip_and_parquet(tmp_path: Path) -> None:
    put(tmp_path / "log.csv.gz", gzip.compress(b"user,item\n1,2\n3,4\n"))
    assert rows(load(str(tmp_path / "log.csv.gz"))) == [(1, 2), (3, 4)]
    frame = pl.DataFrame({"uid": ["a", "b"], "iid": [1, 2], "date": ["2020-01-01", "2020-01-02"]})
    frame.with_columns(pl.col("date").str.to_date()).write_parquet(tmp_path / "log.parquet")
    data = load(str(tmp_path / "log.parquet"))
    assert rows(data) == [("a", 1), ("b", 2)]
    assert data.timestamp is not None
    assert np.diff(data.timestamp).tolist() == [86_400_000_000]


def test_ids_stay_as_they_are(tmp_path: Path) -> None:
    data, _ = read_table(put(tmp_path / "log.csv", "user,item\n007,1\n7,2\n"))
    assert data.user_ids.tolist() == ["007", "7"]
    assert data.item_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        (("30", "20"), [30, 20]),
        (("30.0", "20"), [30, 20]),
        (("30.5", "20"), [30_500_000, 20_000_000]),
        (("1970-01-01 00:00:30", "1970-01-01 00:00:20"), [30_000_000, 20_000_000]),
    ],
)
def test_times_keep_their_order_however_they_are_written(
    tmp_path: Path, stamps: tuple[str, str], expected: list[int]
) -> None:
    data, _ = read_table(put(tmp_path / "log.csv", f"user,item,time\n1,2,{stamps[0]}\n1,3,{stamps[1]}\n"))
    assert data.timestamp is not None
    assert data.timestamp.tolist() == expected


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = put(tmp_path / "log.csv", "who,what,stars\na,x,3\nb,y,4\n")
    with pytest.raises(FedrecError, match="no column for user and item among who, what, stars"):
        read_table(path)
    data, guess = read_table(path, columns={"user": "who", "item": "what"})
    assert rows(data) == [("a", "x"), ("b", "y")]
    assert guess.columns == {"user": "who", "item": "what", "rating": "stars"}
    wide = put(tmp_path / "wide.csv", "1,2,3,4,5\n6,7,8,9,10\n")
    with pytest.raises(FedrecError, match="5 columns and no header"):
        read_table(wide)
    assert rows(read_table(wide, columns={"user": 2, "item": 5})[0]) == [(2, 5), (7, 10)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("   \n\n", "is empty"),
        ("user,item\n", "no interactions"),
        (b"\x00\x01\x02PAR1", "not a text file"),
        ("user,item\n1,caf\u00e9\n".encode("latin-1"), "line 2: not UTF-8"),
        ("justoneword\nanother\n", "fewer than two columns"),
        ("user,item,rating\n1,2,3\n1,3,bad\n", "line 3, column rating: 'bad' is not a finite number"),
        ("user,item,rating\n1,2,3\n1,3,NaN\n", "line 3, column rating"),
        ("user,item,rating\n1,2,3\n1,3,\n", "line 3, column rating: rating is missing"),
        ("user,item\n1,2\n,3\n", "line 3, column user: user is missing"),
        ("user,item\n1,2\n5\n", "line 3, column item: item is missing"),
        ("user,item\n1,2\n\n3,4\n", "line 3, column user: user is missing"),
        ("1,2,3\n1,2,3,4,5\n1,2,3\n", "line 2: 5 columns instead of 3"),
        ("user,item,time\n1,2,3\n1,3,soon\n", "line 3, column time: 'soon' is not a time"),
        (
            "user,item,time\n1,2,yesterday\n1,3,today\n",
            "line 2, column time: 'yesterday' is not a time (a number, or a",
        ),
        ("user,rating\n1,2\n", "no column for item"),
    ],
)
def test_broken_files_say_where(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(FedrecError) as caught:
        read_table(put(tmp_path / "log.csv", text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match="there is no file"):
        load(str(tmp_path / "absent.csv"))
    with pytest.raises(FedrecError, match="not a readable Parquet"):
        read_table(put(tmp_path / "log.parquet", b"nonsense"))
    with pytest.raises(FedrecError, match="cannot read"):
        read_table(put(tmp_path / "log.csv.gz", gzip.compress(b"user,item\n1,2\n" * 99)[:-9]))
    with pytest.raises(FedrecError, match="has no column 'nobody'"):
        read_table(put(tmp_path / "log.csv", "user,item\n1,2\n"), columns={"user": "nobody"})
    with pytest.raises(FedrecError, match="unknown column role 'usr'"):
        read_table(tmp_path / "log.csv", columns={"usr": 1})


def test_the_version_of_a_file_is_its_content(tmp_path: Path) -> None:
    a = load(str(put(tmp_path / "a.csv", "user,item\n1,2\n")))
    b = load(str(put(tmp_path / "b.csv", "user,item\n1,2\n")))
    c = load(str(put(tmp_path / "c.csv", "user,item\n1,3\n")) + "@ties4")
    assert a.version == b.version
    assert a.version.startswith("sha256-")
    assert c.version != a.version
    assert (c.tie_seed, c.version[-6:]) == (4, "+ties4")


def test_written_tables_come_back(tmp_path: Path, small: Interactions) -> None:
    write_csv(small, tmp_path / "new" / "out.csv")
    assert (tmp_path / "new" / "out.csv").read_text().startswith("user,item,rating,timestamp\n7,30,5.0,99\n")
    back, _ = read_table(tmp_path / "new" / "out.csv")
    for column in ("user", "item", "user_ids", "item_ids", "rating", "timestamp"):
        assert np.array_equal(getattr(back, column), getattr(small, column))
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out.csv"]


def test_titles_come_along(tmp_path: Path) -> None:
    """By a name that can only be an item's, or as told: a bare title may be that of a review."""
    text = 'user,item,title\n1,a,"Größe ""XL"", № 1"\n2,a,other\n1,b,\n2,b,=late\n3,c,\n'
    (tmp_path / "log.csv").write_text(text, encoding="utf-8")
    assert read_table(tmp_path / "log.csv")[0].info is None
    data, guess = read_table(tmp_path / "log.csv", {"title": "title"})
    assert "title = column title" in str(guess)
    assert data.info is not None
    assert data.info.titles is not None
    assert data.info.titles.tolist() == ['Größe "XL", № 1', "=late", ""]
    write_csv(data, tmp_path / "kept.csv")
    again = read_table(tmp_path / "kept.csv")[0]
    assert again.info is not None
    assert again.info.titles is not None
    assert again.info.titles.tolist() == data.info.titles.tolist()


def test_a_line_that_is_no_json_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"user": 1, "item": 2}\n\n{nonsense\n')
    with pytest.raises(FedrecError, match=r"log.jsonl, line 3: not a JSON object; write one such as"):
        read_table(tmp_path / "log.jsonl")


def test_text_with_commas_survives(tmp_path: Path) -> None:
    data, _ = read_table(put(tmp_path / "in.csv", 'user,item\n"a, b","say ""x"""\nc,d\n'))
    write_csv(data, tmp_path / "out.csv")
    assert rows(read_table(tmp_path / "out.csv")[0]) == [("a, b", 'say "x"'), ("c", "d")]
