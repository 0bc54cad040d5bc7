"""The Python face of fedrec: what `import fedrec` offers."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from fedrec.data import Interactions, datasets, load
from fedrec.data.companies import SEPARATOR
from fedrec.data.frames import from_frame, is_frame, is_pandas
from fedrec.data.given_frames import as_file
from fedrec.data.roles import as_columns
from fedrec.data.table import FRAME
from fedrec.errors import FedrecError
from fedrec.evaluation import Protocol, metric
from fedrec.evaluation import protocol as find_protocol
from fedrec.evaluation.fields import text as field_text
from fedrec.experiment.advise import Advice, Wishes
from fedrec.experiment.advise import advise as find_advice
from fedrec.experiment.config import COLUMNS, RunConfig, make_config
from fedrec.experiment.disk import Keep
from fedrec.experiment.driver import Listener, StopRun, execute
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.listeners import Keeping, Several, Tracker, listener_for
from fedrec.experiment.params import adopt_method, method_of
from fedrec.experiment.result import Result, Results
from fedrec.experiment.run_plan import Data
from fedrec.experiment.trackers import TensorBoard
from fedrec.experiment.trials import Trials
from fedrec.federation.contract import Method
from fedrec.methods import register
from fedrec.serve import Recommender

if TYPE_CHECKING:
    from fedrec.report.across import AcrossData
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
    "fit",
    "load",
    "metric",
    "protocol",
    "register",
    "run",
    "sweep",
    "tune",
]

Callback = Listener | Tracker | Callable[[dict[str, float]], Any]


# These go into the config as paths of files, so a frame must be written to one before it can be named there.
GIVEN = ("train", "valid", "test", "attributes")
FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: ([A-Z][A-Z]+\b|[0-9][\w.-]*|[\w./-]+\.csv\b))?")
Face = TypeVar("Face", bound=Callable[..., Any])


def in_python(message: str) -> str:
    """A message with the keywords of Python in the place of flags."""
    # Before the flags below, because `--set lr=` would otherwise become `set=...`, which no function here takes.
    words = re.sub(r"--set ([a-z_]+)=", r"\1=", message)
    return FLAG.sub(lambda found: f"{found[1].replace('-', '_')}={found[2] or '...'}", words)


def speaks_python(function: Face) -> Face:
    """Let the errors of a function say what to write in Python, not on the command line."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except FedrecError as error:
            # The same object is raised again, so that its class and traceback stay what they were.
            error.args = (in_python(str(error)), *error.args[1:])
            raise

    return cast(Face, call)


@overload
def run(
    method: str | Method | type[Method],
    data: Any = ...,
    *,
    protocol: str | Protocol = ...,
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
    protocol: str | Protocol = ...,
    out: str | Path | None = ...,
    resume: bool = ...,
    config: dict[str, Any] | None = ...,
    seeds: Iterable[int],
    keep: Keep = ...,
    callbacks: Iterable[Callback] = ...,
    progress: bool | None = ...,
    **params: Any,
) -> Results: ...


