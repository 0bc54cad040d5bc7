"""What a server works on, as files in its run folder, where the process that Flower starts finds it."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.data.atomic import atomic_file, make_private_folder
from fedrec.deploy.link import Limits, Link, Lost
from fedrec.deploy.server import NODES, Server
from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError, explain
from fedrec.experiment.folder import RunFolder

EVENTS = "events.jsonl"
RECEIVED = "received"  # the folder of messages that are kept for an audit


def write_job(
    out: Path, terms: Terms, limits: Limits, attributes: Tensor | None, resume: bool = False, received: bool = False
) -> None:
    """A new folder, or (`resume`) the one of a run that goes on under the same terms.

    What a server wrote of which nothing came, such as one with a wrong certificate, is written anew.
    `received`: keep every message that comes in, for an audit.
    """
    written = (out / "terms.json").exists()
    if resume and written and has_begun(out):
        folder = RunFolder.open(out)
        if Terms.decode((out / "terms.json").read_bytes()).identity != terms.identity:
            raise FedrecError(
                f"{out} was started with other settings, items or clients; resume with the same, or use another --out"
            )
    else:
        if written and not has_begun(out):
            for name in ("config.toml", "attributes.npy"):
                (out / name).unlink(missing_ok=True)
        folder = RunFolder.create(out, terms.config.to_dict())
        with atomic_file(out / "terms.json") as temporary:
            temporary.write_bytes(terms.encode())
        if attributes is not None:
            np.save(out / "attributes.npy", attributes.numpy(), allow_pickle=False)
        _write_items(folder, terms)
    if received:
        make_private_folder(out / RECEIVED)
    with atomic_file(out / "job.json") as temporary:
        temporary.write_text(json.dumps(dataclasses.asdict(limits)), encoding="utf-8")


def has_begun(out: Path) -> bool:
    """Whether a node was let in or a round was run."""
    folder = RunFolder(out)
    return any(path.exists() for path in (out / NODES, folder.metrics, folder.last, folder.best, folder.summary))


def _write_items(folder: RunFolder, terms: Terms) -> None:
    from fedrec.data.spreadsheet import write_rows

    with atomic_file(folder.items) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, [["item"], *([item] for item in terms.items.tolist())])


def run_job(out: Path, link: Link) -> None:
    """Run a job to its end. An error becomes an event, because whoever started the job reads those alone."""
    tell = EventLog(out / EVENTS)
    try:
        terms = Terms.decode((out / "terms.json").read_bytes())
        limits = Limits(**json.loads((out / "job.json").read_text(encoding="utf-8")))
        path = out / "attributes.npy"
        attributes = torch.from_numpy(np.load(path, allow_pickle=False)) if path.exists() else None
        folder = RunFolder.open(out)
        if (out / RECEIVED).is_dir():
            link = ReceivedRecorder(link, out / RECEIVED)
        with folder.lock():
            Server(terms, folder, link, limits, tell, attributes).run()
    except Exception as error:
        tell("failed", {"reason": explain(error) or f"{type(error).__name__}: {error}"})
        raise


class ReceivedRecorder:
    """A link that also stores every incoming message, in order."""

    def __init__(self, link: Link, folder: Path) -> None:
        self.link, self.folder = link, folder
        self._count = len(list(folder.iterdir()))

    def nodes(self) -> Sequence[int]:
        return self.link.nodes()

    def exchange(
        self, nodes: Sequence[int], make: Callable[[int], bytes], deadline: float
    ) -> Iterator[tuple[int, bytes | Lost]]:
        for node, reply in self.link.exchange(nodes, make, deadline):
            if isinstance(reply, bytes):
                (self.folder / f"{self._count:06d}").write_bytes(reply)
                self._count += 1
            yield node, reply


class EventLog:
    """Append events as lines of JSON, which a terminal or a program follows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, what: str, particulars: Mapping[str, Any]) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": what, **particulars})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
