"""Which column is what: by names and by values, never a guess between two, and all of it said."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from fedrec.data import Interactions, load, read_table
from fedrec.errors import FedrecError

DATES = ["2024-01-31 10:00:00", "2024-01-30 11:30:00", "2024-02-01 08:00:00"]
SECONDS = ["1706695200", "1706614200", "1706774400"]
SMALL = ["3", "5", "4"]
PRICES = ["19.99", "5.00", "1249.50"]
WORDS = ["web", "app", "web"]


def table(path: Path, **columns: list[str]) -> Path:
    """A CSV of three rows with a user, an item and these columns."""
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def logged(folder: Path, **columns: list[str]) -> Path:
    return table(folder / "log.csv", user=["a", "b", "a"], item=["x", "x", "y"], **columns)


@pytest.mark.parametrize(
    "name",
    [
        "event_time",
        "date",
        "created_at",
        "ts",
        "time_stamp",
        "datetime",
        "visited_at",
        "eventTime",
        "Order Date",
        "InvoiceDate",
        "purchase-date",
        "timestamp_ms",
        "clickedAt",
        "reviewtime",
        "watched_on",
        "event_time:float",
    ],
)
@pytest.mark.parametrize("values", [DATES, SECONDS, [f"{second}000" for second in SECONDS]])
def test_times_are_known_by_their_names(tmp_path: Path, name: str, values: list[str]) -> None:
    data, guess = read_table(logged(tmp_path, **{name: values}))
    assert guess.columns["timestamp"] == name
    assert np.argsort(data.timestamp).tolist() == [1, 0, 2]


@pytest.mark.parametrize("name", ["wann", "日期", "logged", "c3"])
def test_dates_are_known_by_their_values(tmp_path: Path, name: str) -> None:
    data, guess = read_table(logged(tmp_path, **{name: DATES}))
    assert data.time == "real"
    assert f"timestamp = column {name} (its values are dates)" in str(guess)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("price", PRICES),
        ("price", ["1700000000", "1700000001", "1700000002"]),
        ("order_id", SECONDS),
        ("ean13", ["4006381333931", "4006381333948", "4006381333955"]),
        ("rating", SMALL),
        ("year", ["2021", "2022", "2023"]),
        ("watch_time", ["12", "3600", "95"]),
        ("watch_time", ["12.5", "3600.25", "95.0"]),
        ("birth_date", DATES),
        ("release_date", DATES),
        ("updated_at", DATES),
        ("visit_time", WORDS),
        ("timezone", WORDS),
    ],
)
def test_what_is_no_time_of_the_interaction_is_not_taken_for_one(tmp_path: Path, name: str, values: list[str]) -> None:
    data, guess = read_table(logged(tmp_path, **{name: values}))
    assert data.timestamp is None
    assert "; no times" in str(guess)


def test_what_may_be_a_time_is_said(tmp_path: Path) -> None:
    _, guess = read_table(logged(tmp_path, visit=SECONDS, updated_at=DATES, price=PRICES, order_id=SECONDS))
    assert str(guess).endswith(
        "no times; not used: visit (may be times: --timestamp visit), updated_at (may be times: --timestamp "
        "updated_at), price, order_id"
    )
    data, _ = read_table(tmp_path / "log.csv", {"timestamp": "visit"})
    assert data.timestamp is not None
    assert data.timestamp.tolist() == [int(second) for second in SECONDS]


@pytest.mark.parametrize("names", [("order_date", "payment_date"), ("wann", "bis")])
def test_two_times_are_not_guessed_between(tmp_path: Path, names: tuple[str, str]) -> None:
    path = logged(tmp_path, **dict.fromkeys(names, DATES))
    with pytest.raises(FedrecError) as wrong:
        read_table(path)
    assert str(wrong.value) == (
        f"{path}: {names[1]} and {names[0]} look like times; say which is that of the interaction: --timestamp "
        f"{names[0]}, or --timestamp none"
    )
    assert read_table(path, {"timestamp": names[1]})[1].columns["timestamp"] == names[1]
    assert read_table(path, {"timestamp": "none"})[0].timestamp is None


@pytest.mark.parametrize(
    ("columns", "taken"),
    [
        ({"date": DATES, "timestamp": SECONDS}, "timestamp"),
        ({"time": ["12:30", "13:00", "09:15"], "date": DATES}, "date"),
        ({"time": SMALL, "event_date": DATES}, "event_date"),
        ({"timestamp": SMALL, "wann": DATES}, "timestamp"),
        ({"wann": DATES, "event_time": SECONDS}, "event_time"),
    ],
)
def test_the_better_time_is_taken(tmp_path: Path, columns: dict[str, list[str]], taken: str) -> None:
    _, guess = read_table(logged(tmp_path, **columns))
    assert guess.columns["timestamp"] == taken
    assert f"not used: {next(name for name in columns if name != taken)}" in str(guess)


@pytest.mark.parametrize(
    "user", ["customer_id", "visitorid", "CustomerID", "buyer", "accountId", "session_id", "client_id"]
)
@pytest.mark.parametrize("item", ["sku", "product", "article_id", "StockCode", "videoId", "url"])
@pytest.mark.parametrize("rating", ["stars", "score", "review_rating", "userRating"])
def test_users_items_and_ratings_are_known_by_their_names(tmp_path: Path, user: str, item: str, rating: str) -> None:
    path = table(tmp_path / "log.csv", **{"price": PRICES, item: WORDS, user: ["a", "b", "a"], rating: SMALL})
    guess = read_table(path)[1]
    assert guess.columns == {"user": user, "item": item, "rating": rating}
    assert str(guess).endswith("; no times; not used: price")


@pytest.mark.parametrize("name", ["avg_rating", "rating_count", "content_rating", "num_ratings"])
def test_ratings_that_are_the_items_are_not_taken(tmp_path: Path, name: str) -> None:
    assert read_table(logged(tmp_path, **{name: SMALL}))[0].rating is None


def test_others_that_may_have_a_role_are_said(tmp_path: Path) -> None:
    path = table(tmp_path / "log.csv", user=WORDS, sku=WORDS, product_id=SMALL, food_score=SMALL, room_score=SMALL)
    assert str(read_table(path)[1]).endswith(
        "item = column product_id; no times; not used: sku (may be the item: --item sku), food_score (may be "
        "ratings: --rating food_score), room_score (may be ratings: --rating room_score)"
    )


def test_an_item_is_not_guessed_among_what_is_left(tmp_path: Path) -> None:
    path = table(tmp_path / "log.csv", customer_id=SMALL, artnr=WORDS, event_time=DATES, price=PRICES, channel=WORDS)
    with pytest.raises(FedrecError) as wrong:
        read_table(path)
    assert str(wrong.value).endswith(
        "no column for item among customer_id, artnr, event_time, price, channel; rename one, or choose with: --item "
        "COLUMN (perhaps artnr, channel)"
    )
    assert read_table(path, {"item": "artnr"})[1].columns["item"] == "artnr"


@pytest.mark.parametrize(
    ("rows", "roles"),
    [
        ("a,x,5,2024-01-31\nb,y,3,2024-02-01\n", {"rating": "3", "timestamp": "4"}),
        ("a,x,2024-01-31,5\nb,y,2024-02-01,3\n", {"rating": "4", "timestamp": "3"}),
        ("a,x,2024-01-31\nb,y,2024-02-01\n", {"timestamp": "3"}),
        ("a,x,2024-01-31T10:00:00Z,web\nb,y,2024-02-01T10:00:00Z,app\n", {"timestamp": "3"}),
        ("a,x,web\nb,y,app\n", {}),
        ("a,x,5\nb,y,3\n", {"rating": "3"}),
        ("5,1,3,1\n6,2,2,2\n", {"rating": "3", "timestamp": "4"}),
    ],
)
def test_without_a_header_values_decide(tmp_path: Path, rows: str, roles: dict[str, str]) -> None:
    (tmp_path / "log.csv").write_text(rows)
    data, guess = read_table(tmp_path / "log.csv")
    assert len(data) == 2
    assert guess.columns == {"user": "1", "item": "2"} | roles


@pytest.mark.parametrize("first", ["kunde,artikel,wann", "who,what,date"])
def test_words_above_dates_are_a_header(tmp_path: Path, first: str) -> None:
    (tmp_path / "log.csv").write_text(f"{first}\na,x,2024-01-31\nb,y,2024-02-01\n")
    data, _ = read_table(tmp_path / "log.csv", dict(zip(("user", "item"), first.split(","), strict=False)))
    assert len(data) == 2


def test_a_cell_that_is_named_like_a_column_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("anna,page\nbert,film\ncarl,page\n")
    assert len(read_table(tmp_path / "log.csv")[0]) == 3


def test_a_named_column_that_is_not_there(tmp_path: Path) -> None:
    path = logged(tmp_path, price=PRICES)
    for columns in ({"timestamp": "event_time"}, {"item": "event_time"}):
        with pytest.raises(FedrecError) as wrong:
            read_table(path, columns)
        assert str(wrong.value) == f"{path} has no column 'event_time'; it has user, item, price"
    (tmp_path / "words.csv").write_text("kunde,artikel\na,x\n")
    with pytest.raises(FedrecError, match="has no column 'knde'; it has kunde, artikel"):
        read_table(tmp_path / "words.csv", {"user": "knde", "item": "artikel"})
    with pytest.raises(FedrecError, match="--item none: every interaction has a user and an item"):
        read_table(path, {"item": "none"})


MOMENTS = [datetime.datetime(2024, 1, 31, 10), datetime.datetime(2024, 1, 30, 11), datetime.datetime(2024, 2, 1, 8)]
TYPED = {
    "datetime": pl.Series(MOMENTS),
    "milliseconds": pl.Series(MOMENTS).cast(pl.Datetime("ms")),
    "zoned": pl.Series(MOMENTS).dt.replace_time_zone("Europe/Berlin"),
    "date": pl.Series(MOMENTS).cast(pl.Date),
    "text": pl.Series([f"{moment.isoformat()}+01:00" for moment in MOMENTS]),
    "categories": pl.Series([moment.isoformat() for moment in MOMENTS]).cast(pl.Categorical),
}


@pytest.mark.parametrize("kind", TYPED)
@pytest.mark.parametrize("source", ["parquet", "json", "polars", "pandas"])
def test_typed_times_are_times_whatever_they_are_called(tmp_path: Path, kind: str, source: str) -> None:
    frame = pl.DataFrame(
        {"visitor": [1, 2, 1], "sku": ["x", "x", "y"], "moment": TYPED[kind], "price": [1.5, 2.0, 3.0]}
    )
    assert _read(frame, source, tmp_path).time == "real"
    assert np.argsort(_read(frame, source, tmp_path).timestamp).tolist() == [1, 0, 2]


def _read(frame: pl.DataFrame, source: str, folder: Path) -> Interactions:
    if source == "polars":
        return load(frame)
    if source == "pandas":
        return load(pd.DataFrame(frame.to_dict(as_series=False)))
    path = folder / f"log.{'parquet' if source == 'parquet' else 'jsonl'}"
    (frame.write_parquet if source == "parquet" else frame.write_ndjson)(path)
    return load(path)


@pytest.mark.parametrize("source", ["text", "parquet"])
def test_moments_in_several_zones_are_put_in_one_order(tmp_path: Path, source: str) -> None:
    texts = ["2024-01-31T12:00:00+02:00", "2024-01-31T08:00:00-05:00", "2024-01-31T11:30:00Z", "2024-01-31 12:00 GMT"]
    frame = pl.DataFrame({"user": list("abcd"), "item": list("wxyz"), "wann": texts})
    path = tmp_path / f"log.{'csv' if source == 'text' else 'parquet'}"
    (frame.write_csv if source == "text" else frame.write_parquet)(path)
    data = load(path)
    assert np.argsort(data.timestamp).tolist() == [0, 2, 3, 1]
    assert not any("have no zone" in note for note in data.notes)


def test_a_clock_without_a_zone_among_others_is_said(tmp_path: Path) -> None:
    data, _ = read_table(logged(tmp_path, date=["2024-01-31 12:00+02:00", "2024-01-31 12:00", "2024-01-31 12:00Z"]))
    assert "1 of 3 times have no zone, as others have: taken for UTC" in " ".join(data.notes)


def test_clocks_of_twelve_hours(tmp_path: Path) -> None:
    data, _ = read_table(logged(tmp_path, date=["1/31/2024 1:05 PM", "1/31/2024 11:05:30 AM", "1/31/2024 12:05 AM"]))
    assert np.argsort(data.timestamp).tolist() == [2, 1, 0]


def test_what_was_used_chooses_the_same_again(tmp_path: Path) -> None:
    """Also where the names do not tell columns apart, and where a column has got no role."""
    path = logged(tmp_path, wann=DATES, price=PRICES)
    data, guess = read_table(path)
    assert data.columns == {"user": "user", "item": "item", "rating": "none", "timestamp": "wann"}
    assert read_table(path, data.columns)[1].columns == guess.columns
    (tmp_path / "wide.csv").write_text("user,item,item,wann,none\na,x,y,1706695200,3\nb,x,z,1706695201,4\n")
    chosen = {"user": 1, "item": 3, "timestamp": 4, "rating": 5}
    data, guess = read_table(tmp_path / "wide.csv", chosen)
    assert data.columns == {"user": "user", "item": "3", "rating": "5", "timestamp": "wann"}
    again, _ = read_table(
        tmp_path / "wide.csv", {role: int(name) if name.isdigit() else name for role, name in data.columns.items()}
    )
    assert again.item_ids.tolist() == ["y", "z"]
