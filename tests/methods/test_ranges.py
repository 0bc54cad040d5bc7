"""Numbers with which no run makes sense are refused by every method, before any work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import pytest

from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method, parameters
from fedrec.federation.contract import Method
from fedrec.federation.ranges import ANY, Interval, interval_of
from fedrec.methods import BUILT_IN
from fedrec.methods.kinds import kinds_of

NUMBERS = {int, float, int | None, float | None}
ALL = [kind for method in BUILT_IN for kind in kinds_of(method)]


@pytest.mark.parametrize("cls", ALL)
def test_every_number_of_every_method_has_a_least_and_is_finite(cls: type[Method]) -> None:
    made = cls()
    for name, hint in parameters(cls).items():
        if hint not in NUMBERS:
            continue
        anything = interval_of(cls, name, hint in (int, int | None)).broken_bounds(-1.0) == []
        assert not anything or name in ("threshold", "popularity_power")
        for wrong in [float("nan"), float("inf"), *([] if anything else [-1])]:
            with pytest.raises(FedrecError, match=f"{name}={wrong} does not fit {cls.info.name}: it must be "):
                dataclasses.replace(made, **{name: wrong})


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("name", ["rounds", "dim", "batch", "epochs", "clusters", "components", "temperature"])
def test_nothing_is_trained_with_none_of_it(cls: type[Method], name: str) -> None:
    if name in parameters(cls):
        with pytest.raises(FedrecError, match=f"{name}=0.* does not fit {cls.info.name}: it must be (at least|above)"):
            build_method(cls.info.name, backbone=[None, *cls.info.backbones][-1], params={name: "0"})


@pytest.mark.parametrize("cls", ALL)
def test_defaults_and_presets_are_in_range(cls: type[Method]) -> None:
    for preset in (None, *cls.info.presets):
        for backbone in (None, *cls.info.backbones):
            build_method(cls.info.name, preset=preset, backbone=None if preset else backbone)


def test_the_nearest_class_says_which_numbers() -> None:
    @dataclasses.dataclass(frozen=True)
    class First(Method):
        share: Annotated[float, Interval("(0, 1]")] = 0.5
        shift: Annotated[float, Interval(ANY)] = -3.0

    @dataclasses.dataclass(frozen=True)
    class Second(First):
        share: Annotated[float, "[0, 0.5)"] = 0.0
        shift: float = -4.0  # another default, the same numbers

    assert First(share=1, shift=-9).share == 1
    assert Second(share=0.25, shift=-9).shift == -9
    for wrong, says in ((First, "share=0 .* above 0"), (Second, "share=0.5 .* below 0.5")):
        with pytest.raises(FedrecError, match=says):
            wrong(share=0 if wrong is First else 0.5)


@pytest.mark.parametrize(
    ("method", "setting", "says"),
    [
        ("fedmf", "lr=-1", "at least 0"),
        ("fedmf", "lr=nan", "should be finite"),
        ("fedavg", "dim=0", "at least 1"),
        ("sasrec", "negatives=-1", "at least 1"),
        ("cofedrec", "temperature=0", "above 0"),
        ("fedrkg", "clip=-0.1", "above 0"),
        ("fedca", "interpolation=1.5", "at most 1"),
    ],
)
def test_the_command_line_says_so_in_one_line(cli: Cli, tmp_path: Path, method: str, setting: str, says: str) -> None:
    outcome = cli("run", method, "--set", setting, "--data", "synthetic", "--out", "run")
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert says in outcome.err
    assert not (tmp_path / "run").exists()


def test_the_list_of_parameters_shows_ranges(cli: Cli) -> None:
    lines = cli("methods", "fedca").out.splitlines()
    for name, legal in (("dropout", "[0, 1)"), ("batch", ">= 1"), ("aggregated_fraction", "(0, 1]")):
        (line,) = [line for line in lines if line.startswith(f"{name} ")]
        assert legal in line