@speaks_python
def run(
    method: str | Method | type[Method],
    data: Any = "ml-100k",
    *,
    protocol: str | Protocol = "honest",
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
    pandas or polars frame, interactions that were loaded, or a list of files or frames: a company each (silos="files").
    `protocol` is a name with fields, or an object (`fedrec.protocol("honest", ks=(10,))`). Your own split and the
    description of items (train, valid, test, attributes) are files or frames.
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
    # What is no field of a run must be a parameter of the method, which knows better than this module which it has.
    name, table = _table(data, values)
    values |= {"method": method, "data": name, "params": {**values.get("params", {}), **own}}
    values |= _settings(values, protocol)
    # Adopted before the config is checked, for its name stands in the config.
    made = None if isinstance(method, str) else adopt_method(method, values)
    shared: Data = table
    found = list[Result]()
    for one in _configs(make_config(values), seeds):
        folder = _folder(out, None if seeds is None else one.seed)
        result, shared = _run_one(one, folder, resume, _followers(one, callbacks, progress), shared, made, keep)
        # A result's frames are of the library that the data came in, which is what its user works with.
        found.append(replace(result, pandas=is_pandas(data)))
    return found[0] if seeds is None else Results(found)


@speaks_python
def tune(
    method: str,
    data: Any = "ml-100k",
    *,
    trials: int = 12,
    minutes: float | None = None,
    space: Mapping[str, Any] | None = None,
    protocol: str | Protocol = "honest",
    out: str | Path | None = None,
    progress: bool | None = None,
    **params: Any,
) -> Trials:
    """Search a method's parameters on validation items; the Python face of `fedrec tune`.

    `space`: `{"lr": (0.01, 1.0), "dim": [16, 32]}`, a pair for a range and a list for values, beside what the method
    declares. `params` are fields of the runs, or parameters of the method that stay as they are. `out`: a folder from
    which the same call goes on.
    """
    from fedrec.experiment.search_space import space_of
    from fedrec.experiment.tuning import Budget, Study, search

    config = _study_config(method, data, protocol, params)
    made = method_of(config)
    given = [f"{name}={_space_text(values)}" for name, values in (space or {}).items()]
    searched = space_of(made, given, config.params)
    with _folder_for(out) as place:
        done = search(
            Study(place, config, searched),
            made,
            Budget(trials, minutes),
            lambda trial, best: None,
            lambda number: _listener_for(f"trial {number + 1} of {trials}", progress),
        )
    return Trials(tuple(done), find_protocol(config.protocol).select_metric, config, is_pandas(data))


@speaks_python
def sweep(
    method: str,
    data: Any = "ml-100k",
    *,
    values: Mapping[str, Sequence[Any]],
    protocol: str | Protocol = "honest",
    out: str | Path | None = None,
    progress: bool | None = None,
    **params: Any,
) -> Trials:
    """Run a method with every combination of listed values; the Python face of `fedrec sweep`.

    `values`: `{"lr": [0.1, 0.5], "dim": [16, 32]}`. The rest is as in `tune`.
    """
    from fedrec.experiment.grid_search import Sweep, grid_of
    from fedrec.experiment.grid_search import sweep as run_sweep

    config = _study_config(method, data, protocol, params)
    space = grid_of(method_of(config), {name: _space_text(list(some)) for name, some in values.items()})
    with _folder_for(out) as place:
        done = run_sweep(
            Sweep(place, config, space),
            lambda trial: None,
            lambda number: _listener_for(f"setting {number + 1}", progress),
        )
    return Trials(tuple(done), find_protocol(config.protocol).select_metric, config, is_pandas(data))


@speaks_python
def fit(
    run: Result | str | Path,
    out: str | Path,
    *,
    data: Any = None,
    warm: bool = False,
    replaces: bool = False,
    rounds: int | None = None,
    attributes: Any = None,
    skip_bad: bool = False,
    progress: bool | None = None,
    epsilon: float | None = None,
    **columns: str | int,
) -> Recommender:
    """Train a run's settings on all interactions, for serving; the Python face of `fedrec fit`.

    `epsilon`: of the run and all its fits together, where the run has a budget.
    `run`: a finished run with a folder. `data`: new rows with `warm=True`, which goes on from its model; otherwise all
    rows, instead of the run's. `replaces`: with `warm`, the data is the whole log. `columns` name those of the data.
    """
    from fedrec.experiment.fitting import fit as fit_model

    source = run.folder if isinstance(run, Result) else Path(run)
    if source is None:
        # Fitting starts from what the run chose, so a run that left nothing on disk has nothing to start from.
        raise FedrecError('this run was not kept; give it a folder: fedrec.run(..., out="runs/mine")')
    # The folder has not kept the frame whole, so its rows must be handed over again.
    if data is None and str(RunFolder.open(source).settings()["data"]).split("@")[0] == FRAME:
        raise FedrecError(f"{source} was made from a frame, which it has not kept whole; give it again with data=frame")
    fitted = fit_model(
        source,
        Path(out),
        warm=warm,
        data=None if data is None else str(as_file(data)),
        columns=as_columns(columns),
        skip_bad=skip_bad,
        attributes=as_file(attributes),
        replaces=replaces,
        rounds=rounds,
        listener=_listener_for(f"fit {source.name}", progress),
        epsilon=epsilon,
    )
    return Recommender(fitted.folder)


def _study_config(method: str, data: Any, protocol: str | Protocol, params: Mapping[str, Any]) -> RunConfig:
    """The config of a study: fields of the runs, and parameters that stay as they are."""
    # Rows in memory cannot be found again by the process that resumes a study.
    if isinstance(data, Interactions):
        raise FedrecError("give a name, a file or a frame: a study reads its data again when it goes on")
    fields = set(RunConfig.__dataclass_fields__)
    values = {name: value for name, value in params.items() if name in fields}
    own = {name: value for name, value in params.items() if name not in fields}
    values |= {"method": method, "data": _paths(as_file(data)), "params": own}
    return make_config(values | _settings(values, protocol))


def _space_text(values: Any) -> str:
    """A range or values as the command line writes them."""
    if isinstance(values, str):
        return values
    if isinstance(values, tuple) and len(values) == 2:
        return f"{values[0]}..{values[1]}"
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)


