"""A model to serve: the settings and rounds of a finished run on all interactions, with nothing held out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrec.data.located import place
from fedrec.data.table import looks_like_path
from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation import UNDIVIDED, protocol
from fedrec.experiment import checkpoint
from fedrec.experiment.config import FORMAT, RunConfig, make_config, require_same
from fedrec.experiment.finished import open_model
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import found_again, read_kept
from fedrec.experiment.machine import versions
from fedrec.experiment.params import method_of
from fedrec.experiment.run import Listener, Run
from fedrec.experiment.summary import privacy_of
from fedrec.experiment.warm import Carried, carry_over
from fedrec.federation.loop import Progress

WARM_SHARE = 10  # a warm start trains for a tenth of the rounds, unless told otherwise


@dataclass(frozen=True)
class Fitted:
    """A model that was fitted, where it is, and how much an earlier one had brought along."""

    run: Run
    folder: Path
    carried: Carried | None

    @property
    def privacy(self) -> dict[str, Any] | None:
        """What the noise on uploads guarantees; None where there was none."""
        return privacy_of(self.run) if self.run.stages else None


def fit(source: Path, out: Path, *, warm: bool = False, data: str | None = None, rounds: int | None = None,
        resume: bool = False, listener: Listener | None = None) -> Fitted:  # fmt: skip
    """Train what `source` has chosen on all interactions of its data as it is now, or of `data`.

    `warm`: go on from the model of `source`, which keeps its users and items, instead of starting afresh.
    `resume`: go on with an interrupted fit in `out`, if there is one.
    """
    origin = RunFolder.open(source)
    origin.require_model()
    resume = resume and RunFolder(out).config.exists()
    _require_place(out, resume)
    config, done = make_config(origin.settings()), _rounds_of(origin)
    goes_on = warm and not _in_one_pass(config)  # what one pass computes owes nothing to an earlier one
    more = (-(-done // WARM_SHARE) if goes_on else done) if rounds is None else rounds
    found = data if data is not None else _data_of(origin, config)
    # what validation chose along with the round stays as it was chosen
    config = dataclasses.replace(config, params={**config.params, **method_of(config).decided(done - 1)})
    run = Run(_to_serve(config, found, done + more if goes_on else more, own=data is not None))
    carried = None
    if goes_on:
        carried = carry_over(open_model(source).run, run)
        run.progress = Progress(next_round=done)
    return Fitted(run, _train(run, source, out, resume, carried, listener or Listener()), carried)


def _require_place(out: Path, resume: bool) -> None:
    folder = RunFolder(out)
    if not resume:
        folder.require_free()
    elif folder.fit.exists():
        raise FedrecError(f"{out} holds a model that is fitted already; leave --resume out to fit another one")


def _train(run: Run, source: Path, out: Path, resume: bool, carried: Carried | None, listener: Listener) -> Path:
    run.require_disk(out)
    folder = _continued(run, out) if resume else RunFolder.create(out, run.config.to_dict())
    with folder.held():
        try:
            if resume:
                run.resume(folder)
            run.train(folder, listener)
        except DivergedError:
            folder.discard()
            raise
        except FedrecError:
            folder.discard_unused()
            raise
        finally:
            listener.stop()
        folder.write_ids(run.prepared)
        folder.write_fit(_about(run, source, carried))
        folder.forget_last()  # nothing will be resumed, and the model is the same
    return folder.path


def _continued(run: Run, out: Path) -> RunFolder:
    folder = RunFolder.open(out)
    there, wanted = folder.settings(), run.config.to_dict()
    if there.get("rounds") != wanted["rounds"]:
        raise FedrecError(f"{out} was started with {there.get('rounds')} rounds in all and would now have "
                          f"{wanted['rounds']}; repeat the command as it was, or use another --out")  # fmt: skip
    require_same(there, wanted, out)
    return folder


def _in_one_pass(config: RunConfig) -> bool:
    """Whether a method needs one round, as those in closed form."""
    return type(method_of(config)).rounds == 1


def _rounds_of(folder: RunFolder) -> int:
    """Rounds up to the one that was chosen."""
    return int(checkpoint.load(folder.best)[1]["round"]) + 1


def _to_serve(config: RunConfig, data: str, rounds: int, own: bool) -> RunConfig:
    """The same settings with nothing held out and nobody left out; `own`: instead of the files of a given split."""
    undivided = protocol(f"{config.protocol},split={UNDIVIDED},min_interactions=1,train_fraction=1").label
    files: dict[str, Any] = {"train": None, "valid": None, "test": None} if own else {}
    values = dataclasses.replace(config, protocol=undivided, data=data, rounds=rounds, eval_every=rounds, patience=None,
                                 **files)  # fmt: skip
    return make_config(values.to_dict())


def _data_of(folder: RunFolder, config: RunConfig) -> str:
    """Where the data of a run is now: where it was, or wherever a file with the same content lies."""
    if config.train is not None or not looks_like_path(config.data) or place(config.data) is not None:
        return config.data
    kept = read_kept(folder, config)
    found = None if kept is None else found_again(kept, config, near=folder.path.parent)
    if found is None:
        raise FedrecError(f"the data of {folder.path} is no longer at {config.data}, nor is a file with the same "
                          "content near it; give its place with --data FILE")  # fmt: skip
    return str(found)


def _about(run: Run, source: Path, carried: Carried | None) -> dict[str, Any]:
    data = run.prepared.source
    about = {
        "format": FORMAT,
        "method": run.method.info.name,
        "backbone": getattr(run.method, "backbone", None),
        "dataset": {"name": data.name, "version": data.version, "users": data.n_users, "items": data.n_items,
                    "interactions": len(run.prepared.split.train)},
        "rounds": run.progress.next_round,
        "settings_of": str(source),
        "carried": None if carried is None else dataclasses.asdict(carried),
        "notes": run.notes,
        "seconds": run.progress.seconds_train,
        "versions": versions(),
    }  # fmt: skip
    return about | ({"privacy": privacy_of(run)} if run.stages else {})
