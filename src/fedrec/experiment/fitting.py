"""A model to serve: the settings and rounds of a finished run on all interactions, with nothing held out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.data.roles import Columns
from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation import UNDIVIDED, protocol
from fedrec.experiment import checkpoint
from fedrec.experiment.config import FORMAT, RunConfig, make_config, require_same
from fedrec.experiment.driver import Listener, Run
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.log import Rows, read_with, rows_to_fit, write_log
from fedrec.experiment.machine import versions
from fedrec.experiment.opening import open_model
from fedrec.experiment.params import method_of
from fedrec.experiment.prepare import Prepared, prepare
from fedrec.experiment.run_plan import plan_run
from fedrec.experiment.run_summary import privacy_of
from fedrec.experiment.spending import charge
from fedrec.experiment.warm import Carried, carry_over
from fedrec.federation.loop import Progress

# A warm start has most of its way behind it, so a tenth of the rounds is enough unless told otherwise.
WARM_SHARE = 10


@dataclass(frozen=True)
class Fitted:
    """A model that was fitted, where it is, to what, and how much an earlier one had brought along."""

    run: Run
    folder: Path
    rows: Rows
    carried: Carried | None

    @property
    def privacy(self) -> dict[str, Any] | None:
        """What the noise on uploads guarantees; None where there was none."""
        return privacy_of(self.run) if self.run.plan.stages else None


def fit(
    source: Path,
    out: Path,
    *,
    warm: bool = False,
    data: str | None = None,
    columns: Columns | None = None,
    skip_bad: bool = False,
    attributes: str | None = None,
    replaces: bool = False,
    rounds: int | None = None,
    resume: bool = False,
    listener: Listener | None = None,
    epsilon: float | None = None,
) -> Fitted:
    """Train what `source` has chosen on all interactions of its data as it is now, or of `data`.

    `columns`: those of the data that are chosen anew, role by role; the others are those of `source`. `skip_bad`: rows
    that cannot be used are put aside. `attributes`: a file that describes the items, instead of the one of `source`.
    `warm`: go on from the model of `source`, which keeps its users and items, instead of starting afresh. `data` is
    joined with what it was fitted to, unless it `replaces` that.
    `resume`: go on with an interrupted fit in `out`, if there is one.
    `epsilon`: that of all runs and fits of the same users together, where there is a budget; default that of `source`.
    """
    origin = RunFolder.open(source)
    origin.require_model()
    resume = resume and RunFolder(out).config.exists()
    _require_place(out, resume)
    config, done = make_config(origin.settings()), _rounds_of(origin)
    # One pass in closed form owes nothing to an earlier one, so there is nothing to go on from.
    goes_on = warm and not _in_one_pass(config)
    # Rounded up, or a model of fewer than ten rounds would not be trained at all.
    more = (-(-done // WARM_SHARE) if goes_on else done) if rounds is None else rounds
    reading = dataclasses.replace(
        read_with(config, data, columns or {}),
        skip_bad=skip_bad or config.skip_bad,
        attributes=attributes or config.attributes,
    )
    earlier = reading if data is None else dataclasses.replace(config, skip_bad=reading.skip_bad)
    rows = rows_to_fit(origin, earlier, data, warm, replaces, reading.columns)
    # what validation chose along with the round stays as it was chosen
    config = dataclasses.replace(reading, params={**config.params, **method_of(config).round_parameters(done - 1)})
    config = _to_serve(config, rows, done + more if goes_on else more, own=data is not None)
    run = Run(plan_run(config, _prepare(config, rows)))
    carried = None
    if goes_on:
        carried = carry_over(open_model(source).run, run)
        run.progress = Progress(next_round=done)
    fitted = Fitted(run, out, rows, carried)
    _train(fitted, source, resume, listener or Listener(), epsilon)
    return fitted


def _require_place(out: Path, resume: bool) -> None:
    folder = RunFolder(out)
    if not resume:
        folder.require_free()
    elif folder.fit.exists():
        raise FedrecError(f"{out} holds a model that is fitted already; leave --resume out to fit another one")


def _train(fitted: Fitted, source: Path, resume: bool, listener: Listener, epsilon: float | None) -> None:
    run, out = fitted.run, fitted.folder
    run.require_disk(out)
    folder = _reopen(run, out) if resume else RunFolder.create(out, run.config.to_dict())
    with folder.lock():
        try:
            if resume:
                run.resume(folder)
            charge(source, out, make_config(RunFolder.open(source).settings()), run.config, epsilon)
            run.train(folder, listener)
        except DivergedError:
            # A diverged model must not be resumed, while any other failure may be mended and gone on from.
            folder.discard()
            raise
        except FedrecError:
            folder.discard_unused()
            raise
        finally:
            listener.stop()
        folder.write_ids(run.prepared)
        if fitted.rows.data is not None:
            write_log(folder, fitted.rows.data, run.prepared)
        folder.write_fit(_about(fitted, source))
        # Nothing will be resumed, and the model is the same, so the state would only take space.
        folder.forget_last()


def _reopen(run: Run, out: Path) -> RunFolder:
    folder = RunFolder.open(out)
    there, wanted = folder.settings(), run.config.to_dict()
    if there.get("rounds") != wanted["rounds"]:
        raise FedrecError(
            f"{out} was started with {there.get('rounds')} rounds in all and would now have "
            f"{wanted['rounds']}; repeat the command as it was, or use another --out"
        )
    require_same(there, wanted, out)
    return folder


def _in_one_pass(config: RunConfig) -> bool:
    """Whether a method needs one round, as those in closed form."""
    return type(method_of(config)).rounds == 1


def _rounds_of(folder: RunFolder) -> int:
    """Rounds up to the one that was chosen."""
    return int(checkpoint.load(folder.best)[1]["round"]) + 1


def _to_serve(config: RunConfig, rows: Rows, rounds: int, own: bool) -> RunConfig:
    """The same settings with nothing held out and nobody left out; `own`: instead of the files of a given split."""
    changed = f"split={UNDIVIDED},min_interactions=1,train_fraction=1"
    unrated = rows.data is not None and rows.data.rating is None
    changed += (
        ",min_rating=none" if unrated and config.train is not None else ""
    )  # no threshold applies to a given split
    files: dict[str, Any] = {"train": None, "valid": None, "test": None} if own else {}
    values = dataclasses.replace(
        config,
        protocol=protocol(f"{config.protocol},{changed}").label,
        data=rows.place,
        rounds=rounds,
        # With nothing held out there is nothing to evaluate between rounds.
        eval_every=rounds,
        patience=None,
        attributes=_find_item_file(config, rows),
        **files,
    )
    return make_config(values.to_dict())


def _find_item_file(config: RunConfig, rows: Rows) -> str | None:
    """The file that describes the items; None where it is gone, the log knows what it said, and it only shows."""
    name = config.attributes
    shown = rows.described and method_of(config).disclosure.attributes == "none"
    return None if shown and name is not None and not Path(name).is_file() else name


def _prepare(config: RunConfig, rows: Rows) -> Prepared | None:
    """All rows for training; None where the config says by itself what the data is."""
    if rows.data is None:
        return None
    central = method_of(config).info.centralised
    found = prepare(rows.data, protocol(config.protocol), config.silos, central, config.attributes)
    return dataclasses.replace(found, notes=(*found.notes, rows.story)) if rows.lost is not None else found


def _about(fitted: Fitted, source: Path) -> dict[str, Any]:
    run, rows, carried = fitted.run, fitted.rows, fitted.carried
    data = run.prepared.source
    about = {
        "format": FORMAT,
        "method": run.method.info.name,
        "backbone": getattr(run.method, "backbone", None),
        "dataset": {
            "name": data.name,
            "version": data.version,
            "users": data.n_users,
            "items": data.n_items,
            "interactions": len(run.prepared.split.train),
        },
        "rounds": run.progress.next_round,
        "settings_of": str(source),
        "carried": None if carried is None else dataclasses.asdict(carried),
        "notes": run.plan.notes,
        "seconds": run.progress.seconds_train,
        "versions": versions(),
    }
    about |= {} if rows.joined is None else {"log": rows.joined.to_dict()}
    about |= {} if rows.lost is None else {"dropped": dataclasses.asdict(rows.lost)}
    return about | ({"privacy": privacy_of(run)} if run.plan.stages else {})
