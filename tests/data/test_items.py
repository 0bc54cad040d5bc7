"""Attributes that users bring for their own data: read, checked, matched to items by id."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrec import cli
from fedrec.data import load, with_items, write_csv
from fedrec.data.attributes import Arrival, Scaler, item_attributes
from fedrec.data.items import ItemLine, read_items
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.prepare import prepare
from fedrec.serve import Recommender, read_arrivals

WORLD = "synthetic@users=60+items=120+interactions=1500+attributes=30+seed=1"
PROTOCOL = "ifedrec,ks=3+5,select_metric=recall@3+recall@5"


def file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """A synthetic world as two files of somebody's own: interactions, and what describes the items."""
    world = load(WORLD)
    write_csv(world, tmp_path / "my.csv")
    assert world.info is not None
    assert world.info.tags is not None
    rows = [
        f"{item},{'|'.join(world.info.tag_names[j] for j in world.info.tags[i].indices)}"
        for i, item in enumerate(world.item_ids)
    ]
    rows.reverse()  # lines are found by their item, wherever they stand
    return tmp_path / "my.csv", file(tmp_path / "items.csv", "item,tags\n" + "\n".join([*rows, "unknown,tag0"]) + "\n")


def test_lines(tmp_path: Path) -> None:
    found = read_items(
        file(tmp_path / "a.csv", '\ufeffitem, tags ,title,year\n7,a | b|,"One, two",1999\n\n x ,,,\ny\n')
    )
    assert found == [ItemLine("7", ("a", "b"), "One, two", 1999), ItemLine("x"), ItemLine("y")]
    numbers = read_items(file(tmp_path / "b.csv", "price,item,size,title\n1.5,7,-2,One\n"))
    assert numbers == [ItemLine("7", (), "One", 0, {"price": 1.5, "size": -2.0})]


def test_columns_of_any_kind(tmp_path: Path) -> None:
    text = (
        "product_id,brand,price,about,tags,product_name\n"
        "7,Nike,19.5,A light shoe for long summer runs,sport|red,Shoe\n"
        "8,Puma|Nike,,,red,\n"
        "9,,-250,short words,,\n"
    )
    first, second, third = read_items(file(tmp_path / "items.csv", text))
    assert {"sport", "red", "brand: Nike", "price: 10 to 20", "shoe", "summer", "runs"} <= set(first.tags)
    assert (first.item, first.title, first.numbers) == ("7", "Shoe", {})
    assert second.tags == ("red", "brand: Puma", "brand: Nike")
    assert set(third.tags) == {"about: short words", "price: -200 to 500"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs a header"),
        ("item\n1\n", "needs a header"),
        ("item,tags\n", "needs a header"),
        ("thing,tags\n1,a\n", "needs a header"),
        ("item,tags,tags\n1,a,b\n", "two columns 'tags'"),
        ("item,price\n" + "1,2\n" * 12 + "3,cheap\n", "line 14, column price: 'cheap' is not a number up to 1e+30"),
        ("item,price\n1,\n", "'' is not a number"),
        ("item,price\n1,nan\n", "'nan' is not a number"),
        ("item,year\n1,late\n", "'late' is not a year"),
        ("item,tags\n,a\n", "line 2: the item is missing"),
        ("item,tags\n1,a,b\n", "line 2: 3 cells, but the header has 2"),
        ("item,tags\n1,a\n1,b\n", "several lines for item '1'"),
        ("item,tags,\n1,a,\n", "column 3 has no name"),
        ('item,tags\n"1,a\n2,b\n', "an unclosed quote"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FedrecError) as error:
        read_items(file(tmp_path / "items.csv", text))
    assert said in str(error.value)
    assert "items.csv" in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match=r"cannot read the items .*none\.csv"):
        read_items(tmp_path / "none.csv")


def test_the_same_attributes_as_built_in_ones(own: tuple[Path, Path]) -> None:
    world = load(WORLD)
    mine = with_items(load(str(own[0])), own[1])
    there = np.isin(world.item_ids, mine.item_ids)  # a table has no items that nobody met
    assert world.info is not None
    kept = world.info.take(np.flatnonzero(there))
    for warm in (80, int(there.sum())):
        assert np.array_equal(item_attributes(mine.info, warm, "")[0], item_attributes(kept, warm, "")[0])


