"""A metric against the one parameter that differs between the runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, ClassVar, Literal, cast

import numpy as np

from fedrec.errors import unknown
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.params import method_of
from fedrec.report.charts import Bar, Line, bars, line_chart, style_of
from fedrec.report.comparison import count_in_words
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table
from fedrec.report.figures.names import LONGEST, choose_metric
from fedrec.report.records import FIRST, find_convergence
from fedrec.report.tables import value_text
from fedrec.schema import is_number

PARTS = {"valid": "validation", "test": "test"}
ASIDE = ("seed", "device", "memory", "params", "preset", "eval_every", "patience")  # not what is studied
NEAR = "Near: at most 1 % below the highest value of the run on validation."
WIDE = 50  # times the smallest: from here on an axis is logarithmic unless told otherwise


@dataclass(frozen=True)
class Sensitivity(Figure):
    name: ClassVar[str] = "sensitivity"
    summary: ClassVar[str] = "a metric against the parameter that differs between the runs"

    parameter: str | None = None  # none: the only one that differs
    metric: str = "ndcg@10"
    on: Literal["valid", "test", "rounds"] = "valid"  # rounds: until the metric on validation is near its highest
    scale: Literal["auto", "linear", "log"] = "auto"

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        metric = choose_metric(runs, self.metric, "valid" if self.on == "rounds" else self.on)
        shown = (
            f"rounds until {metric} is within 1 % of its highest"
            if self.on == "rounds"
            else f"{metric} on {PARTS[self.on]}"
        )
        values = [settings_of(run) for run in runs]
        differing = _differing(values)
        chosen = self._parameter(differing, values)
        others = [key for key in differing if key != chosen]
        # Settings that change together with the parameter would make a line of every run, so only some name lines.
        telling = _telling(values, others, chosen)
        series: dict[str, dict[Any, list[FinishedRun]]] = {}
        for run, own in zip(runs, values, strict=True):
            label = " ".join([own["method"], *(f"{key}={_text(own[key])}" for key in telling if key in own)])
            series.setdefault(label, {}).setdefault(own.get(chosen), []).append(run)
        self._require_seeds(series)
        found = {
            label: {at: [self._value(run, metric) for run in some] for at, some in members.items()}
            for label, members in series.items()
        }
        numeric = all(is_number(at) for members in found.values() for at in members)
        panels = self._curves(chosen, shown, found) if numeric else self._bars(chosen, shown, found)
        heads = ("configuration", chosen, "seeds", shown)
        rows = tuple(
            (label, _text(at), count_in_words([run.summary for run in series[label][at]]), value_text(cell))
            for label, members in found.items()
            for at, cell in _order(members)
        )
        # A deviation of a single seed does not exist; a band of zero width would look like certainty.
        spread = any(len(cell) > 1 for members in found.values() for cell in members.values())
        leads = ["Dots are means over seeds, bands ± one standard deviation."] if spread else []
        leads += [NEAR] if self.on == "rounds" else []
        along = ", ".join(key for key in others if key not in telling)
        leads += [f"These parameters vary with it: {along}."] if along else []
        table = Table(f"By {chosen}", heads, rows)
        return Drawing(f"{shown} against {chosen}", " ".join(leads), panels, tables=(table,))

    def _value(self, run: FinishedRun, metric: str) -> float:
        if self.on != "rounds":
            return float(run.summary[self.on][metric])
        # Rounds are found run by run: a mean curve over seeds is smoother and reaches its top elsewhere.
        round = find_convergence(run, metric)
        self.require(
            round is not None, f"{run.folder} has no {metric} by round in metrics.jsonl; choose another metric"
        )
        return float(cast(int, round) + FIRST)

    def _parameter(self, differing: Sequence[str], values: Sequence[Mapping[str, Any]]) -> str:
        """The parameter of the x axis; an error where it is not clear which."""
        if self.parameter is not None:
            if not any(self.parameter in own for own in values):
                raise unknown("parameter", self.parameter, {key for own in values for key in own})
            self.require(self.parameter in differing, f"{self.parameter} is the same in all runs; choose another")
            return self.parameter
        self.require(bool(differing), "no parameter differs between these runs; give runs with several values of one")
        listed = ", ".join(differing)
        # Never a guess between two parameters: the x axis is what the figure claims to be the cause.
        self.require(len(differing) == 1, f"several parameters differ ({listed}); choose with --set parameter=NAME")
        return differing[0]

    def _require_seeds(self, series: Mapping[str, Mapping[Any, Sequence[FinishedRun]]]) -> None:
        for members in series.values():
            for some in members.values():
                seeds = {run.summary["seed"] for run in some}
                folders = ", ".join(str(run.folder) for run in some)
                # The same seed twice would count one draw as two and make the deviation too small.
                self.require(len(seeds) == len(some), f"the same seed twice ({folders}); remove one of them")

    def _curves(self, chosen: str, shown: str, found: Mapping[str, Mapping[Any, Sequence[float]]]) -> tuple[Panel, ...]:
        every = sorted({float(at) for members in found.values() for at in members})
        # From this ratio on, a linear axis would press the small values into one place.
        log = self.scale == "log" or (self.scale == "auto" and every[0] > 0 and every[-1] >= WIDE * every[0])
        self.require(not log or every[0] > 0, f"{chosen}={every[0]:g} cannot be shown on a logarithmic axis")
        lines = []
        for index, (label, members) in enumerate(found.items()):
            x = np.array([float(at) for at, _ in _order(members)])
            middle = np.array([mean(cell) for _, cell in _order(members)])
            # A spread of 0 for a single seed keeps the arrays alike; no band is drawn where all are 0.
            spread = np.array([stdev(cell) if len(cell) > 1 else 0.0 for _, cell in _order(members)])
            low, high = (middle - spread, middle + spread) if spread.any() else (None, None)
            lines.append(Line(label, x, middle, low, high, x.tolist(), style_of(index), unit=chosen))
        svg = line_chart(
            lines,
            title=f"{shown} against {chosen}: {', '.join(found)}",
            y_label=shown,
            x_label=f"{chosen} (logarithmic)" if log else chosen,
            x_log=log,
            longest=LONGEST,
        )
        return (Panel(svg, f"{shown} against {chosen}"),)

    def _bars(self, chosen: str, shown: str, found: Mapping[str, Mapping[Any, Sequence[float]]]) -> tuple[Panel, ...]:
        """Where values are words: a bar for each, a panel for each configuration."""
        panels = []
        for label, members in found.items():
            drawn = [
                Bar(_text(at), mean(cell), f"{mean(cell):.4f}", stdev(cell) if len(cell) > 1 else None, style_of(index))
                for index, (at, cell) in enumerate(_order(members))
            ]
            title = f"{shown} of {label} by {chosen}: " + ", ".join(f"{bar.label} {bar.text}" for bar in drawn)
            panels.append(Panel(bars(drawn, title=title, longest=LONGEST), f"{shown} by {chosen}, {label}"))
        return tuple(panels)


def settings_of(run: FinishedRun) -> dict[str, Any]:
    """All that decides a run's numbers but the seed: what was set, and what the method makes of the rest."""
    config = make_config(run.config)
    method = method_of(config)
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(RunConfig)}
    # Seed, device and the like do not decide the numbers, or are what is averaged over.
    common = {key: value for key, value in own.items() if key not in ASIDE}
    return common | {"method": method.info.name} | {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}


