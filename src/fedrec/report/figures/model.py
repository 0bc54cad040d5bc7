"""The item tables that clients hold in the chosen round of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.opening import open_finished
from fedrec.methods.cluster.kmeans import kmeans
from fedrec.random import Purpose, fold_array, stream

NO_ROUND = -1  # as the round of a stream: no round of training has it
# what a client scores with comes first: some start training from another table, FedRAP adds its own to a shared one
TABLES = ("served.item", "own", "item")


class Model:
    """A run's model with a table for each client, or one for all."""

    def __init__(self, run: FinishedRun) -> None:
        self.folder, self.name, self.seed = run.folder, run.summary["method"], int(run.summary["seed"])
        self.run, self.round = open_finished(run.folder)
        self.simulator, self.user_ids = self.run.simulator, self.run.prepared.source.user_ids
        self.interactions = self.simulator.data.positives

    @property
    def clients(self) -> int:
        return self.simulator.world.clients

    @property
    def personal(self) -> bool:
        """Whether clients hold tables of their own."""
        return all(_table_name(members.state.per_client) is not None for members in self.simulator.cohorts)

    def require_personal(self, figure: str) -> None:
        if not self.personal or self.clients < 2:
            raise FedrecError(
                f"{figure} needs personal item tables, and {self.name} in {self.folder} has none; "
                "give a run of local, fedca or another method with personal tables"
            )

    def tables(self, clients: Sequence[int] | np.ndarray) -> Tensor:
        """[clients, items, d]; the common table for each where there is but one."""
        if not self.personal:
            common = self.simulator.server.get("item")
            if common is None or common.dim() != 2:
                raise FedrecError(f"{self.name} in {self.folder} has no item table; give a run that has embeddings")
            # A view for all clients: copies of a shared table would fill the memory for nothing.
            return common.expand(len(clients), *common.shape)
        found = [self._table(int(client)) for client in clients]
        if len({table.shape for table in found}) > 1:
            raise FedrecError(f"clients of {self.folder} have tables of different sizes; choose clients of one size")
        return torch.stack(found)

    def _table(self, client: int) -> Tensor:
        for members in self.simulator.cohorts:
            here, where = members.positions(np.array([client]))
            if len(here):
                name = _table_name(members.state.per_client)
                assert name is not None
                # Tables may rest in half precision, in which distances between them would be lost.
                return members.state.per_client[name][int(where[0])].to(self.simulator.world.dtype)
        raise FedrecError(f"{self.folder} has no client {client}; its clients are 0 to {self.clients - 1}")

    def full_table(self) -> tuple[str, Tensor]:
        """Name and stack of the tables of all clients, as they lie in memory."""
        if len(self.simulator.cohorts) > 1:
            raise FedrecError(f"clients of {self.folder} have models of different sizes; give a run with one size")
        held = self.simulator.cohorts[0].state.per_client
        name = _table_name(held)
        assert name is not None
        return name, held[name]

    def busiest(self, count: int) -> np.ndarray:
        """The clients with the most training interactions, lower numbers first among equals."""
        # Negative and stable: the most first, and lower numbers first among equals, on every machine.
        return np.argsort(-self.interactions, kind="stable")[:count]

    def draw_clients(self, count: int, stream_number: int = 0, population: int | None = None) -> np.ndarray:
        """Some clients (or others of a population) by the run's seed, ascending."""
        size = self.clients if population is None else population
        # A stream that no round of training uses, so that a drawing changes no draws of a run.
        draws = fold_array(stream(self.seed, Purpose.ORDER, NO_ROUND, stream_number), np.arange(size))
        return np.sort(np.argsort(draws, kind="stable")[:count])

    def labels(self, clusters: int) -> tuple[np.ndarray, str]:
        """The cluster of every item and where it is from: the server's own labels, or k-means on the mean table."""
        known = self.simulator.server.get("labels")
        if known is not None and len(torch.unique(known)) > 1:
            # The server's labels are what the method itself worked with; k-means is a guess in their place.
            return known.cpu().numpy().astype(np.int64), "labels broadcast by the server"
        _, tables = self.full_table()
        count = min(clusters, tables.shape[1])
        # The mean over thousands of tables is taken in float64, which their own half precision could not hold.
        labels, _ = kmeans(tables.mean(0, dtype=torch.float64), count, stream(self.seed, Purpose.CLUSTER, NO_ROUND))
        return labels.cpu().numpy(), f"k-means of the mean table, {count} clusters"

    def describe(self, client: int) -> str:
        """A client in words; where it is one user, with the user's id."""
        data = self.simulator.data
        start, stop = data.client_ptr[client], data.client_ptr[client + 1]
        who = f"user {self.user_ids[data.users[start]]}" if stop - start == 1 else f"{stop - start:,} users"
        return f"client {client} ({who}, {self.interactions[client]:,} training interactions)"


def _table_name(held: dict[str, Tensor]) -> str | None:
    return next((name for name in TABLES if name in held and held[name].dim() == 3), None)
