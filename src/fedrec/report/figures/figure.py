"""What a figure is: a record of its settings that draws from finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.params import parse_fields


@dataclass(frozen=True)
class Panel:
    """One picture of a figure, with what stands above it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Table:
    """The numbers behind the pictures, for those who want to read them."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Drawing:
    title: str
    lead: str
    panels: tuple[Panel, ...]
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Figure:
    """Base of all figures. Subclasses are frozen dataclasses; each field is a setting with a default."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        raise NotImplementedError

    @classmethod
    def build(cls, settings: Mapping[str, str]) -> Figure:
        """With settings from text; those that do not fit are refused."""
        return cls(**{key: parse_fields(cls, cls.name, key, value) for key, value in settings.items()})

    @classmethod
    def settings(cls) -> str:
        """The names of all settings."""
        return ", ".join(field.name for field in fields(cls))

    def require(self, good: bool, message: str) -> None:
        if not good:
            raise FedrecError(f"{self.name}: {message}")


def only_run(figure: Figure, runs: Sequence[FinishedRun]) -> FinishedRun:
    """The run of a figure that shows a single one."""
    folders = ", ".join(str(run.folder) for run in runs[:3])
    figure.require(len(runs) == 1, f"shows one run, not {len(runs)} ({folders}); give one run folder")
    return runs[0]


def numbers(text: str) -> list[int]:
    """`3,17` as whole numbers."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise FedrecError(f"'{text}' should be integers separated by commas, e.g. 0,7,12") from None
    if len(set(found)) < len(found):
        raise FedrecError(f"'{text}' has one twice; give different ones")
    return found