def _differing(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is not the same in all runs of a method: methods themselves are lines, not places on an axis."""
    found: dict[str, None] = {}
    # Method by method, since methods have parameters of their own that others lack.
    for method in dict.fromkeys(own["method"] for own in values):
        alike = [own for own in values if own["method"] == method]
        found |= {key: None for key in alike[0] if len({_text(own[key]) for own in alike}) > 1}
    return list(found)


def _telling(values: Sequence[Mapping[str, Any]], others: Sequence[str], chosen: str) -> list[str]:
    """Those of `others` that tell lines apart: not what goes along with one before it, nor numbers with the x axis."""
    kept: list[str] = []
    for key in others:
        number = all(is_number(own[key]) for own in values if key in own)
        before = [*kept, chosen] if number else kept
        if _kinds(values, [*before, key]) > _kinds(values, before):
            kept.append(key)
    return kept


def _kinds(values: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(_text(own.get(key)) for key in ("method", *keys)) for own in values})


def _order(members: Mapping[Any, Sequence[float]]) -> list[tuple[Any, Sequence[float]]]:
    numeric = all(is_number(at) for at in members)
    return sorted(members.items(), key=lambda pair: (float(pair[0]), "") if numeric else (0.0, _text(pair[0])))


def _text(value: Any) -> str:
    # Lists and other values as JSON, so that equal values have equal texts.
    return value if isinstance(value, str) else json.dumps(value, default=str)