def test_items_without_a_line(own: tuple[Path, Path], tmp_path: Path) -> None:
    table = load(str(own[0]))
    first, second = table.item_ids[:2]
    words = with_items(table, file(tmp_path / "words.csv", f"item,tags,title\n{first},a,One\n"))
    assert words.notes[-1].startswith(f"1 of {table.n_items} items are described by ")
    assert words.info is not None
    assert words.info.titles is not None
    assert words.info.titles[:2].tolist() == ["One", ""]
    with pytest.raises(FedrecError, match=f"no line for {table.n_items - 1} items .* for instance {second}; every"):
        with_items(table, file(tmp_path / "numbers.csv", f"item,price\n{first},1\n"))
    with pytest.raises(FedrecError, match=r"describes no item of 'my\.csv': it has items such as x1, x2, the data"):
        with_items(table, file(tmp_path / "others.csv", "item,tags\nx1,a\nx2,b\n"))


def test_numbers_are_scaled_by_the_items_of_training(own: tuple[Path, Path], tmp_path: Path) -> None:
    table = load(str(own[0]))
    values = np.random.default_rng(0).normal(5, 3, (table.n_items, 2))
    lines = [f"{item},{a!r},{b!r}" for item, (a, b) in zip(table.item_ids, values.tolist(), strict=True)]
    given = str(file(tmp_path / "numbers.csv", "item,price,size\n" + "\n".join(lines)))
    prepared = prepare(table, protocol(PROTOCOL), items=given)
    warm = prepared.n_trained
    vectors = prepared.item_features[0]
    np.testing.assert_allclose(vectors[:warm].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(vectors[:warm].std(0), 1, atol=1e-5)
    place = {str(item): k for k, item in enumerate(table.item_ids)}
    order = [place[str(item)] for item in prepared.source.item_ids]
    scaled = (values[order] - values[order][:warm].mean(0)) / values[order][:warm].std(0)
    np.testing.assert_allclose(vectors, scaled.clip(-5, 5), atol=1e-5)


def fedrec(*words: str) -> int:
    sys.argv = ["fedrec", *words]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


SMALL = ("--protocol", PROTOCOL, "--set", "dim=8", "--set", "align=0.04", "--rounds", "2", "-q")


def test_own_data_end_to_end(own: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, items = map(str, own)
    assert fedrec("run", "ifedrec", "--data", table, *SMALL, "--out", str(tmp_path / "none")) == 2
    assert "use --attributes items.csv" in capsys.readouterr().err
    run = ("run", "ifedrec", "--data", table, "--attributes", items, *SMALL)
    assert fedrec(*run, "--out", str(tmp_path / "run")) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "+items-" in summary["dataset"]["version"]
    assert any("items are described by" in note for note in summary["notes"])
    assert len(Recommender(tmp_path / "run", cold=True).for_user("5", 3)) == 3
    assert fedrec("compare", str(tmp_path / "run"), "--no-references", "--groups", "activity") == 0
    new = file(tmp_path / "new.csv", "item,tags\nn1,tag1|tag2\nn2,tag7\n")
    assert fedrec("cold-add", str(tmp_path / "run"), str(new), "--user", "5") == 0
    numbers = file(tmp_path / "numbers.csv", "item,price\nn1,2\n")
    assert fedrec("cold-add", str(tmp_path / "run"), str(numbers), "--user", "5") == 2
    assert "described in numbers (price), those of the run in words" in capsys.readouterr().err


def test_new_items_described_in_numbers(
    own: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An arrival with the numbers of an item that was held out is scored as that item is."""
    table = load(str(own[0]))
    values = np.random.default_rng(0).normal(5, 3, (table.n_items, 2)).round(3).tolist()
    known = {str(item): pair for item, pair in zip(table.item_ids, values, strict=True)}
    given = file(
        tmp_path / "numbers.csv", "item,price,size\n" + "\n".join(f"{i},{a},{b}" for i, (a, b) in known.items())
    )
    run = ("run", "ifedrec", "--data", str(own[0]), "--attributes", str(given), *SMALL, "--out", str(tmp_path / "run"))
    assert fedrec(*run) == 0
    held_out = Recommender(tmp_path / "run", cold=True).for_user("5", 3)
    lines = [f"new{rec.item},{known[str(rec.item)][1]},{known[str(rec.item)][0]}" for rec in held_out]
    new = file(tmp_path / "new.csv", "item,size,price\n" + "\n".join(lines))
    assert fedrec("cold-add", str(tmp_path / "run"), str(new), "--user", "5", "--out", str(tmp_path / "recs.csv")) == 0
    with (tmp_path / "recs.csv").open() as found:
        rows = [(row["item"], float(row["score"])) for row in csv.DictReader(found)]
    assert [item for item, _ in rows] == [f"new{rec.item}" for rec in held_out]
    np.testing.assert_allclose([score for _, score in rows], [rec.score for rec in held_out], rtol=1e-4)
    for header, words in (
        ("item,price", "lacks the number 'size'"),
        ("item,price,size,weight", "has the number 'weight'"),
        ("item,tags", "lacks the number 'price'"),
    ):
        bad = file(tmp_path / "bad.csv", header + "\nn1" + ",2" * header.count(","))
        assert fedrec("cold-add", str(tmp_path / "run"), str(bad), "--user", "5") == 2
        assert words in capsys.readouterr().err


def test_numbers_without_names_cannot_be_given() -> None:
    with pytest.raises(FedrecError, match="numbers without names"):
        Scaler.fit(np.eye(3), ()).encode_arrivals([Arrival("new", numbers={"price": 1.0})])


def test_own_split_end_to_end(own: tuple[Path, Path], tmp_path: Path) -> None:
    table, items = map(str, own)
    assert fedrec("data", "split", table, "--out", str(tmp_path / "parts"), "--protocol", PROTOCOL) == 0
    parts = [
        word for part in ("train", "valid", "test") for word in (f"--{part}", str(tmp_path / "parts" / f"{part}.csv"))
    ]
    for name, data in (("split", parts), ("whole", ["--data", table])):
        assert fedrec("run", "ifedrec", *data, "--attributes", items, *SMALL, "--out", str(tmp_path / name)) == 0
    split, whole = (json.loads((tmp_path / name / "summary.json").read_text())["test"] for name in ("split", "whole"))
    assert split == whole


@pytest.mark.parametrize(("metric", "told"), [("recall@5", True), ("recall@2", False), ("ndcg@5", False)])
def test_a_choice_that_cannot_tell_rounds_apart_is_noted(metric: str, told: bool, tmp_path: Path) -> None:
    """Three new items for validation: every list of five holds them all."""
    pairs = [f"u{user},i{(user * 7 + k * k) % 50}" for user in range(50) for k in range(8)]
    table = load(str(file(tmp_path / "d.csv", "user,item\n" + "\n".join(dict.fromkeys(pairs)))))
    prepared = prepare(table, protocol(f"ifedrec,ks=2+5,select_metric={metric}"))
    words = f"validation ranks at most 3 items, so {metric} cannot distinguish rounds"
    assert any(words in note for note in prepared.notes) == told


def test_a_tag_and_a_word_that_read_the_same_are_one_term(tmp_path: Path) -> None:
    """So that an arrival with the line of a known item has its vector; tags that are repeated count once."""
    pairs = [f"u{user},i{(user * 7 + k * k) % 30}" for user in range(30) for k in range(8)]
    table = load(str(file(tmp_path / "d.csv", "user,item\n" + "\n".join(dict.fromkeys(pairs)))))
    kinds = ("jazz,the opera hour", "opera|1990s,jazz live", "opera|opera,the opera", "live,")
    lines = {f"i{i}": f"{kinds[i % 4]},{1990 + i % 3 * 10}" for i in range(30)}
    rows = "\n".join(f"{item},{line}" for item, line in lines.items())
    given = with_items(table, file(tmp_path / "items.csv", "item,tags,title,year\n" + rows))
    vectors, encoder = item_attributes(given.info, table.n_items, "")
    order = [str(item) for item in table.item_ids]
    new = file(tmp_path / "new.csv", "item,tags,title,year\n" + "\n".join(f"new{i},{lines[i]}" for i in order))
    found, unknown = encoder.encode_arrivals(read_arrivals(new))
    assert unknown == 0
    np.testing.assert_array_equal(found, vectors)
    assert len(np.unique(vectors, axis=0)) == 12


def test_new_items_that_tie_are_counted(tmp_path: Path) -> None:
    pairs = [f"u{user},i{(user * 7 + k * k) % 30}" for user in range(30) for k in range(8)]
    table = load(str(file(tmp_path / "d.csv", "user,item\n" + "\n".join(dict.fromkeys(pairs)))))
    same = file(tmp_path / "same.csv", "item,tags\n" + "\n".join(f"i{i},a" for i in range(30)))
    other = file(tmp_path / "other.csv", "item,price\n" + "\n".join(f"i{i},{i}" for i in range(30)))
    rule = protocol("ifedrec,ks=2,select_metric=recall@2")
    new = table.n_items - prepare(table, rule, items=str(same)).n_trained
    assert prepare(table, rule, items=str(same)).alike == (
        f"{new - 1} of {new} new items have the attributes of one before them and tie with it",
    )
    assert prepare(table, rule, items=str(other)).alike == ()