@contextmanager
def _folder_for(out: str | Path | None) -> Iterator[Path]:
    """The folder of a study; without one its trials are gone afterwards."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch) / "study"


def _listener_for(label: str, progress: bool | None) -> Listener:
    if not _is_shown(progress):
        return Listener()
    # Imported late: the drawing of progress is of no use in a script whose output goes to a file.
    from fedrec.commands import progress as drawn

    return drawn.listener(label, quiet=False, as_json=False, notes=False)


@speaks_python
def advise(
    data: Any = "ml-100k",
    *,
    minutes: float = 10.0,
    protocol: str | Protocol = "honest",
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
    # Any method would do in this config, which advice replaces; popularity has no parameters that could be wrong.
    values = {**fields, **noise, **where, "method": "popularity", "data": table_name}
    config = make_config(values | _settings(values, protocol))
    folder = None if out is None else Path(out)

    wishes = Wishes(minutes, blind, max_upload)
    advice = find_advice(config, wishes, folder, table, clock, follow=lambda label: _listener_for(label, progress))
    if folder is not None:
        # The page needs the report's packages, which advice without a folder does not.
        from fedrec.report.pages.advice_page import write_advice

        write_advice(advice, folder / "advice.html")
    return advice


def protocol(name: str = "honest", **fields: Any) -> Protocol:
    """A protocol by name with some fields changed: `protocol("honest", ks=(10, 20), min_interactions=5)`."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return find_protocol(",".join([name, *(f"{key}={field_text(value)}" for key, value in values.items())]))


def _settings(values: Mapping[str, Any], protocol: str | Protocol) -> dict[str, Any]:
    """What comes as objects in the words of a config: the protocol, the parts of a split and the items' description."""
    label = protocol.label if isinstance(protocol, Protocol) else protocol
    # An explicit protocol wins; the default must not, since a config may bring its own.
    kept = values.get("protocol", label) if label == "honest" else label
    return {"protocol": kept} | {name: as_file(values[name]) for name in GIVEN if values.get(name) is not None}


def _paths(data: Any) -> str:
    """One name for the data; the files of several companies are joined."""
    if isinstance(data, list | tuple):
        return SEPARATOR.join(str(as_file(part)) for part in data)
    return str(data)


