"""Python as people expect it: frames in and out, seeds, callbacks, comparisons, and results that show themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fedrec
from fedrec.data import synthetic
from fedrec.experiment.driver import Listener
from fedrec.experiment.trackers import TensorBoard

SMALL = {"rounds": 3, "dim": 4, "protocol": "honest,ks=10"}


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    data = synthetic(users=60, items=80, seed=0).interactions
    when = np.arange(len(data)) * 1_000_000
    return {"user_id": data.user_ids[data.user], "item_id": data.item_ids[data.item], "when": when}


@pytest.fixture(scope="module")
def frame(rows: dict[str, np.ndarray]) -> pl.DataFrame:
    return pl.DataFrame(rows).rename({"when": "timestamp"})


def test_a_frame_is_read_as_its_file_would_be(frame: pl.DataFrame, tmp_path: Path) -> None:
    frame.write_csv(tmp_path / "log.csv")
    filed, given = fedrec.load(str(tmp_path / "log.csv")), fedrec.load(frame)
    other = fedrec.load(pd.DataFrame(frame.to_dict(as_series=False)))
    for one in (given, other):
        assert one.user.tolist() == filed.user.tolist()
        assert one.item_ids.tolist() == filed.item_ids.tolist()
        assert one.timestamp is not None
        assert filed.timestamp is not None
        assert one.timestamp.tolist() == filed.timestamp.tolist()
    assert fedrec.load(tmp_path / "log.csv").version == filed.version, "a Path is a path"
    assert given.version != fedrec.load(frame[:-1]).version, "other rows are another version"
    assert fedrec.load(frame, name="shop").name == "shop"


def test_columns_of_pandas_keep_what_they_mean() -> None:
    dates = pd.to_datetime(["2024-01-02", "2024-01-01", "2024-01-03"]).tz_localize("Europe/Berlin")
    words = pd.DataFrame({"who": ["b", "a", "a"], "item": pd.Categorical([7, 8, 7]), "date": dates})
    data = fedrec.load(words, user="who")
    assert data.user_ids.tolist() == ["a", "b"]
    assert data.timestamp is not None
    assert np.argsort(data.timestamp).tolist() == [1, 0, 2]
    with pytest.raises(fedrec.FedrecError, match="row 1, column user: user is missing"):
        fedrec.load(pd.DataFrame({"user": ["a", None], "item": [1, 2]}))
    with pytest.raises(fedrec.FedrecError, match=r'no column for user among who, item, date; .*user="COLUMN"'):
        fedrec.load(words)
    with pytest.raises(fedrec.FedrecError, match="collect"):
        fedrec.load(pl.LazyFrame({"user": [1], "item": [2]}))


def test_frames_come_out_as_they_went_in(frame: pl.DataFrame) -> None:
    ours = fedrec.run("fedmf", frame, **SMALL)
    theirs = fedrec.run("fedmf", pd.DataFrame(frame.to_dict(as_series=False)), **SMALL)
    for table in (ours.metrics, ours.history, ours.per_user):
        assert isinstance(table, pl.DataFrame)
    for table in (theirs.metrics, theirs.history, theirs.per_user):
        assert isinstance(table, pd.DataFrame)
    assert ours.history["round"].to_list() == [1, 2, 3]
    assert ours.history["ndcg@10"].null_count() == 0
    assert ours.per_user["ndcg@10"].mean() == pytest.approx(ours.test["ndcg@10"])
    assert ours.metrics.row(by_predicate=pl.col("metric") == "ndcg@10", named=True)["test"] == ours.test["ndcg@10"]


def test_a_result_shows_itself(frame: pl.DataFrame) -> None:
    result = fedrec.run("fedmf", fedrec.load(frame, name="<shop>"), **SMALL)
    text = repr(result)
    assert len(text.splitlines()) < 20
    assert f"{result.test['ndcg@10']:.4f}" in text
    assert "round" in text.splitlines()[0]
    page = result._repr_html_()
    assert page.startswith("<table>")
    assert "&lt;shop&gt;" in page


def test_seeds_are_one_run_each(frame: pl.DataFrame, tmp_path: Path) -> None:
    both = fedrec.run("fedmf", frame, seeds=[0, 3], out=tmp_path / "runs", **SMALL)
    assert both.seeds == [0, 3]
    assert (tmp_path / "runs" / "seed3" / "summary.json").exists()
    alone = fedrec.run("fedmf", frame, seed=3, **SMALL)
    assert both[1].test == alone.test
    assert both.test["ndcg@10"] == pytest.approx((both[0].test["ndcg@10"] + alone.test["ndcg@10"]) / 2)
    assert both.history["seed"].to_list() == [0] * 3 + [3] * 3
    assert both.per_user.height == 2 * both[0].per_user.height
    assert "mean over seeds 0, 3" in repr(both)
    with pytest.raises(fedrec.FedrecError, match="each once"):
        fedrec.run("fedmf", frame, seeds=[1, 1], **SMALL)


def test_the_same_call_twice_is_the_same_run(frame: pl.DataFrame, tmp_path: Path) -> None:
    first = fedrec.run("fedmf", frame, out=tmp_path / "run", **SMALL)
    heard: list[dict[str, float]] = []
    again = fedrec.run("fedmf", frame, out=tmp_path / "run", callbacks=[heard.append], **SMALL)
    assert again.test == first.test
    assert not heard, "no round was trained again"
    assert again.history.height == 3
    with pytest.raises(fedrec.FedrecError, match="other settings"):
        fedrec.run("fedmf", frame, out=tmp_path / "run", rounds=3, dim=5, protocol="honest,ks=10")


class Recorder:
    """A tracker in memory."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self, settings: Any) -> None:
        self.calls.append(settings["method"])

    def log(self, values: Any, round: int) -> None:
        self.calls.append((round, sorted(values)))

    def end(self, results: Any) -> None:
        self.calls.append(sorted(results))


