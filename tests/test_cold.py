"""New items end to end: attributes, the split, runs of the command line, items that arrive after training."""

from __future__ import annotations

import csv
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedrec import cli
from fedrec.data import Interactions, ItemInfo, load, stored
from fedrec.data.attributes import Encoder, item_attributes, term_counts, title_terms
from fedrec.data.readers import read_svmlight
from fedrec.errors import FedrecError
from fedrec.evaluation import Evaluator, protocol
from fedrec.experiment.prepare import prepare, prepare_split
from fedrec.methods import methods
from fedrec.serve import Arrival, Recommender

DATA = "synthetic@users=60+items=120+interactions=1500+attributes=30+seed=1"
PROTOCOL = "ifedrec,ks=3+5,select_metric=recall@3+recall@5"


@pytest.fixture(scope="module")
def world() -> Interactions:
    return load(DATA)


def fedrec(*words: str) -> None:
    sys.argv = ["fedrec", *words]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    sys.argv = ["fedrec", *words]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cold") / "run"
    fedrec(
        "run",
        "ifedrec",
        "--data",
        DATA,
        "--protocol",
        PROTOCOL,
        "--set",
        "dim=8",
        "--set",
        "align=0.04",
        "--rounds",
        "3",
        "--out",
        str(path),
        "-q",
    )
    return path


def test_cold_items_come_last_and_are_never_drawn(world: Interactions) -> None:
    prepared = prepare(world, protocol(PROTOCOL))
    warm = prepared.warm
    assert warm is not None
    assert prepared.split.train.item.max() < warm
    for part in (prepared.split.valid, prepared.split.test):
        assert part.item.min() >= warm
        assert (np.diff(np.unique(part.item_ids[part.item])) > 0).all()
    original = {(u, i) for u, i in zip(world.user_ids[world.user], world.item_ids[world.item], strict=True)}
    source = prepared.source
    assert {(u, i) for u, i in zip(source.user_ids[source.user], source.item_ids[source.item], strict=True)} == original
    cold = source.item_ids[warm:]
    assert (np.diff(cold) > 0).all()  # ties by item number are those of the original numbers


def test_known_items_in_the_test_part_are_refused(world: Interactions) -> None:
    split = prepare(world, protocol("honest,min_interactions=3")).split
    with pytest.raises(FedrecError, match="not new at test"):
        prepare_split(split, protocol(PROTOCOL))


def test_a_narrow_evaluation_is_the_wide_one(world: Interactions) -> None:
    prepared = prepare(world, protocol(PROTOCOL))
    wide, narrow = prepared.test, prepared.test.over_catalogue()
    scores = torch.randn(len(wide), wide.n_items, generator=torch.Generator().manual_seed(0))
    scores = scores.round(decimals=0)  # ties
    means = []
    for targets, columns in ((wide, scores), (narrow, scores[:, torch.from_numpy(wide.catalogue)])):
        judge = Evaluator(targets, ks=(3, 5), ties="item_id", metrics=("recall", "ndcg", "ndcg_index", "coverage"))
        judge.update(targets.users, columns)
        means.append(judge.result().mean())
    assert means[0] == pytest.approx(means[1])


def test_attributes_are_fitted_on_warm_items_alone() -> None:
    """Whatever cold items look like, warm ones keep their vectors, and a cold copy of a warm item is its equal."""
    rng = np.random.default_rng(0)
    tags = sp.csr_matrix((rng.random((50, 12)) < 0.3).astype(np.float32))
    for cold in (tags[:10], sp.csr_matrix(np.ones((10, 12), np.float32))):
        info = ItemInfo(tags=sp.vstack([tags, cold], format="csr"), tag_names=tuple("abcdefghijkl"))
        vectors, _ = item_attributes(info, 50, "x")
        if cold.shape[0] == 10 and (cold != tags[:10]).nnz == 0:
            assert np.array_equal(vectors[50:], vectors[:10])
            first = vectors
        assert np.array_equal(vectors[:50], first[:50])
        assert vectors.dtype == np.float32
    assert np.allclose(first[:50].mean(0), 0, atol=0.1)


