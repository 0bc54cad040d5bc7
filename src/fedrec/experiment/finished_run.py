"""Finished runs as records: a run folder read back, or a result in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError
from fedrec.evaluation import parse_protocol
from fedrec.experiment.config import as_meant, make_config
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import is_at_hand, read_prepared
from fedrec.experiment.params import build_method, convert
from fedrec.experiment.prepare import Prepared
from fedrec.experiment.result import Result
from fedrec.experiment.run_summary import check_summary
from fedrec.schema import damage_error, read_json

REFERENCES = ("popularity", "local")
"""Methods that stand beside every table."""
IDENTITY = (
    "backbone",
    "preset",
    "params",
    "silos",
    "participation",
    "lost_uploads",
    "privacy",
    "epsilon",
    "delta",
    "rounds",
)

DEFAULTS = {"participation": 1.0, "lost_uploads": 0.0}  # not worth a word


@dataclass(frozen=True)
class FinishedRun:
    """A run folder read back, or a result in memory, which has a name for a folder."""

    folder: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    result: Result | None = field(default=None, repr=False)

    @property
    def data(self) -> str:
        return f"{self.summary['dataset']['name']}@{self.summary['dataset']['version']}"

    @property
    def protocol(self) -> str:
        return str(self.summary["protocol"])

    @cached_property
    def kept_data(self) -> Prepared | None:
        """What the run has kept of its data; None: it must be read again."""
        if self.result is not None:
            return self.result.prepared
        return read_prepared(RunFolder(self.folder), make_config(self.config))

    def has_data(self) -> bool:
        """Whether its data is known here and now, without fetching anything."""
        return self.kept_data is not None or is_at_hand(make_config(self.config))

    @cached_property
    def label(self) -> str:
        """Method and what was set beside the defaults; the seed is not part of it."""
        parts, config = [], _beside_defaults(self.config, self.summary.get("defaults", {}))
        for key in IDENTITY:
            value = config.get(key)
            if key == "backbone" and value is None and self.summary["backbone"] not in (None, "mf"):
                value = self.summary["backbone"]
            if isinstance(value, dict):
                parts += [f"{name}={inner}" for name, inner in sorted(value.items())]
            elif value not in (None, "") and value != DEFAULTS.get(key):
                parts.append(str(value) if key in ("backbone", "preset") else f"{key}={value}")
        return " ".join([self.summary["method"], *parts])


def _beside_defaults(config: Mapping[str, Any], noted: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what its method, backbone and preset have by themselves.

    `noted`: what the run says of a method that is not known here.
    """
    try:
        params = config.get("params", {})
        backbone = config.get("backbone") or params.get("backbone")
        plain = build_method(config["method"], backbone=backbone, preset=config.get("preset"))
        given = {key: convert(type(plain), key, value) for key, value in params.items()}
    except FedrecError:
        return _beside(config, params, noted)
    return _beside(config, given, vars(plain))


def _beside(config: Mapping[str, Any], params: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    apart = {key: value for key, value in params.items() if key not in usual or usual[key] != value}
    rounds = None if config.get("rounds") == usual.get("rounds") else config.get("rounds")
    return {**config, "params": apart, "rounds": rounds}


def read_run(folder: Path) -> FinishedRun:
    files = RunFolder.open(folder)
    files.require_finished()
    try:
        summary = read_json(files.summary, "summary", {})
        check_summary(summary)
        meant = as_meant(summary["protocol"], summary.get("format", 1))
        summary |= {"protocol": meant, "leaks": list(parse_protocol(meant).leaks)}
        config = make_config(files.settings()).to_dict()
    except (ValueError, OSError, FedrecError) as error:
        raise damage_error(folder, error) from None
    return FinishedRun(folder, summary, config)


def take_result(result: Result) -> FinishedRun:
    """Take a result as it is in memory; one that was not written anywhere gets a name for its folder."""
    name = result.folder or Path(f"{result.summary['method']}-seed{result.summary['seed']}")
    return FinishedRun(name, result.summary, result.config.to_dict(), result)


def find_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Run folders among the paths and below them, those of several seeds (as --seeds writes them) one level deeper."""
    found = []
    for path in paths:
        if (path / "config.toml").exists():
            found.append(read_run(path))
            continue
        patterns = ("*/config.toml", "*/seed*/config.toml") if path.is_dir() else ()
        below = sorted(child.parent for pattern in patterns for child in path.glob(pattern))
        if not below:
            raise FedrecError(f"{path} has no run: give folders written by fedrec run")
        found += [read_run(folder) for folder in below]
    return found