def test_callbacks_follow_a_run(frame: pl.DataFrame) -> None:
    heard: list[dict[str, float]] = []
    tracker, rounds = Recorder(), []

    class Own(Listener):
        def round(self, log: Any, score: Any, progress: Any) -> None:
            rounds.append(log.round)

    result = fedrec.run("fedmf", frame, callbacks=[heard.append, tracker, Own()], **SMALL)
    assert [one["round"] for one in heard] == [1, 2, 3]
    assert heard[-1]["valid/ndcg@10"] == result.history["ndcg@10"][-1]
    assert rounds == [0, 1, 2]
    assert tracker.calls[0] == "fedmf"
    assert tracker.calls[1][0] == 1
    assert "test/ndcg@10" in tracker.calls[-1]
    with pytest.raises(fedrec.FedrecError, match="cannot follow a run"):
        fedrec.run("fedmf", frame, callbacks=[3], **SMALL)  # type: ignore[list-item]


def test_a_tracker_is_closed_when_a_run_breaks_off(frame: pl.DataFrame) -> None:
    tracker = Recorder()

    def stop(figures: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedrec.run("fedmf", frame, callbacks=[tracker, stop], **SMALL)
    assert tracker.calls[-1] == []


def test_tensorboard_has_every_round(frame: pl.DataFrame, tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = fedrec.run("fedmf", frame, callbacks=[TensorBoard(tmp_path / "events")], **SMALL)
    events = accumulators.EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    found = [(one.step, one.value) for one in events.Scalars("valid/ndcg@10")]
    assert found == [(k + 1, pytest.approx(v, rel=1e-5)) for k, v in enumerate(result.history["ndcg@10"])]
    assert events.Scalars("test/ndcg@10")[0].value == pytest.approx(result.test["ndcg@10"], rel=1e-5)


def test_comparisons_need_no_folders(frame: pl.DataFrame, tmp_path: Path) -> None:
    runs = [fedrec.run(name, frame, seeds=[0, 1], **SMALL) for name in ("fedmf", "pfedrec")]
    table = fedrec.compare(runs, references=False)
    assert table.metrics["method"].to_list() == ["fedmf dim=4 rounds=3", "pfedrec linear dim=4 rounds=3"]
    assert table.metrics["ndcg@10"][0] == pytest.approx(runs[0].test["ndcg@10"])
    assert table.significance is not None
    assert table.significance.height == 1
    assert "test" in table.to_markdown()
    assert table._repr_html_().startswith("<table>")
    assert "tabular" in table.save(tmp_path / "table.tex").read_text()
    assert table.figure("bars", tmp_path / "bars.svg").exists()
    kept = fedrec.run("fedmf", frame, out=tmp_path / "run", **SMALL)
    read_back = fedrec.compare(tmp_path / "run", references=False)
    shutil.rmtree(tmp_path / "run")  # what is in memory needs no folder
    assert fedrec.compare([kept], references=False).to_markdown() == read_back.to_markdown()


def test_settings_of_one_method_are_compared_on_validation(frame: pl.DataFrame) -> None:
    runs = [fedrec.run("fedmf", frame, rounds=2, dim=dim, protocol="honest,ks=10") for dim in (4, 8)]
    table = fedrec.compare(runs, references=False)
    assert table.comparison.part == "valid"
    assert "validation" in table.to_markdown()
    assert table.metrics["ndcg@10"].to_list() == [one.valid["ndcg@10"] for one in runs]
    assert table.significance is None
    asked = fedrec.compare(runs, references=False, on="test")
    assert asked.metrics["ndcg@10"].to_list() == [one.test["ndcg@10"] for one in runs]


def test_references_of_a_frame(frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "cache"))
    table = fedrec.compare([fedrec.run("fedmf", frame, **SMALL)], references=True)
    assert {"popularity", "local"} <= set(table.metrics["method"])


def test_dir_is_complete_and_costs_nothing() -> None:
    code = "import fedrec, sys; print(dir(fedrec)); assert 'torch' not in sys.modules"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("run", "load", "compare", "Result", "Results", "Recommender", "datasets", "FedrecError"):
        assert f"'{name}'" in names
        assert getattr(fedrec, name)
