"""From flags, files and Python to one config: what wins, what is refused, what is written can be read."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedrec
from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment import config as config_module
from fedrec.experiment.config import RunConfig, make_config, parse_memory, read_config
from fedrec.experiment.params import build_method, convert, parse_settings
from fedrec.federation.contract import Method, MethodInfo
from fedrec.methods import method_class

from . import SMALL


def test_the_config_of_a_run_folder_gives_the_run_again(cli: Cli, tmp_path: Path) -> None:
    flags = (
        "--data",
        SMALL,
        "--protocol",
        "honest,ks=5+10,negatives=2",
        "--backbone",
        "ncf",
        "--rounds",
        3,
        "--seed",
        7,
        "--silos",
        "5:random",
        "--participation",
        0.5,
        "--eval-every",
        2,
        "--patience",
        3,
        "--privacy",
        "clip=1,gaussian=0.01",
        "--delta",
        1e-6,
        "--memory",
        "1G",
        "--set",
        "dim=4",
        "--set",
        "lr=0.5",
        "--set",
        "lr_item=none",
        "--set",
        "optimiser=adam",
    )
    first = cli("run", "fedavg", *flags, "--out", "a", "--json")
    assert first.code == 0, first
    again = cli("run", "--config", "a/config.toml", "--out", "b", "--json")
    assert again.code == 0, again
    for name in ("config.toml", "per_user.csv", "checkpoint.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    one, two = (json.loads((tmp_path / run / "summary.json").read_text()) for run in "ab")
    for part in ("test", "valid", "bytes", "privacy", "best_round", "protocol", "clients"):
        assert one[part] == two[part]


def test_flags_win_over_the_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        f'method = "local"\ndata = "{SMALL}"\nrounds = 9\nseed = 4\n[params]\ndim = 4\nlr = 1.0\n'
    )
    outcome = cli("run", "fedmf", "--config", "c.toml", "--rounds", 2, "--set", "dim=2", "--out", "run", "--json")
    assert outcome.code == 0, outcome
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["method"], config["rounds"], config["seed"]) == ("fedmf", 2, 4)
    assert config["params"] == {"dim": "2", "lr": 1.0}
    assert json.loads(outcome.out.splitlines()[-1])["rounds_run"] == 2


TEXT = st.text("abcxyz0189 \"'\\[]=#\n\tü", max_size=12)
CONFIGS = st.builds(
    RunConfig,
    method=TEXT,
    data=TEXT,
    protocol=TEXT,
    backbone=st.none() | TEXT,
    params=st.dictionaries(TEXT.filter(bool), st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | TEXT),
    rounds=st.none() | st.integers(1, 9),
    seed=st.integers(0, 2**63 - 1),
    participation=st.floats(0.01, 1.0),
    patience=st.none() | st.integers(1, 9),
    epsilon=st.none() | st.floats(0.1, 9.0),
    delta=st.none() | st.floats(1e-9, 0.5),
    memory=st.sampled_from(["8G", "512M"]),
)


@given(CONFIGS)
def test_toml_round_trip(config: RunConfig) -> None:
    import tomli_w

    values = tomllib.loads(tomli_w.dumps(config.to_dict()))
    back = make_config(values)
    assert back.to_dict() == config.to_dict()
    assert replace(back, params={}) == replace(config, params={})


def test_what_python_hands_over_can_be_written_and_read(tmp_path: Path) -> None:
    """None and numpy's numbers have no place in TOML, but are what a notebook passes."""
    common: dict[str, Any] = {"rounds": np.int64(2), "dim": np.int64(4), "lr": np.float64(1.0), "lr_item": None}
    result = fedrec.run("fedmf", SMALL, out=tmp_path / "run", seed=np.int64(3), **common)
    again = fedrec.run(**read_config(tmp_path / "run" / "config.toml"))
    assert again.test == result.test
    resumed = fedrec.run("fedmf", SMALL, out=tmp_path / "run", seed=3, resume=True, **common)
    assert resumed.test == result.test


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rounds": "5"}, "rounds = '5' has the wrong type"),
        ({"rounds": 0}, "at least 1"),
        ({"seed": 1.5}, "seed = 1.5 has the wrong type"),
        ({"participation": "half"}, "wrong type"),
        ({"config": {"roundz": 3}}, "did you mean 'rounds'"),
        ({"dimm": 4}, "did you mean 'dim'"),
        ({"dim": "large"}, "it should be int"),
        ({"protocol": "hones"}, "did you mean 'honest'"),
        ({"silos": "x"}, "K:taste"),
    ],
)
def test_fedrec_run_explains_mistakes_in_python_too(values: dict[str, Any], says: str) -> None:
    with pytest.raises(FedrecError, match=says):
        fedrec.run("fedmf", SMALL, **values)