def test_the_recipe_by_hand() -> None:
    """Two terms on four items: log(1 + count) * log(N / (1 + df)), rotated, standardised."""
    counts = sp.csr_matrix(np.array([[3, 0], [0, 1], [1, 1], [0, 0]], dtype=np.float64))
    encoder = Encoder.fit(counts, ("a", "b"))
    weighted = np.log1p(counts.toarray()) * np.log(4 / 3)
    plain = weighted @ np.linalg.svd(weighted)[2].T
    expected = np.abs((plain - plain.mean(0)) / plain.std(0))
    assert np.allclose(np.abs(encoder.encode(counts)), np.abs(expected), atol=1e-5)
    assert np.array_equal(
        encoder.encode(encoder.counts([["a", "a", "a"], ["b", "unknown"]])), encoder.encode(counts[:2])
    )


def test_terms_of_films() -> None:
    assert title_terms("The Net (1995)", 1995) == ["1990s", "the", "net"]
    info = ItemInfo(titles=np.array(["A Bug's Life", "Bug"]), years=np.array([1998, 0]))
    counts, words = term_counts(info)
    assert words == ("1990s", "bug", "life")
    assert counts.toarray().tolist() == [[1, 1, 1], [0, 1, 0]]
    with pytest.raises(FedrecError, match="no item attributes"):
        item_attributes(None, 3, "filmtrust")


def test_published_word_counts_make_another_version_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "item_features.txt").write_text("0 0:1 3:2\n0\n0 2:1\n")
    with pytest.raises(FedrecError, match=r"item_features\.txt describes 3 items instead of 16,980; put the published"):
        stored._citeulike_items(tmp_path)
    monkeypatch.setattr(stored, "_CITEULIKE_ITEMS", 3)
    info, mark = stored._citeulike_items(tmp_path)
    assert info is not None
    assert mark.startswith("+words-")
    (tmp_path / "item_features.txt").write_text("0 0:1 3:2\n0\n0 2:2\n")
    assert stored._citeulike_items(tmp_path)[1] != mark
    (tmp_path / "item_features.txt").unlink()
    assert stored._citeulike_items(tmp_path) == (None, "")


