"""The Python face of fedrec: what `import fedrec` offers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fedrec.data import Interactions, datasets, load
from fedrec.data.frames import from_frame, is_frame, is_pandas
from fedrec.data.roles import as_columns
from fedrec.errors import FedrecError
from fedrec.evaluation import metric
from fedrec.experiment.advise import Advice, Wishes
from fedrec.experiment.advise import advise as find_advice
from fedrec.experiment.config import COLUMNS, RunConfig, make_config
from fedrec.experiment.disk import Keep
from fedrec.experiment.driver import Listener, StopRun, execute
from fedrec.experiment.listeners import Keeping, Several, Tracker, listener_for
from fedrec.experiment.params import adopt_method
from fedrec.experiment.result import Result, Results
from fedrec.experiment.run_plan import Data
from fedrec.experiment.trackers import TensorBoard
from fedrec.federation.contract import Method
from fedrec.methods import register
from fedrec.serve import Recommender

if TYPE_CHECKING:
    from fedrec.report.figures.compared import Compared

__all__ = [
    "Interactions",
    "Recommender",
    "Result",
    "Results",
    "StopRun",
    "TensorBoard",
    "advise",
    "compare",
    "datasets",
    "load",
    "metric",
    "register",
    "run",
]

Callback = Listener | Tracker | Callable[[dict[str, float]], Any]


@overload
def run(
    method: str | Method | type[Method],
    data: Any = ...,
    *,
    protocol: str = ...,
    out: str | Path | None = ...,
    resume: bool = ...,
    config: dict[str, Any] | None = ...,
    seeds: None = ...,
    keep: Keep = ...,
    callbacks: Iterable[Callback] = ...,
    progress: bool | None = ...,
    **params: Any,
) -> Result: ...


@overload
def run(
    method: str | Method | type[Method],
    data: Any = ...,
    *,
    protocol: str = ...,
    out: str | Path | None = ...,
    resume: bool = ...,
    config: dict[str, Any] | None = ...,
    seeds: Iterable[int],
    keep: Keep = ...,
    callbacks: Iterable[Callback] = ...,
    progress: bool | None = ...,
    **params: Any,
) -> Results: ...


def run(
    method: str | Method | type[Method],
    data: Any = "ml-100k",
    *,
    protocol: str = "honest",
    out: str | Path | None = None,
    resume: bool = True,
    config: dict[str, Any] | None = None,
    seeds: Iterable[int] | None = None,
    keep: Keep = "model",
    callbacks: Iterable[Callback] = (),
    progress: bool | None = None,
    **params: Any,
) -> Result | Results:
    """Train and evaluate one method; the Python face of `fedrec run`.

    `method` is a name, or a method that need not be registered: an object or a class. `data` is a name, a file, a
    pandas or polars frame, or interactions that were loaded.
    `params` are fields of the run (seed, rounds, silos, participation, lost_uploads, ..., and the columns of the data
    where they are not recognised: user, item, rating, timestamp) or parameters of the method (dim, lr, dropout, ...).
    `out` is the run folder; what it holds of the same run already is not done again, unless `resume=False`.
    `keep`: what stays in it: "nothing" but the results, the "model" of the chosen round, or the "last" state as well.
    `seeds`: one run each, in folders `out/seed0`, ...; returns them together.
    `callbacks` follow the run: functions of a round's figures, listeners, or trackers such as `TensorBoard(folder)`.
    `progress`: whether it is shown; None: in terminals and notebooks.
    """
    fields = set(RunConfig.__dataclass_fields__)
    values: dict[str, Any] = dict(config or {})
    values |= {name: value for name, value in params.items() if name in fields}
    own = {name: value for name, value in params.items() if name not in fields}
    name, table = _table(data, values)
    values |= {"method": method, "data": name, "protocol": protocol, "params": {**values.get("params", {}), **own}}
    made = None if isinstance(method, str) else adopt_method(method, values)
    shared: Data = table
    found = list[Result]()
    for one in _configs(make_config(values), seeds):
        folder = _folder(out, None if seeds is None else one.seed)
        result, shared = _run_one(one, folder, resume, _followers(one, callbacks, progress), shared, made, keep)
        found.append(replace(result, pandas=is_pandas(data)))
    return found[0] if seeds is None else Results(found)


def advise(
    data: Any = "ml-100k",
    *,
    minutes: float = 10.0,
    protocol: str = "honest",
    silos: str | int | None = None,
    blind: bool = False,
    max_upload: int | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    out: str | Path | None = None,
    progress: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **fields: Any,
) -> Advice:
    """Which method to take for some data, and why; the Python face of `fedrec advise`.

    What fits is tried within `minutes`, on validation items alone. `blind`: the server may see nothing but sums.
    `max_upload`: bytes that a client may send in the whole training. `epsilon`, `delta`: a budget of privacy. `out`:
    a folder, from which the same call goes on where it was stopped. `clock`: what the minutes are counted by, in
    seconds. `fields` are those of a run: seed, device, the columns of the data. The answer prints as a table with two
    sentences; `fedrec.run(data=data, method=advice.method, config=advice.settings)` runs what it says.
    """
    table_name, table = _table(data, fields)
    noise = {} if epsilon is None else {"epsilon": epsilon, "delta": delta}
    where = {} if silos is None else {"silos": str(silos)}
    config = make_config({**fields, **noise, **where, "method": "popularity", "data": table_name, "protocol": protocol})
    folder = None if out is None else Path(out)

    def follow(label: str) -> Listener:
        if not _is_shown(progress):
            return Listener()
        from fedrec.commands import progress as drawn

        return drawn.listener(label, quiet=False, as_json=False, notes=False)

    advice = find_advice(config, Wishes(minutes, blind, max_upload), folder, table, clock, follow=follow)
    if folder is not None:
        from fedrec.report.pages.advice_page import write_advice

        write_advice(advice, folder / "advice.html")
    return advice


def _table(data: Any, values: dict[str, Any]) -> tuple[str, Interactions | None]:
    """The name of some data, and its rows where they were handed over."""
    columns = as_columns({role: values.get(role) for role in COLUMNS})
    if columns and isinstance(data, Interactions):
        raise FedrecError(f"the columns of '{data.name}' are known: choose {' and '.join(columns)} where it is loaded")
    table = from_frame(data, columns=columns) if is_frame(data) else data if isinstance(data, Interactions) else None
    return (str(data) if table is None else table.label), table


def _configs(config: RunConfig, seeds: Iterable[int] | None) -> list[RunConfig]:
    chosen = None if seeds is None else [int(seed) for seed in seeds]
    if chosen is not None and (not chosen or len(set(chosen)) < len(chosen)):
        raise FedrecError(f"seeds={chosen}: give at least one, and each once")
    return [config] if chosen is None else [replace(config, seed=seed) for seed in chosen]


def _folder(out: str | Path | None, seed: int | None) -> Path | None:
    return None if out is None else Path(out) if seed is None else Path(out) / f"seed{seed}"


def _run_one(
    config: RunConfig, out: Path | None, resume: bool, listener: Listener, data: Data, method: Method | None, keep: Keep
) -> tuple[Result, Data]:
    """A run, and what the next seed works on: a table that was given, or what was prepared of the named one."""
    keeping = Keeping(listener)
    try:
        result = execute(config, out, resume, keeping, data, method, keep=keep)
    finally:
        keeping.stop()
    return result, data if isinstance(data, Interactions) else keeping.chosen.run.prepared


def _followers(config: RunConfig, callbacks: Iterable[Callback], progress: bool | None) -> Listener:
    followers = [listener_for(callback) for callback in callbacks]
    if _is_shown(progress):
        from fedrec.commands import progress as drawn

        followers = [drawn.listener(f"{config.method} seed {config.seed}", quiet=False, as_json=False), *followers]
    return Several(followers)


def _is_shown(progress: bool | None) -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress


def compare(
    runs: Sequence[Any], *, metrics: Sequence[str] | None = None, references: bool | None = None, on: str | None = None
) -> Compared:
    """Results or run folders side by side, with the tests of `fedrec compare`.

    `references`: popularity and local beside them. True trains what is missing, once per data and protocol; None takes
    those that need no training: popularity, and local if it was trained before. `on`: "test" or "valid"; None:
    validation where the runs are settings of one method, between which one would choose, and test otherwise.
    """
    from fedrec.commands.progress import listener_of
    from fedrec.experiment.references import absent_references, find_references
    from fedrec.report import comparison
    from fedrec.report.figures.compared import compared, finished

    found = finished(runs)
    comparison.compare(found)  # refuses what cannot be compared, before any work is done
    beside = find_references(found, references, listener_of)
    absent = absent_references([*found, *beside]) if references is None else []
    note = f"Without {' and '.join(absent)}; references=True trains what is missing." if absent else ""
    return compared(found, beside, metrics, on, note)
