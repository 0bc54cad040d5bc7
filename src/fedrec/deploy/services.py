"""A server and a node as one starts them on machines of their own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrec.data import Interactions, with_items
from fedrec.data.atomic import make_private_folder
from fedrec.data.attributes import item_attributes
from fedrec.deploy.consent import MEMBERS
from fedrec.deploy.demo import Show, follow
from fedrec.deploy.flower import (
    LOG,
    Certificates,
    Joining,
    SuperLink,
    free_port,
    reason_in,
    require_free,
)
from fedrec.deploy.job import EVENTS, write_job
from fedrec.deploy.key_files import require_authority, require_node_key, require_public
from fedrec.deploy.link import Limits
from fedrec.deploy.node import Settings, read_vocabulary
from fedrec.deploy.node_process import work
from fedrec.deploy.processes import Processes
from fedrec.deploy.state import StateFolder
from fedrec.deploy.terms import Terms, require_deployable
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.folder import RunFolder
from fedrec.secure import read_public

PAUSES = (5, 10, 20, 40, 60)  # seconds between two tries to reach the server


@dataclass(frozen=True)
class Address:
    """Where a server listens, its certificates, and the folder with the public keys of the nodes it lets in."""

    host: str
    port: int
    certificates: Certificates
    nodes: Path


def make_terms(
    config: RunConfig, items: Path, clients: int, secure: bool | None = None, members: int | None = None
) -> tuple[Terms, Tensor | None]:
    """Make the terms from a file of items, which may describe them, and a number of clients to reserve.

    Without a word about it, sums are secure where the method allows them, and of at least five nodes.
    """
    ids = read_vocabulary(items)
    terms = Terms(replace(config, attributes=None), ids, clients, len(ids))
    secure = not terms.method.disclosure.gathers if secure is None else secure
    terms = replace(terms, secure=secure, members=(members or MEMBERS) if secure else 0)
    require_deployable(terms)
    if terms.protocol.split == "cold-items":
        raise FedrecError(
            "the items that are new at test must be agreed on beforehand; rehearse it with fedrec deploy "
            "demo, or use --protocol honest"
        )
    terms = replace(terms, version=f"items-{terms.vocabulary[:12]}")
    if terms.method.disclosure.attributes == "none":
        return terms, None
    nobody = np.zeros(0, np.int64)
    described = with_items(Interactions(nobody, nobody, np.zeros(0, np.int64), ids, name=items.stem), str(items))
    found, _ = item_attributes(described.info, len(ids), items.stem)
    return terms, torch.from_numpy(found).to(terms.world().dtype)


def serve(
    terms: Terms, attributes: Tensor | None, out: Path, limits: Limits, at: Address, resume: bool, show: Show
) -> None:
    """Run a server until the work is done. Keys that are put into the folder meanwhile are admitted too."""
    require_free(at.host, at.port)
    at.certificates.require_sound()
    for key in at.nodes.glob("*.pub"):
        require_public(key)
    home = RunFolder(out / "superlink")
    if home.path.exists():
        with home.lock():  # a folder of which nothing came is free, but not while a server waits there for nodes
            pass
    write_job(out, terms, limits, attributes, resume)
    events = out / EVENTS
    begin = events.stat().st_size if events.exists() else 0
    make_private_folder(home.path)
    with home.lock(), Processes() as processes:
        link = SuperLink(home.path, at.certificates, at.host, at.port, at.nodes, processes)
        link.start()
        show({"event": "started", "address": f"{at.host}:{at.port}", "pid": link.process.pid})
        door = Admission(link, at.nodes, show)
        door.look()
        link.run(out)
        for event in follow(events, link, {}, out, begin, door.look):
            show(event)


class Admission:
    """Admits the nodes whose public keys are in a folder. A file there that is no such key is reported once."""

    def __init__(self, link: SuperLink, folder: Path, show: Show) -> None:
        self.link, self.folder, self.show = link, folder, show
        self._told: dict[Path, str] = {}

    def look(self) -> None:
        for key in sorted(self.folder.glob("*.pub")):
            try:
                require_public(key)
            except FedrecError as error:
                self._tell(key, str(error))
            else:
                if self.link.register(key):
                    self.show({"event": "key", "name": key.name})

    def _tell(self, key: Path, reason: str) -> None:
        if self._told.get(key) != reason:
            self._told[key] = reason
            self.show({"event": "refused", "node": key.name, "reason": reason})


def run_node(
    folder: Path,
    settings: Settings,
    superlink: str,
    ca: Path,
    port: int | None,
    say: Callable[[str], None],
    ask: Callable[[list[str]], bool] = lambda lines: True,
) -> None:
    """Run a node until its federation ends. While the server is away, or has not admitted it yet, it tries again."""
    if not re.fullmatch(r"\S+:\d{1,5}", superlink):
        raise FedrecError(f"--superlink is the server's HOST:PORT, such as recs.example.org:8000, not '{superlink}'")
    state, key = StateFolder(folder), settings.key
    assert key is not None
    require_authority(ca)
    require_node_key(key)
    if settings.items is not None:
        read_vocabulary(settings.items)
    if settings.peers is not None:
        read_public(settings.peers)
    with state.lock("node"):
        settings.write(folder)
        log, pauses = folder / LOG, chain(PAUSES, repeat(PAUSES[-1]))
        with Processes() as processes:
            while True:
                joining = Joining(superlink, ca.resolve(), key.resolve(), port or free_port())
                begin = log.stat().st_size if log.exists() else 0
                if not work(folder, joining, processes, ask, say, ends=True):
                    return
                pause = next(pauses)
                say(f"{reason_in(log, begin)}; trying again in {pause} s")
                time.sleep(pause)