@dataclass(frozen=True)
class Toy(Method):
    info: ClassVar[MethodInfo] = MethodInfo(
        "toy",
        presets={"paper": {"size": 9, "rounds": 5}, "tuned": {"size": 10}},
        backbones={"mf": {}, "ncf": {}},
    )

    size: int = 3
    rate: float = 0.5
    gate: bool = True
    kind: Literal["E", "EC"] = "E"
    limit: int | None = None
    word: str = "a"
    backbone: str = "mf"


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("size", "4", 4),
        ("size", "-4", -4),
        ("size", 4.0, 4),
        ("rate", "1e-3", 0.001),
        ("rate", "2", 2.0),
        ("rate", 2, 2.0),
        ("gate", "false", False),
        ("gate", "True", True),
        ("gate", False, False),
        ("kind", "EC", "EC"),
        ("limit", "none", None),
        ("limit", "None", None),
        ("limit", None, None),
        ("limit", "7", 7),
        ("word", "none", "none"),
        ("word", "7", "7"),
    ],
)
def test_settings_take_the_declared_type(key: str, text: Any, value: Any) -> None:
    found = convert(Toy, key, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("size", "4.5"),
        ("size", 4.5),
        ("size", "x"),
        ("size", ""),
        ("size", True),
        ("size", None),
        ("size", "1e3"),
        ("rate", "x"),
        ("rate", "nan"),
        ("rate", "inf"),
        ("rate", "none"),
        ("gate", "yes"),
        ("gate", "1"),
        ("gate", 1),
        ("kind", "e"),
        ("kind", ""),
        ("limit", "x"),
        ("limit", "2.5"),
        ("word", 7),
        ("size", [1]),
        ("rate", {"a": 1}),
    ],
)
def test_settings_that_do_not_fit_are_refused(key: str, text: Any) -> None:
    with pytest.raises(FedrecError, match=f"{key}=.* does not fit toy: it should be"):
        convert(Toy, key, text)


def test_presets_lie_between_defaults_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrec.experiment.params.method_class", lambda name: (Toy, {"gate": False, "size": 1}))
    assert build_method("toy") == Toy(gate=False, size=1)
    assert build_method("toy", preset="paper") == Toy(gate=False, size=9, rounds=5)
    assert build_method("toy", preset="paper", params={"size": "2"}, rounds=8) == Toy(gate=False, size=2, rounds=8)
    assert build_method("toy", params={"backbone": "mf"}, backbone="ncf").backbone == "ncf"  # type: ignore[attr-defined]
    with pytest.raises(FedrecError, match="unknown preset of toy 'papr'; did you mean 'paper'"):
        build_method("toy", preset="papr")
    with pytest.raises(FedrecError, match="unknown backbone of toy 'nfc'; did you mean 'ncf'"):
        build_method("toy", backbone="nfc")


@pytest.mark.parametrize(
    ("alias", "name", "backbone"),
    [
        ("WAA", "fedavg", "mf"),
        ("waa", "fedavg", "mf"),
        ("IM", "local", "mf"),
        ("fedncf", "fedavg", "ncf"),
        ("FedNCF", "fedavg", "ncf"),
        ("FEDMF", "fedmf", "mf"),
    ],
)
def test_names_of_the_papers(alias: str, name: str, backbone: str) -> None:
    assert method_class(alias)[0].info.name == name
    method = build_method(alias)
    assert (method.info.name, getattr(method, "backbone", None)) == (name, backbone)
    assert fedrec.run(alias, SMALL, rounds=1, dim=2).summary["method"] == name  # output uses the one name


def test_settings_are_cut_at_the_first_equals_sign() -> None:
    assert parse_settings(["a=1", " b = x=y ", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1", " =1", ""):
        with pytest.raises(FedrecError, match="key=value"):
            parse_settings([bad])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8G", 8 << 30),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("64m", 64 << 20),
        (" 2 TB ", 2 << 40),
        (".5G", 1 << 29),
    ],
)
def test_memory_sizes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "8", "G", "-1G", "0G", "eight", "8 GG", "1e9", "8G 8G"])
def test_memory_that_is_no_size(text: str) -> None:
    with pytest.raises(FedrecError, match=r"e\.g\. 8G"):
        parse_memory(text)


def test_a_small_budget_changes_nothing_but_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "SMALLEST_MEMORY", 1)  # so small that a few clients are a chunk
    large, small = (fedrec.run("fedavg", SMALL, rounds=3, dim=4, memory=memory).test for memory in ("8G", "20K"))
    assert small == pytest.approx(large, abs=1e-6)


def test_files_are_recorded_by_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("user,item\n")
    config = make_config({"method": "fedmf", "data": "mine.csv", "attributes": "gone.csv"})
    assert config.data == str(tmp_path / "mine.csv")
    assert config.attributes == "gone.csv", "what is no file is said as it was given"
    assert make_config({"method": "fedmf", "data": "ml-100k"}).data == "ml-100k"
