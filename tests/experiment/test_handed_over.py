"""Methods that are given themselves, not by name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import fedrec
from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Method, MethodInfo
from fedrec.methods import FedAvg, FedMF

from . import SMALL


@dataclass(frozen=True)
class Halved(FedMF):
    info: ClassVar[MethodInfo] = MethodInfo("halved")

    part: float = 0.5

    def weight(self, chunk: Chunk) -> None:
        return None


@dataclass(frozen=True)
class Nameless(FedMF):
    pass


def test_an_object_a_class_and_a_name_give_the_same() -> None:
    named = fedrec.run("fedavg", SMALL, backbone="ncf", dim=4, rounds=2)
    assert fedrec.run(FedAvg, SMALL, backbone="ncf", dim=4, rounds=2).test == named.test
    made = FedAvg(backbone="ncf", dim=4, optimiser="adam", lr=0.01, init_std=0.1, rounds=9)
    assert fedrec.run(made, SMALL, rounds=2).test == named.test


def test_a_method_that_nobody_registered_runs_and_goes_on(tmp_path: Path) -> None:
    whole = fedrec.run(Halved(dim=4, rounds=4), SMALL)
    fedrec.run(Halved(dim=4, rounds=2), SMALL, out=tmp_path / "run")
    resumed = fedrec.run(Halved(dim=4), SMALL, rounds=4, out=tmp_path / "run", resume=True)
    assert resumed.test == whole.test
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["method"], config["rounds"]) == ("halved", 4)
    assert (config["params"]["part"], config["params"]["dim"]) == (0.5, 4)


@pytest.mark.parametrize(
    ("method", "settings", "says"),
    [
        (Nameless(), {}, "Nameless: the name 'fedmf' belongs to another method"),
        (Halved(), {"part": -1}, "part=-1.* does not fit halved"),
        (Halved, {"parts": 1}, "did you mean 'part'"),
        (FedAvg(), {"preset": "fedca"}, "give its class"),
    ],
)
def test_mistakes_are_explained(method: Method | type[Method], settings: dict[str, object], says: str) -> None:
    with pytest.raises(FedrecError, match=says):
        fedrec.run(method, SMALL, **settings)  # type: ignore[arg-type]