def test_released_features_take_the_place_of_words_and_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_CITEULIKE_ITEMS", 3)
    (tmp_path / "item_features.txt").write_text("0 0:1 3:2\n0\n0 2:1\n")
    np.save(tmp_path / "item_features.npy", np.array([[0.5, -1.0], [2.0, 0.0], [1.0, 3.0]]))
    info, mark = stored._citeulike_items(tmp_path)
    assert info is not None
    assert info.features is not None
    assert info.features.toarray().tolist() == [[0.5, -1.0], [2.0, 0.0], [1.0, 3.0]]
    assert mark.startswith("+features-"), "another version of the data"
    values, _ = item_attributes(info, 3, "citeulike-a:coldstart")
    assert values.shape == (3, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((2, 4)), r"has the shape \(2, 4\) instead of 3 rows"),
        (np.zeros(3), "instead of 3 rows"),
        (np.full((3, 1), np.nan), "not finite"),
        (None, "is not a NumPy array"),
    ],
)
def test_features_that_are_none_are_refused(
    values: np.ndarray | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_CITEULIKE_ITEMS", 3)
    file = tmp_path / "item_features.npy"
    if values is None:
        file.write_text("no array")
    else:
        np.save(file, values)
    with pytest.raises(FedrecError, match=message):
        stored._citeulike_items(tmp_path)


def test_published_word_counts_are_read(tmp_path: Path) -> None:
    (tmp_path / "item_features.txt").write_text("0 0:1 3:2\n0\n0 2:1\n")
    assert read_svmlight(tmp_path / "item_features.txt").toarray().tolist() == [
        [1, 0, 0, 2],
        [0, 0, 0, 0],
        [0, 0, 1, 0],
    ]
    (tmp_path / "bad.txt").write_text("0 a:b\n")
    with pytest.raises(FedrecError, match="damaged"):
        read_svmlight(tmp_path / "bad.txt")


def test_new_items_for_users(folder: Path, tmp_path: Path) -> None:
    fedrec("recommend", str(folder), "--all", "--cold", "-k", "4", "--out", str(tmp_path / "recs.csv"))
    rows = list(csv.DictReader((tmp_path / "recs.csv").open()))
    recommender = Recommender(folder, cold=True)
    warm = recommender.run.prepared.warm
    cold = set(map(str, recommender.item_ids[warm:]))
    assert {row["item"] for row in rows} <= cold
    assert len(rows) == 60 * 4
    known = [rec.item for rec in Recommender(folder).for_user("0", 4)]
    assert not {str(item) for item in known} & cold


def test_items_that_arrive_after_training(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An arrival with the tags of a cold item of the run has its score."""
    recommender = Recommender(folder, cold=True)
    twin = recommender.for_user("5", 1)[0]
    tags = recommender.run.prepared.source.info.tags[int(np.flatnonzero(recommender.item_ids == twin.item)[0])]
    named = [f"tag{j}" for j in tags.indices]
    new = tmp_path / "items.csv"
    new.write_text(f"item,tags\nnew-1,{'|'.join(named)}\nnew-2,nobody-knows\n")
    fedrec("cold-add", str(folder), str(new), "--out", str(tmp_path / "recs.csv"))
    assert "1 of 2 items share no attribute" in capsys.readouterr().out
    rows = [row for row in csv.DictReader((tmp_path / "recs.csv").open()) if row["user"] == "5"]
    assert {row["item"] for row in rows} == {"new-1", "new-2"}
    score = {row["item"]: float(row["score"]) for row in rows}["new-1"]
    assert score == pytest.approx(twin.score, rel=1e-5)
    fedrec("cold-add", str(folder), str(new), "--user", "5")
    assert "new-1" in capsys.readouterr().out
    with pytest.raises(FedrecError, match="no new items to rank"):
        recommender.add([])
    recommender.run.simulator.server["attributes"][3] += 1
    with pytest.raises(FedrecError, match="computed in a different way"):
        recommender.add([Arrival("another", ("tag1",))])
    recommender.run.simulator.server["attributes"][3] -= 1
    with pytest.raises(FedrecError, match="already in this run"):
        recommender.add([Arrival("0", ("tag1",))])


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.csv").write_text("name\nx\n")
    assert "needs a header" in refused(capsys, "cold-add", str(folder), str(tmp_path / "bad.csv"), "--user", "1")
    (tmp_path / "twice.csv").write_text("item,tags\nnew,tag1\nnew,tag2\n")
    assert "several lines" in refused(capsys, "cold-add", str(folder), str(tmp_path / "twice.csv"), "--user", "1")
    assert "give --user ID, or --out" in refused(capsys, "cold-add", str(folder), str(tmp_path / "bad.csv"))
    assert "cannot rank items" in refused(capsys, "run", "fedmf", "--data", DATA, "--protocol", PROTOCOL)


def test_nothing_that_is_needed_is_overwritten(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, new = tmp_path / "run", tmp_path / "new.csv"
    shutil.copytree(folder, run)
    new.write_text("item,tags\nnew,tag1\n")
    before = {path: path.read_bytes() for path in (new, *run.iterdir())}
    for out, words in ((new, "overwrite the input file"), (run / "config.toml", "a file of the run itself")):
        assert words in refused(capsys, "cold-add", str(run), str(new), "--out", str(out))
    lost = run / "summary.json"
    assert "a file of the run itself" in refused(capsys, "recommend", str(run), "--all", "--out", str(lost))
    assert "a file of the run itself" in refused(capsys, "compare", str(run), "--out", str(lost))
    assert "a file of the run itself" in refused(capsys, "report", str(run), "--out", str(lost))
    assert {path: path.read_bytes() for path in (new, *run.iterdir())} == before
    lost.unlink()
    assert "is not finished: continue it with" in refused(capsys, "recommend", str(run), "--user", "5")


def test_methods_say_who_sees_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    fedrec("methods")
    words = " ".join(capsys.readouterr().out.split())
    assert words.count("attributes at:") == sum(cls().disclosure.attributes != "none" for cls in methods().values())


def test_other_settings_of_a_run(world: Interactions) -> None:
    """Participation, noise and the published ablation go through the same door."""
    from fedrec import run

    small = {"dim": 8, "align": 0.04, "rounds": 1, "protocol": PROTOCOL}
    assert run("IPFedRec", world, participation=0.5, privacy="laplace=0.5", **small).test["recall@5"] >= 0
    base = replace(world, notes=())
    still = run("ifedrec", base, preset="unaligned", dim=8, rounds=1, protocol=PROTOCOL)
    assert any("0 of the way" in note for note in still.summary["notes"])
