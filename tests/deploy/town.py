"""A small federation in one process: a simulation's data dealt out to nodes that have folders of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.deploy.link import Limits
from fedrec.deploy.local_link import LocalLink
from fedrec.deploy.node import NodeHost
from fedrec.deploy.rehearsal import Rehearsal, rehearse
from fedrec.deploy.server import Server
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.folder import RunFolder

WORLD = "synthetic@users=36+items=80+seed=1"


def settings(method: str, **more: Any) -> RunConfig:
    return make_config({"method": method, "data": WORLD, "rounds": 3, "seed": 5, **more})


class Town:
    """Nodes 10, 11, ... around a server; `events` are what the server told."""

    def __init__(self, config: RunConfig, folder: Path, nodes: int = 3, secure: bool = False, **limits: Any) -> None:
        self.config, self.folder = config, folder
        self.rehearsal: Rehearsal = rehearse(config, secure=secure)
        self.states = self.rehearsal.deal(folder, nodes)
        self.hosts = {10 + k: NodeHost(state).handle for k, state in enumerate(self.states)}
        self.limits = Limits(**{"minimum": 1, "first": nodes, "poll": 0.01, "wait": 0.05} | limits)
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.run_folder = RunFolder.create(folder / "run", config.to_dict())

    def server(self) -> Server:
        return Server(
            self.rehearsal.terms,
            self.run_folder,
            LocalLink(self.hosts),
            self.limits,
            self.tell,
            self.rehearsal.attributes,
        )

    def tell(self, what: str, particulars: Mapping[str, Any]) -> None:
        self.events.append((what, dict(particulars)))

    def told(self, what: str) -> list[dict[str, Any]]:
        return [particulars for name, particulars in self.events if name == what]
