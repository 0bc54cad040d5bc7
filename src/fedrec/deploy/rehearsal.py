"""A rehearsal: one data set dealt out to nodes, each with a file and a folder of its own, so that a deployment can be
compared with a simulation of the same seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrec.data import write_csv
from fedrec.data.atomic import make_private_file, make_private_folder
from fedrec.deploy.node import Settings
from fedrec.deploy.shard import NodeData, write_places
from fedrec.deploy.terms import Terms, require_deployable
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.config import RunConfig, parse_memory
from fedrec.experiment.prepare import Prepared, prepare_config


@dataclass(frozen=True)
class Rehearsal:
    terms: Terms
    prepared: Prepared
    attributes: Tensor | None

    def deal(self, folder: Path, nodes: int) -> list[Path]:
        """A state folder for each node, with its part of the clients in order."""
        clients = self.prepared.partition.n_clients
        if not 1 <= nodes <= clients:
            raise FedrecError(f"{nodes} nodes cannot share {clients} clients; give --nodes from 1 to {clients}")
        shares = np.array_split(np.arange(clients), nodes)
        return [self._node(folder / f"node-{k}", share) for k, share in enumerate(shares)]

    def _node(self, folder: Path, clients: np.ndarray) -> Path:
        source, partition = self.prepared.source, self.prepared.partition
        make_private_folder(folder)
        rows: list[tuple[str, int, int]] = []
        for client in clients.tolist():
            users = partition.users[partition.offsets[client] : partition.offsets[client + 1]].tolist()
            rows += [(str(source.user_ids[user]), client, user) for user in users]
        here = np.isin(source.user, [user for _, _, user in rows])
        write_csv(source.select(here), folder / "data.csv")
        write_places(folder / "places.csv", rows)
        for name in ("data.csv", "places.csv"):
            make_private_file(folder / name)
        own = NodeData(folder / "data.csv", places=folder / "places.csv")
        config = self.terms.config
        Settings(own, seeded=True, device=config.device, memory=parse_memory(config.memory)).write(folder)
        return folder


def rehearse(config: RunConfig, prepared: Prepared | None = None, secure: bool = False) -> Rehearsal:
    """What all may know of a data set that is in one place, and the data set."""
    if config.train is not None:
        raise FedrecError("nodes split their own data; give --data instead of --train and --test")
    require_deployable(Terms(config, np.zeros(0), 1, 1, secure=secure))
    prepared = prepared or prepare_config(config, protocol(config.protocol), centralised=False)
    prepared.require_candidates()
    source = prepared.source
    catalogues = None
    if prepared.warm is not None and prepared.valid is not None:
        catalogues = tuple(part.catalogue for part in (prepared.valid, prepared.test))
    terms = Terms(
        replace(config, attributes=None),
        source.item_ids,
        prepared.partition.n_clients,
        prepared.n_trained,
        source.tie_seed,
        source.user_ids.dtype.kind not in "iu",
        catalogues,  # type: ignore[arg-type]
        seeded=True,
        secure=secure,
        version=source.version,
        left_out=prepared.users_before_filters - source.n_users,
    )
    return Rehearsal(terms, prepared, attributes_of(terms, prepared))


def attributes_of(terms: Terms, prepared: Prepared) -> Tensor | None:
    if terms.method.disclosure.attributes == "none":
        return None
    return torch.from_numpy(prepared.item_features[0]).to(terms.world().dtype)