def _table(data: Any, values: dict[str, Any]) -> tuple[str, Interactions | None]:
    """The name of some data, and its rows where they were handed over."""
    if isinstance(data, list | tuple):
        return _paths(data), None
    columns = as_columns({role: values.get(role) for role in COLUMNS})
    if columns and isinstance(data, Interactions):
        # Columns of loaded interactions have been read already, so a choice here would silently do nothing.
        raise FedrecError(f"the columns of '{data.name}' are known: choose {' and '.join(columns)} where it is loaded")
    table = from_frame(data, columns=columns) if is_frame(data) else data if isinstance(data, Interactions) else None
    return (str(data) if table is None else table.label), table


def _configs(config: RunConfig, seeds: Iterable[int] | None) -> list[RunConfig]:
    chosen = None if seeds is None else [int(seed) for seed in seeds]
    # The same seed twice would give two equal results that look like agreement.
    if chosen is not None and (not chosen or len(set(chosen)) < len(chosen)):
        raise FedrecError(f"seeds={chosen}: give at least one, and each once")
    return [config] if chosen is None else [replace(config, seed=seed) for seed in chosen]


def _folder(out: str | Path | None, seed: int | None) -> Path | None:
    # A single run takes the folder itself; only several need one each.
    return None if out is None else Path(out) if seed is None else Path(out) / f"seed{seed}"


def _run_one(
    config: RunConfig, out: Path | None, resume: bool, listener: Listener, data: Data, method: Method | None, keep: Keep
) -> tuple[Result, Data]:
    """A run, and what the next seed works on: a table that was given, or what was prepared of the named one."""
    keeping = Keeping(listener)
    try:
        result = execute(config, out, resume, keeping, data, method, keep=keep)
    # Stopped in every case, or an error would leave a progress bar and trackers open behind it.
    finally:
        keeping.stop()
    # With a folder the model is on disk, and holding it as well would double what several seeds take.
    if out is None:
        result = replace(result, chosen=keeping.chosen)
    # The next seed trains on the same prepared data, whose preparation can take longer than a short run.
    return result, data if isinstance(data, Interactions) else keeping.chosen.run.prepared


def _followers(config: RunConfig, callbacks: Iterable[Callback], progress: bool | None) -> Listener:
    followers = [listener_for(callback) for callback in callbacks]
    if _is_shown(progress):
        from fedrec.commands import progress as drawn

        followers = [drawn.listener(f"{config.method} seed {config.seed}", quiet=False, as_json=False), *followers]
    return Several(followers)


def _is_shown(progress: bool | None) -> bool:
    # A notebook is no terminal, yet somebody watches it.
    return sys.stderr.isatty() or "ipykernel" in sys.modules if progress is None else progress


@speaks_python
def compare(
    runs: Sequence[Any], *, metrics: Sequence[str] | None = None, references: bool | None = None, on: str | None = None
) -> Compared | AcrossData:
    """Results or run folders side by side, with the tests of `fedrec compare`.

    Runs on several data sets become one table of methods x data sets, the best bold and the second underlined.
    `references`: popularity and local beside them. True trains what is missing, once per data and protocol; None takes
    those that need no training: popularity, and local if it was trained before. `on`: "test" or "valid"; None:
    validation where the runs are settings of one method, between which one would choose, and test otherwise.
    """
    from fedrec.commands.progress import listener_of
    from fedrec.experiment.references import absent_references, find_references
    from fedrec.report import comparison
    from fedrec.report.across import compare_across
    from fedrec.report.figures.compared import compare_runs, find_finished

    found = find_finished(runs)
    if len({comparison.rows_of(run) for run in found}) > 1:
        return compare_across(found, metrics, comparison.part_shown(found, on or "test"))
    # Before any reference is trained, which may take hours.
    comparison.compare(found)
    beside = find_references(found, references, listener_of)
    absent = absent_references([*found, *beside]) if references is None else []
    note = f"Without {' and '.join(absent)}; references=True trains what is missing." if absent else ""
    return compare_runs(found, beside, metrics, on, note)
