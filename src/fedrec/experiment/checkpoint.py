"""Simulator tensors on disk, whole or not at all, with what a resume must know beside them."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrec import __version__
from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError, reason
from fedrec.experiment.config import FORMAT, in_todays_words, require_same
from fedrec.federation.loop import Progress
from fedrec.federation.simulator import Simulator
from fedrec.schema import SIZES, check

PER_CLIENT = ("up", "down", "uploads")  # what a ledger counts for every client


def tensors_of(simulator: Simulator) -> dict[str, Tensor]:
    """Everything of this process that changes, by name: `server.item`, `client.all.item`, `user.all.user`, ..."""
    return {f"server.{name}": value for name, value in simulator.server.items()} | simulator.client_side.tensors()


def collect_tensors(simulator: Simulator, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same of all processes, in the first of them."""
    held = {name: value for name, value in tensors.items() if not name.startswith("server.")}
    return tensors | simulator.group.collect_rows(held)


def part_of(simulator: Simulator, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of tensors of all clients, the rows of those in this process."""
    found = dict(tensors)
    for name, value in simulator.client_side.tensors().items():
        if name in tensors:
            start = simulator.group.offset(len(value))
            found[name] = tensors[name][start : start + len(value)] if simulator.group.size > 1 else tensors[name]
    return found


def restore(simulator: Simulator, tensors: dict[str, Tensor]) -> None:
    """Restore tensors; their names and shapes must be those of this simulator."""
    expected = tensors_of(simulator)
    for name, value in expected.items():
        if name in tensors and name.startswith("server.") and _grows(value, tensors[name], simulator.method.rounds):
            # Of a run that was planned with fewer rounds, the entries of the others are still empty.
            more = len(value) - len(tensors[name])
            tensors[name] = torch.cat([tensors[name], tensors[name].new_zeros(more, *value.shape[1:])])
    if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in expected.items()}:
        raise FedrecError("the checkpoint belongs to another method or data set; use a fresh --out folder")
    # each where it was: what the host looks up stays with it
    simulator.server = {name: tensors[f"server.{name}"].to(held.device) for name, held in simulator.server.items()}
    for name, value in expected.items():
        if not name.startswith("server."):
            value.copy_(tensors[name])


def _grows(now: Tensor, then: Tensor, rounds: int) -> bool:
    """Whether a server tensor has an entry for each round, and was made for fewer."""
    return now.dim() > 0 and len(now) == rounds > len(then) and now.shape[1:] == then.shape[1:]


def save(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # Contiguous and on the host, because safetensors takes nothing else.
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = {"version": __version__, **about}
    # One entry, since several would come in random order and the file would differ from run to run.
    text = json.dumps({**about, "crc32": _checksum(plain, about)})
    with atomic_file(path, private=True) as temporary:
        try:
            save_file(plain, temporary, metadata={"fedrec": text})
        except SafetensorError as error:  # how it reports a full disk
            raise FedrecError(f"cannot write {path}: {error}; free some space, then continue with --resume") from error


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        # safetensors reports an unreadable file as absent, so it is opened once to tell the two apart.
        path.open("rb").close()
    except FileNotFoundError:
        raise FedrecError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise FedrecError(
            f"cannot read {path}: {reason(error)}; only the owner of a run can read its clients' state"
        ) from None
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedrec"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.pop("crc32") != _checksum(tensors, about):
            raise ValueError("its bytes do not match their checksum")
        return tensors, about
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise _damage_error(path, error) from None


def _checksum(tensors: dict[str, Tensor], about: dict[str, Any]) -> int:
    """safetensors notices a truncated file, but not a changed byte."""
    crc = zlib.crc32(json.dumps(about).encode())
    # In a fixed order, because the checksum depends on it and a file keeps none.
    for name in sorted(tensors):
        flat = tensors[name].reshape(-1)
        content: Any = flat.view(torch.uint8).numpy() if len(flat) else b""
        crc = zlib.crc32(content, zlib.crc32(name.encode(), crc))
    return crc


def _damage_error(path: Path, error: Exception) -> FedrecError:
    return FedrecError(f"{path} is damaged or not a fedrec checkpoint ({error}); remove it and start over")


def require_data(about: Mapping[str, Any], data: str, path: Path) -> None:
    """Rows have no ids: with other data, even of the same size, they would belong to other users and items."""
    if about.get("data", data) != data:
        raise FedrecError(
            f"{path} was made with {about['data']}, but the data is now {data}; put the old data back, "
            "or start over in another --out folder"
        )


def save_resume(
    path: Path, simulator: Simulator, progress: Progress, about: Mapping[str, Any], state: bool = True
) -> None:
    """All of a run between two rounds. Without its `state`, how it went: enough once it has all its rounds."""
    ledger = simulator.ledger()
    tensors = collect_tensors(simulator, tensors_of(simulator)) if state else {}
    tensors |= {f"ledger.{name}": torch.from_numpy(getattr(ledger, name)) for name in PER_CLIENT}
    rounds = {"progress": dataclasses.asdict(progress), "ledger": ledger.rounds, "unprotected": ledger.unprotected}
    # Collected in all processes, but written by one: the file is shared.
    if simulator.group.first:
        save(path, tensors, rounds | dict(about))


@dataclasses.dataclass(frozen=True)
class Resumed:
    """What `save_resume` wrote; `tensors` are empty where it left the state out."""

    progress: Progress
    tensors: dict[str, Tensor]
    rounds: dict[int, Any]
    unprotected: dict[str, int]
    counts: dict[str, Any]

    def restore(self, simulator: Simulator) -> None:
        """What was sent, and the state if it is here."""
        if self.tensors:
            restore(simulator, part_of(simulator, self.tensors))
        ledger = simulator.wire.ledger
        # Ledgers of several processes add up, so only one of them may take the old counts.
        if simulator.group.first:
            ledger.rounds, ledger.unprotected = self.rounds, self.unprotected
            for name, count in self.counts.items():
                setattr(ledger, name, count)


def load_resume(path: Path, config: Mapping[str, Any], data: str) -> Resumed:
    """Read a checkpoint, which must come from a run with this config on this data."""
    tensors, about = load(path)
    if about.get("format", 1) not in (2, FORMAT):
        raise FedrecError(
            f"{path} was written by fedrec {about.get('version', 'of another version')}, which counted "
            "other things; it cannot go on from there: start over in another --out folder"
        )
    try:
        check("its record", about, {"unprotected": SIZES, "ledger": {}, "progress": {}, "config": {}})
        counts = {name: tensors.pop(f"ledger.{name}").numpy().copy() for name in PER_CLIENT}
        rounds = {int(number): entry for number, entry in about["ledger"].items()}
        found = Resumed(Progress(**about["progress"]), tensors, rounds, dict(about["unprotected"]), counts)
    except (KeyError, TypeError, ValueError) as error:
        raise _damage_error(path, error) from None
    require_same(in_todays_words(about["config"], about["format"]), config, path)
    require_data(about, data, path)
    return found
