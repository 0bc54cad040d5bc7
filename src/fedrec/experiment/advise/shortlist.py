"""What can be tried on some data: the candidates of `shortlist.toml` that fit it and what the user wishes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal

from fedrec.experiment.config import RunConfig
from fedrec.experiment.params import method_of
from fedrec.experiment.prepare import Prepared

Summed = Literal["counts", "co-occurrence", "trained tables"]
"""What the server's sum is made of; it decides what can be read off it."""
Needed = Literal["", "times", "silos", "devices"]


@dataclass(frozen=True)
class Wishes:
    """What an answer must keep to. `max_upload`: bytes that a client may send in the whole training."""

    minutes: float = 10.0
    blind: bool = False
    """Whether the server may see nothing but sums."""
    max_upload: int | None = None


@dataclass(frozen=True)
class Candidate:
    """A method with the settings that it begins with, and the values to try where time is left."""

    label: str
    method: str
    sum: Summed
    needs: Needed = ""
    backbone: str | None = None
    privacy: str = ""
    eval_every: int = 1
    clip: float = 1.0
    always: bool = False
    """Whether it is tried even where the time is over."""
    set: Mapping[str, Any] = field(default_factory=dict)
    with_noise: Mapping[str, Any] = field(default_factory=dict)
    """Settings without which noise would not reach everything."""
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def config(self, base: RunConfig, settings: Mapping[str, Any] | None = None) -> RunConfig:
        """The run of this candidate on the data of `base`."""
        noisy = base.epsilon is not None
        params = {**(self.set if settings is None else settings), **(self.with_noise if noisy else {})}
        # a rounding after the noise would be free, but one before it moves the norm that the noise is measured by
        privacy = f"clip={self.clip:g}" if noisy else self.privacy
        return replace(
            base,
            method=self.method,
            backbone=self.backbone,
            params=params,
            privacy=privacy,
            eval_every=self.eval_every,
        )

    def neighbours(self, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The same settings with one of them changed."""
        for name, values in self.vary.items():
            yield from ({**settings, name: value} for value in values if settings.get(name) != value)


def candidates() -> list[Candidate]:
    """Everything that is ever tried, in the order in which it is."""
    text = files("fedrec.experiment.advise").joinpath("shortlist.toml").read_text(encoding="utf-8")
    return [Candidate(**values) for values in tomllib.loads(text)["candidates"]]


def sort_out(base: RunConfig, data: Prepared, wishes: Wishes) -> tuple[list[Candidate], list[str]]:
    """The candidates that fit, and why each of the others does not."""
    suitable, reasons = list[Candidate](), list[str]()
    for candidate in candidates():
        if reason := _reason_against(candidate, base, data, wishes):
            reasons.append(f"{candidate.label}: {reason}")
        else:
            suitable.append(candidate)
    return suitable, reasons


def _reason_against(candidate: Candidate, base: RunConfig, data: Prepared, wishes: Wishes) -> str:
    """Why a candidate is not tried; empty where it is."""
    if candidate.needs == "times" and data.source.time == "none":
        return "reads the order of events, and the data has no times"
    silos = int(data.partition.sizes().max(initial=1)) > 1
    if candidate.needs == "silos" and not silos:
        return "is for companies with many users each (--silos)"
    if candidate.needs == "devices" and silos:
        return "trains a head for a single user"
    if wishes.blind and method_of(candidate.config(base)).disclosure.gathers:
        return "its server needs single uploads"
    return ""
