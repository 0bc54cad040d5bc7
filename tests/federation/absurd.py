"""Every method at rates at which training leaves the finite numbers, and how its runs end.

`python -m federation.absurd cuda fedca pfedrec`, in `tests/`, prints a line of JSON before every run and one after it:
where a GPU ends the process, the last line says in which run.
"""

from __future__ import annotations

import json
import sys
import traceback
import typing
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import fedrec
from fedrec.errors import DivergedError, FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.contract import Method
from fedrec.methods import built_in
from fedrec.methods.kinds import kinds_of

LARGE, HUGE = 1e19, 1e30  # steps whose squares leave single precision, and steps that soon do so themselves
WORLD = "synthetic@users=16+items=40+interactions=200+attributes=6+seed=1"
NEW_ITEMS = "ifedrec,ks=3,select_metric=recall@3,min_interactions=3"
ROUNDS, SMALL = 3, {"dim": 16, "epochs": 2}
FINITE, DIVERGED = "finite", "diverged"
NAMES = [cls.info.name for cls in built_in()]


@dataclass(frozen=True)
class Case:
    """A run. `params` are those of the method, `asked` those of the run."""

    method: str
    params: dict[str, Any]
    asked: dict[str, str] = field(default_factory=dict)
    data: str = WORLD
    rounds: int = ROUNDS

    def allowed(self) -> bool:
        """Whether the method can be built with these parameters."""
        try:
            named = {name: self.asked.get(name) for name in ("backbone", "preset")}
            build_method(self.method, params=self.params, **named)
        except FedrecError:
            return False
        return True

    def ends(self, device: str) -> str:
        """How it ends, where it ends as it should; everything else is raised."""
        try:
            fedrec.run(
                self.method,
                self.data,
                rounds=self.rounds,
                eval_every=self.rounds,
                device=device,
                progress=False,
                **self.asked,
                **self.params,
            )
        except DivergedError as error:
            said = str(error)
            assert "\n" not in said
            assert ": training diverged; " in said
            return DIVERGED
        return FINITE


EXPLODING_MIXTURE = Case(
    "fedca",
    {
        "optimiser": "sgd",
        "lr": 124,
        "epochs": 3,
        "alpha": 0.1,
        "beta": 0.43,
        "interpolation": 0.15,
        "aggregated_fraction": 1.0,
        "init": "normal",
        "weight_decay_dense": 0,
    },
    data="synthetic@users=100+items=300",
    rounds=60,
)
"""The products of its tables overflow before the tables do."""


def steps(name: str) -> bool:
    """Whether a method has a rate at all; others compute what they know in closed form."""
    return any(_rates(kind) for kind in _kinds(name))


def usual_cases(name: str) -> list[Case]:
    """Every backbone of a method."""
    return [case for kind in _kinds(name) for case in _with_backbones(kind) if case.allowed()]


def cases_of(name: str) -> list[Case]:
    """And every preset and every choice among few, with its first backbone."""
    others = [case for kind in _kinds(name) for case in _with_choices(kind) if case.allowed()]
    return usual_cases(name) + others


def _kinds(name: str) -> tuple[type[Method], ...]:
    return next(kinds_of(cls) for cls in built_in() if cls.info.name == name)


def _rates(kind: type[Method]) -> list[str]:
    """personal_lr is not among them: what it moves is clipped."""
    named = [item.name for item in fields(kind) if item.name != "personal_lr"]
    return [name for name in named if name == "lr" or name.startswith("lr_") or name.endswith("_lr")]


def _with_backbones(kind: type[Method]) -> Iterator[Case]:
    given = {item.name: item.default for item in fields(kind)}
    for backbone in kind.info.backbones or [None]:
        for rate in (LARGE, HUGE) if _rates(kind) else (0.0,):
            yield _case(kind, rate, backbone)
        if given.get("optimiser") == "adam":
            yield _case(kind, HUGE, backbone, optimiser="sgd")
        if "epochs" in given and "batch" in given:  # a single step: the server is the first to meet its result
            yield _case(kind, LARGE, backbone, epochs=1, batch=4096)


def _with_choices(kind: type[Method]) -> Iterator[Case]:
    first, hints = next(iter(kind.info.backbones), None), typing.get_type_hints(kind)
    yield from (_case(kind, LARGE, first, preset) for preset in kind.info.presets)
    for item in fields(kind):
        few = (True, False) if hints[item.name] is bool else typing.get_args(hints[item.name])
        if hints[item.name] is bool or typing.get_origin(hints[item.name]) is typing.Literal:
            yield from (_case(kind, LARGE, first, **{item.name: value}) for value in few if value != item.default)


def _case(kind: type[Method], rate: float, backbone: str | None, preset: str | None = None, **params: Any) -> Case:
    family = kind.__module__.split(".")[2]
    if family == "silo" and preset is None and "silo" in kind.info.presets:
        preset = "silo"  # else a backbone that devices have too would be theirs
    given = {item.name: item.default for item in fields(kind)}
    given |= {**kind.info.backbones.get(str(backbone), {}), **kind.info.presets.get(str(preset), {})}
    params |= {name: rate for name in _rates(kind) if given[name] is not None}
    if preset is None:
        params = {key: value for key, value in SMALL.items() if key in given} | params
    asked = {
        "backbone": backbone,
        "preset": preset,
        "silos": "3" if family == "silo" else None,
        "protocol": NEW_ITEMS if family == "cold" else None,
    }
    return Case(kind.info.name, params, {name: value for name, value in asked.items() if value is not None})


def main(device: str, wanted: list[str]) -> None:
    """`wanted`: names of methods, or cases as JSON."""
    warnings.simplefilter("error", RuntimeWarning)
    for word in wanted:
        for case in cases_of(word) if word in NAMES else [Case(**json.loads(word))]:
            print(json.dumps(asdict(case)), flush=True)
            try:
                ended = case.ends(device)
            except Exception:
                ended = traceback.format_exc()
            print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
