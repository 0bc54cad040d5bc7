"""The Python face beyond `run`: studies, fits, frames for everything, tables over several data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fedrec
from fedrec.api import in_python
from fedrec.data import load, write_csv
from fedrec.errors import FedrecError

WORLD = "synthetic@users=40+items=50+interactions=700"
RULES = fedrec.protocol("honest", ks=(5, 10))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def frame(tmp_path: Path) -> pl.DataFrame:
    write_csv(load(WORLD), tmp_path / "log.csv")
    return pl.read_csv(tmp_path / "log.csv")


def test_a_protocol_is_an_object_or_keywords() -> None:
    assert RULES.ks == (5, 10)
    by_object = fedrec.run("popularity", WORLD, protocol=RULES)
    by_text = fedrec.run("popularity", WORLD, protocol="honest,ks=5+10")
    assert by_object.test == by_text.test
    assert set(fedrec.protocol("honest", ks=[3], min_rating=4, patience=None).ks) == {3}
    with pytest.raises(FedrecError, match="unknown protocol field 'kss'"):
        fedrec.protocol("honest", kss=(5,))


def test_a_search_and_a_sweep(frame: pl.DataFrame, tmp_path: Path) -> None:
    space = {"l2": (10.0, 1000.0), "order": [True, False]}
    tuned = fedrec.tune("fedgram", frame, trials=3, space=space, protocol=RULES, out=tmp_path / "t")
    assert len(tuned.trials) == 3
    assert {"l2", "order", "ndcg@10"} <= set(tuned.frame.columns)
    again = fedrec.tune("fedgram", frame, trials=3, space=space, protocol=RULES, out=tmp_path / "t")
    assert again.trials == tuned.trials
    best = fedrec.run("fedgram", frame, protocol=RULES, **tuned.params)
    assert best.valid["ndcg@10"] == pytest.approx(tuned.best.value)
    swept = fedrec.sweep("fedgram", frame, values={"l2": [10.0, 100.0]}, protocol=RULES, order=True)
    assert swept.frame["l2"].to_list() == [10.0, 100.0]
    assert "(best)" in repr(swept)
    assert fedrec.run("fedgram", frame, config=swept.settings).valid["ndcg@10"] == pytest.approx(swept.best.value)


def test_a_fit_and_the_next_day(frame: pl.DataFrame, tmp_path: Path) -> None:
    result = fedrec.run("fedgram", frame, protocol=RULES, out=tmp_path / "run")
    with pytest.raises(FedrecError, match="give it again with data=frame"):
        fedrec.fit(result, tmp_path / "model")
    served = fedrec.fit(result, tmp_path / "model", data=frame)
    assert len(served.for_user(frame["user"][0], 3)) == 3
    new = frame.head(1).with_columns(pl.lit(9999, dtype=pl.Int64).alias("user"))
    day = fedrec.fit(tmp_path / "model", tmp_path / "day", data=new, warm=True)
    assert day.for_user(9999, 2)
    with pytest.raises(FedrecError, match="this run was not kept; give it a folder"):
        fedrec.fit(fedrec.run("fedgram", frame, protocol=RULES), tmp_path / "none")


def test_a_recommender_without_a_folder(frame: pl.DataFrame, tmp_path: Path) -> None:
    memory = fedrec.run("fedmf", frame, protocol=RULES, rounds=3, dim=4)
    kept = fedrec.run("fedmf", frame, protocol=RULES, rounds=3, dim=4, out=tmp_path / "run")
    user = frame["user"][0]
    given = (memory, kept, tmp_path / "run")
    lists = [[rec.item for rec in fedrec.Recommender(one).for_user(user, 5)] for one in given]
    assert lists[0] == lists[1] == lists[2]


def test_own_splits_and_attributes_as_frames(frame: pl.DataFrame, tmp_path: Path) -> None:
    ordered = frame.with_columns(pl.col("timestamp").rank("ordinal", descending=True).over("user").alias("age"))
    parts = {
        "test": ordered.filter(pl.col("age") == 1),
        "valid": ordered.filter(pl.col("age") == 2),
        "train": ordered.filter(pl.col("age") > 2),
    }
    frames = {name: part.drop("age") for name, part in parts.items()}
    by_frames = fedrec.run("popularity", protocol=RULES, **frames)
    for name, part in frames.items():
        part.write_csv(tmp_path / f"{name}.csv")
    by_files = fedrec.run("popularity", protocol=RULES, **{name: str(tmp_path / f"{name}.csv") for name in frames})
    assert by_frames.test == by_files.test
    ids = sorted(set(frame["item"]))
    items = pl.DataFrame({"item": ids, "title": [f"Thing {n}" for n in ids]})
    titled = fedrec.run("popularity", frame, protocol=RULES, attributes=items)
    assert fedrec.Recommender(titled).for_user(frame["user"][0], 1)[0].title.startswith("Thing ")


def test_companies_as_frames(frame: pl.DataFrame) -> None:
    both = fedrec.run("fedgram", [frame, frame.with_columns(pl.col("user") + 1000)], protocol=RULES, silos="files")
    assert both.summary["clients"] == 2


def test_one_table_over_several_data_sets(tmp_path: Path) -> None:
    other = "synthetic@users=30+items=40+interactions=500+seed=3"
    runs = [fedrec.run(name, data, protocol=RULES) for data in (WORLD, other) for name in ("popularity", "fedgram")]
    table = fedrec.compare(runs, metrics=["ndcg@10"])
    assert table.methods == ["popularity", "fedgram"]
    text = table.to_markdown()
    assert text.count("**") == 4  # one bold figure for each data set
    assert text.count("<u>") == 2
    best = max(runs[:2], key=lambda run: run.test["ndcg@10"])
    assert f"**{best.test['ndcg@10']:.4f}**" in text
    latex = table.save(tmp_path / "table.tex").read_text()
    assert latex.count(r"\textbf{") == 2
    assert latex.count(r"\underline{") == 2
    assert table.frame.shape == (2, 3)
    assert "<b>" in table._repr_html_()
    with pytest.raises(FedrecError, match="one table has one protocol"):
        fedrec.compare([runs[0], fedrec.run("popularity", other, protocol="honest,ks=10")])


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("choose with: --user COLUMN --item COLUMN", "choose with: user=COLUMN item=COLUMN"),
        ("give a lower --min-rating", "give a lower min_rating=..."),
        ("add --set epochs=1", "add epochs=1"),
        ("use --protocol honest,ks=5", "use protocol=... honest,ks=5"),
        ("give --data or your own split (--train, --test)", "give data=... or your own split (train=..., test=...)"),
    ],
)
def test_messages_speak_python(said: str, meant: str) -> None:
    assert in_python(said) == meant


def test_an_error_says_what_to_write_in_python(tmp_path: Path) -> None:
    frame: Any = pl.DataFrame({"who": range(50), "what": range(50), "rating": [1] * 50})
    with pytest.raises(FedrecError) as refused:
        fedrec.run("popularity", frame, user="who", item="what", min_interactions=3)
    assert "--" not in str(refused.value)
