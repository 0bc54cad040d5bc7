"""Exported models, read back by other programs, give the scores of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Cli
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import execute
from fedrec.serve import Recommender

SMALL = "synthetic@users=40+items=80+interactions=700+seed=1"
INNER = [
    RunConfig("fedmf", data=SMALL, rounds=2, params={"dim": 4}),
    RunConfig("mf", data=SMALL, rounds=2, params={"dim": 4}),
]
SEQUENCES = [
    RunConfig("sasrec", data=SMALL, rounds=1, params={"dim": 8, "length": 6, "heads": 2, "norm_first": True}),
    RunConfig("sasrec", data=SMALL, rounds=1, params={"dim": 4, "length": 30, "blocks": 1}),
    RunConfig("sasrec", data=SMALL, rounds=1, params={"dim": 6, "length": 9, "block_kind": "ligr"}),
]


def scores(folder: Path) -> tuple[Recommender, np.ndarray]:
    """[users, items], answered from what was trained on."""
    recommender = Recommender(folder)
    found = np.zeros((len(recommender.user_ids), recommender.run.world.items), np.float32)
    for users, rows in recommender.run.simulator.scores(recommender.round):
        found[users] = rows.numpy()
    return recommender, found


def session(path: Path) -> Any:
    return pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("config", INNER, ids=lambda config: config.method)
def test_inner_products(cli: Cli, tmp_path: Path, config: RunConfig) -> None:
    execute(config, tmp_path / "run")
    recommender, wanted = scores(tmp_path / "run")
    outcome = cli("export", "run", "--to", "onnx", "--out", "model.onnx")
    assert (outcome.code, outcome.out) == (0, "written: model.onnx, model.ids.json\n"), outcome.err
    everyone = np.arange(len(recommender.user_ids))
    assert np.allclose(session(tmp_path / "model.onnx").run(None, {"user": everyone})[0], wanted, atol=1e-5)
    names = json.loads((tmp_path / "model.ids.json").read_text())
    assert names["users"] == recommender.user_ids.tolist()
    assert names["items"] == recommender.item_ids.tolist()
    assert cli("export", "run", "--to", "npz").code == 0
    with np.load(tmp_path / "run.npz", allow_pickle=False) as arrays:
        assert np.allclose(arrays["user"] @ arrays["item"].T, wanted, atol=1e-5)
        assert arrays["user_ids"].tolist() == recommender.user_ids.tolist()
    assert (tmp_path / "model.onnx").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("config", SEQUENCES, ids=lambda config: str(config.params["dim"]))
def test_sequences(cli: Cli, tmp_path: Path, config: RunConfig) -> None:
    execute(config, tmp_path / "run")
    recommender, wanted = scores(tmp_path / "run")
    assert cli("export", "run", "--to", "onnx").code == 0
    data, longest = recommender.run.simulator.data, int(config.params["length"])
    own = [data.history[data.user_ptr[at] : data.user_ptr[at + 1]][-longest:] for at in data.place_of]
    filled = np.full((len(own), max(map(len, own))), 7)
    for row, history in enumerate(own):
        filled[row, : len(history)] = history
    given = {"items": filled, "length": np.array([len(history) for history in own])}
    found = session(tmp_path / "run.onnx").run(None, given)[0]
    assert np.allclose(found, wanted, atol=1e-4)
    assert cli("export", "run", "--to", "npz").code == 0
    with np.load(tmp_path / "run.npz", allow_pickle=False) as arrays:
        assert json.loads(str(arrays["settings"]))["length"] == longest
        assert arrays["item"].shape == (80, int(config.params["dim"]))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (RunConfig("fedavg", data=SMALL, rounds=1, backbone="ncf", params={"dim": 4}), "fedavg with backbone ncf"),
        (RunConfig("pfedrec", data=SMALL, rounds=1, params={"dim": 4}), "pfedrec"),
        (RunConfig("fedrap", data=SMALL, rounds=1, params={"dim": 4}), "fedrap"),
        (RunConfig("ease", data=SMALL), "ease"),
        (RunConfig("popularity", data=SMALL), "popularity"),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_what_scores_otherwise_is_refused_by_name(cli: Cli, tmp_path: Path, config: RunConfig, name: str) -> None:
    execute(config, tmp_path / "run")
    outcome = cli("export", "run", "--to", "npz")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"error: {name}")
    assert "can be served but not exported" in outcome.err
    assert not (tmp_path / "run.npz").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--to", "pickle"), "unknown format 'pickle'; known: npz, onnx"),
        (("--to", "npz", "--out", "x.onnx"), "with --to npz the file name must end in .npz"),
    ],
)
def test_another_format_is_refused(cli: Cli, words: tuple[str, ...], says: str) -> None:
    outcome = cli("export", "run", *words)
    assert outcome.code == 2
    assert says in outcome.err
