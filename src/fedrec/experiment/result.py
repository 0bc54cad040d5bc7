"""What a finished run gives back in Python: figures as frames, and itself as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from fedrec.data.frames import make_frame
from fedrec.evaluation import Evaluation
from fedrec.experiment.tested import Tested
from fedrec.schema import is_number

if TYPE_CHECKING:
    from fedrec.experiment.config import RunConfig
    from fedrec.experiment.opening import Chosen
    from fedrec.experiment.prepare import Prepared

Columns = dict[str, list[Any]]


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run. `summary` is what summary.json holds; frames are polars, or pandas where the data came so."""

    summary: dict[str, Any]
    evaluation: Evaluation
    users: dict[str, np.ndarray]
    """The columns of per_user.csv: `user`, every test metric, and more where users have one held-out item each."""
    records: tuple[dict[str, Any], ...]
    """What each round has left behind, as in metrics.jsonl."""
    config: RunConfig
    prepared: Prepared
    folder: Path | None = None
    pandas: bool = field(default=False, kw_only=True)
    chosen: Chosen | None = field(default=None, kw_only=True)
    """The run in memory with its model, where it has no folder."""

    @property
    def test(self) -> dict[str, float]:
        return dict(self.summary["test"])

    @property
    def valid(self) -> dict[str, float]:
        return dict(self.summary["valid"])

    @property
    def metrics(self) -> Any:
        """A frame with a row for every metric: test, validation, chance."""
        return make_frame(_metric_columns(self.summary), self.pandas)

    @property
    def history(self) -> Any:
        """A frame with a row for every round, counted from 1; validation metrics are missing where none was due."""
        return make_frame(_rounds(self.records), self.pandas)

    @property
    def per_user(self) -> Any:
        """A frame with a row for every tested user."""
        return make_frame(self.users, self.pandas)

    def __repr__(self) -> str:
        return _text(_title(self.summary), _metric_columns(self.summary), self._where)

    def _repr_html_(self) -> str:
        return html_table(_title(self.summary), _metric_columns(self.summary), self._where)

    @property
    def _where(self) -> str:
        return "" if self.folder is None else f"run folder: {self.folder}"


class Results(Sequence[Result]):
    """The runs of several seeds: a sequence of results, with their means."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = tuple(results)

    @overload
    def __getitem__(self, place: int) -> Result: ...

    @overload
    def __getitem__(self, place: slice) -> Results: ...

    def __getitem__(self, place: int | slice) -> Result | Results:
        return Results(self._results[place]) if isinstance(place, slice) else self._results[place]

    def __len__(self) -> int:
        return len(self._results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @property
    def seeds(self) -> list[int]:
        return [one.summary["seed"] for one in self]

    @property
    def test(self) -> dict[str, float]:
        """Means over seeds."""
        return {name: mean(one.test[name] for one in self) for name in self[0].test}

    @property
    def valid(self) -> dict[str, float]:
        return {name: mean(one.valid[name] for one in self) for name in self[0].valid}

    @property
    def metrics(self) -> Any:
        """A frame with a row for every metric: mean and standard deviation over seeds, test and validation."""
        return make_frame(self._columns(), self[0].pandas)

    @property
    def history(self) -> Any:
        """The rounds of all seeds, with a column `seed`."""
        rows = [{"seed": seed, **record} for seed, one in zip(self.seeds, self, strict=True) for record in one.records]
        return make_frame(_rounds(rows), self[0].pandas)

    @property
    def per_user(self) -> Any:
        """The users of all seeds, with a column `seed`."""
        seed = np.concatenate([np.full(len(one.users["user"]), one.summary["seed"]) for one in self])
        names = self[0].users
        return make_frame(
            {"seed": seed} | {name: np.concatenate([one.users[name] for one in self]) for name in names}, self[0].pandas
        )

    def _columns(self) -> Columns:
        names = _choose_metrics(self[0].summary)
        found: Columns = {"metric": names}
        for part, title in (("test", "test"), ("valid", "validation")):
            values = [[one.summary[part].get(name) for one in self] for name in names]
            found[title] = [None if None in row else mean(row) for row in values]
            found[f"{title}_std"] = [None if None in row or len(row) < 2 else stdev(row) for row in values]
        return found

    def __repr__(self) -> str:
        return _text(self._title, self._columns(), "")

    def _repr_html_(self) -> str:
        return html_table(self._title, self._columns(), "")

    @property
    def _title(self) -> str:
        return f"{_what(self[0].summary)}, mean over seeds {', '.join(map(str, self.seeds))}"


def _what(summary: Mapping[str, Any]) -> str:
    data = summary["dataset"]
    tested = Tested.from_summary(summary)
    users = "" if tested is None else f", tested on {tested.count}"
    leaks = "".join(f"; not honest: {leak}" for leak in summary["leaks"])
    return f"{summary['method']} on {data['name']}, protocol {summary['protocol']}{users}{leaks}"


def _title(summary: Mapping[str, Any]) -> str:
    chosen = f"round {summary['best_round'] + 1} of {summary['rounds_run']}"
    return f"{_what(summary)}, seed {summary['seed']}, {chosen}"


def _choose_metrics(summary: Mapping[str, Any]) -> list[str]:
    """hr@k repeats recall@k or is close to it; it stays in `test`."""
    return [name for name in summary["test"] if not name.startswith("hr@")]


def _metric_columns(summary: Mapping[str, Any]) -> Columns:
    names = _choose_metrics(summary)
    parts = {"test": summary["test"], "validation": summary["valid"], "chance": summary["chance"]}
    return {"metric": names} | {title: [part.get(name) for name in names] for title, part in parts.items()}


def _rounds(records: Sequence[Mapping[str, Any]]) -> Columns:
    """Numbers of every round side by side; what a round does not have is None."""
    rows = []
    for record in records:
        plain = {name: value for name, value in record.items() if is_number(value)}
        rows.append(plain | {"round": record["round"] + 1} | record.get("valid", {}))
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _cells(columns: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    """The header and the rows of a table as text."""
    return [list(columns), *([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))]


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _text(title: str, columns: Mapping[str, Sequence[Any]], end: str) -> str:
    rows = _cells(columns)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]) for first, *rest in rows]
    return "\n".join([title, *lines, *([end] if end else [])])


def html_table(title: str, columns: Mapping[str, Sequence[Any]], end: str) -> str:
    """A plain table that takes the look of the notebook around it."""
    header, *rows = _cells(columns)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    foot = f"<p><small>{escape(end)}</small></p>" if end else ""
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"
