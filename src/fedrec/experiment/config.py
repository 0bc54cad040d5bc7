"""What a run is: one frozen record, from the command line, from Python or from a TOML file."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedrec.data.companies import BY_COLUMN, BY_FILES, SEPARATOR, split_paths
from fedrec.data.roles import as_columns
from fedrec.errors import FedrecError, unknown
from fedrec.evaluation import parse_protocol
from fedrec.schema import kinds_of_fields

FORMAT = 3
"""Format of a run folder. Format 1, which had no number, lacked three fields of the protocol; up to format 2 a method
had another name, too."""
FIRST_FORMAT = "mask_test_at_validation=true,history_at_test=train,neg_unique=positive"
"""What every run of format 1 did."""
FORMER_NAMES = {"fcf": "fedmf"}
"""Of methods, up to format 2."""
SMALLEST_MEMORY = 16 << 20
COLUMNS = ("user", "item", "rating", "timestamp")  # settings that choose columns of a file
FILES = ("data", "train", "valid", "test", "attributes")  # settings that may name a file


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers, except the code. `params` are the method's own hyper-parameters."""

    method: str
    data: str = "ml-100k"
    protocol: str = "honest"
    backbone: str | None = None
    preset: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    seed: int = 0
    silos: str | None = None
    participation: float = 1.0
    lost_uploads: float = 0.0
    """Share of uploads that are lost on their way."""
    eval_every: int = 1
    patience: int | None = None
    secure_sums: bool | None = None
    """The server sees sums over the clients of a round and nothing else."""
    secure_bits: int | None = None
    """Of secure sums, how many behind the point; None: the usual 32."""
    assume_secure_sums: bool | None = None
    """The server is taken to see sums alone, which saves the work of masks; no deployment may assume it."""
    privacy: str = ""
    epsilon: float | None = None
    delta: float | None = None
    adjacency: Literal["replace", "zero-out"] | None = None
    """Which data of a client an epsilon compares: any other (None: replace), or none at all (noise on sums only)."""
    device: str = "cpu"
    memory: str = "8G"
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    attributes: str | None = None
    """A file that describes the items, instead of what comes with the data."""
    user: str | int | None = None
    """The column of users in a file: its name, or its number from 1; None: as names and values tell."""
    item: str | int | None = None
    rating: str | int | None = None
    """`none`: no column holds ratings."""
    timestamp: str | int | None = None
    silo_column: str | int | None = None
    """The column of a file that says which company a user belongs to."""
    skip_bad: bool | None = None
    """Whether rows of a file that cannot be used are put aside, instead of being an error."""

    @property
    def columns(self) -> dict[str, str | int]:
        """Those that were chosen, role by role."""
        return as_columns({**{role: getattr(self, role) for role in COLUMNS}, "silo": self.silo_column})

    def __post_init__(self) -> None:
        _require(0 < self.participation <= 1, f"participation {self.participation} is not in (0, 1]")
        _require(0 <= self.lost_uploads < 1, f"lost-uploads {self.lost_uploads} is not in [0, 1)")
        _require(self.eval_every >= 1, f"eval-every {self.eval_every} must be at least 1")
        _require(self.rounds is None or self.rounds >= 1, f"rounds {self.rounds} must be at least 1")
        _require(self.patience is None or self.patience >= 1, f"patience {self.patience} must be at least 1")
        _require(self.seed >= 0, f"seed {self.seed} must not be negative")
        _require((self.train is None) == (self.test is None), "give --train and --test together (--valid is optional)")
        _require(self.valid is None or self.train is not None, "--valid also needs --train and --test")
        # A double has 52 bits behind its point, so more of them could not be filled.
        _require(
            self.secure_bits is None or 1 <= self.secure_bits <= 52, f"secure-bits {self.secure_bits} is not in 1 to 52"
        )
        _require(self.secure_bits is None or bool(self.secure_sums), "--secure-bits also needs --secure-sums")
        _require(not (self.secure_sums and self.assume_secure_sums), "--secure-sums are computed or assumed, not both")
        _require(self.delta is None or 0 < self.delta < 1, f"delta {self.delta} is not between 0 and 1; 1e-5 is usual")
        self._require_companies()
        parse_memory(self.memory)

    def _require_companies(self) -> None:
        """Several files, or a column of companies, go with the silos that they name."""
        several = self.train is None and len(split_paths(self.data)) > 1
        _require(
            not several or self.silos == BY_FILES,
            "several files are several companies: add --silos files, or join them into one file",
        )
        _require(
            several or self.silos != BY_FILES, "--silos files needs the companies' files: --data a.csv --data b.csv ..."
        )
        _require(
            (self.silo_column is None) == (self.silos != BY_COLUMN),
            "--silo-column COLUMN and --silos column go together; give the column, and no other --silos",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for TOML and JSON; None is left out, or written `none` as a method's parameter."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["params"] = {name: plain(value) for name, value in self.params.items()}
        # Absent rather than null, because TOML has none.
        return {name: value for name, value in values.items() if value is not None and value != {}}

    def flags(self) -> list[str]:
        """What stands after `fedrec run METHOD` to run this again."""
        values = self.to_dict()
        params, defaults = values.pop("params", {}), {f.name: f.default for f in dataclasses.fields(self)}
        given = {
            f"--{name.replace('_', '-')}": value
            for name, value in values.items()
            if name != "method" and value != defaults[name] and value is not False
        }
        words = [word for flag, value in given.items() for word in ((flag,) if value is True else (flag, str(value)))]
        return words + [word for name, value in params.items() for word in ("--set", f"{name}={value}")]


def plain(value: Any) -> Any:
    """TOML has no None, and no numpy numbers."""
    return "none" if value is None else value.item() if isinstance(value, np.generic) else value


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise FedrecError(message)


def parse_size(text: str) -> float:
    """Bytes from `8G`, `512M`, `1.5GiB`; 0 where it is no size."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT])i?B?\s*", text, flags=re.IGNORECASE)
    return 0.0 if match is None else float(match[1]) * 1024 ** (" KMGT".index(match[2].upper()))


def parse_memory(text: str) -> int:
    """The same for a memory budget."""
    size = parse_size(text)
    if not 0 < size < float("inf"):
        raise FedrecError(f"memory '{text}' is not a size; write e.g. 8G or 512M")
    if size < SMALLEST_MEMORY:
        raise FedrecError(f"memory '{text}' is too little for training; write at least {SMALLEST_MEMORY >> 20}M")
    return int(size)


def read_config(path: Path | str, of_run: bool = False) -> dict[str, Any]:
    """The values of a TOML file, checked for unknown keys. Flags given beside it win.

    `of_run`: it is that of a run folder (as is one that lies beside the record of a run), and an old one says by its
    format what its protocol meant.
    """
    beside = (Path(path).parent / name for name in ("metrics.jsonl", "summary.json"))
    # A folder of results without a format number was written by the first version, not by a person.
    of_run = of_run or any(file.exists() for file in beside)
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FedrecError(f"cannot read the config file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FedrecError(f"{path} is not valid TOML: {error}") from None
    written = values.pop("format", 1)
    known = {f.name for f in dataclasses.fields(RunConfig)}
    for name in values:
        # Unknown keys are an error: a misspelt one would run with its default and look as if it had been heard.
        if name not in known:
            raise unknown(f"key in {path}:", name, known)
    _check_types(values)
    return in_todays_words(values, written) if of_run else values


def in_todays_words(values: Mapping[str, Any], written: Any) -> dict[str, Any]:
    """The config of a run in an earlier format."""
    found = {**values, "protocol": as_meant(values.get("protocol", RunConfig.protocol), written)}
    former = FORMER_NAMES.get(values.get("method", "").lower()) if written < FORMAT else None
    return found | ({} if former is None else {"method": former})


def as_meant(spec: str, written: Any) -> str:
    """The protocol of a run in an earlier format, in today's fields."""
    if written not in range(1, FORMAT + 1):
        raise FedrecError(f"format {written} of a run folder is newer than this fedrec; upgrade fedrec to read it")
    if written > 1:
        return spec
    meant = parse_protocol(f"{spec},{FIRST_FORMAT}")
    return spec if parse_protocol(spec) == meant else meant.label


def require_same(old: Mapping[str, Any], new: Mapping[str, Any], where: Path, longer: bool = True) -> None:
    """A resumed run may be `longer`; any other change, even of the memory budget, would make it another run."""
    free = {"patience", "rounds"} if longer else set()
    # The noise was chosen for all rounds together, so their number belongs to the budget.
    free -= {"rounds"} if "epsilon" in old else set()
    changed = sorted(key for key in {*old, *new} - free if old.get(key) != new.get(key))
    if changed == ["rounds"] and "epsilon" in old:
        number = old.get("rounds", "a fixed number of")
        raise FedrecError(
            f"the noise of {where} was chosen for {number} rounds (--epsilon), so their number cannot change; resume "
            "without --rounds, or use another --out"
        )
    if changed:
        raise FedrecError(
            f"{where} was started with other settings ({', '.join(changed)}); resume with the same, or use "
            "another --out"
        )


def with_columns(config: RunConfig, recorded: Mapping[str, Any]) -> RunConfig:
    """The columns that were recorded, where others were not asked for."""
    values = {role: recorded[role] for role in COLUMNS if role in recorded and getattr(config, role) is None}
    return dataclasses.replace(config, **values)


def make_config(values: dict[str, Any]) -> RunConfig:
    """A config from plain values, with one clear line when a value has the wrong type."""
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    known = {f.name for f in dataclasses.fields(RunConfig)}
    for name in values:
        if name not in known:
            raise unknown("setting", name, known)
    _check_types(values)
    if "method" not in values:
        raise FedrecError("no method given; `fedrec methods` lists them")
    # Absolute, so that a run folder can be resumed from anywhere.
    return RunConfig(**values | {name: _make_absolute(values[name]) for name in FILES if values.get(name)})


def _make_absolute(name: str) -> str:
    """An absolute path for a file, or for each of several, so that a run folder can be used from anywhere."""
    if len(parts := split_paths(name)) > 1:
        return SEPARATOR.join(map(_make_absolute, parts))
    return str(Path(name).resolve()) if Path(name).is_file() else name


def _check_types(values: Mapping[str, Any]) -> None:
    kinds = kinds_of_fields(RunConfig)
    for item in dataclasses.fields(RunConfig):
        if item.name in values and not kinds[item.name].valid(values[item.name]):
            raise FedrecError(f"{item.name} = {values[item.name]!r} has the wrong type; it should be {item.type}")
