"""What a server reads off the uploads of one round, with secure sums and without: the sign attack on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from fedrec.errors import FedrecError
from fedrec.federation.client_side import ClientSide
from fedrec.federation.clients import ClientData
from fedrec.federation.codec import unpack
from fedrec.federation.contract import Method
from fedrec.federation.schema import ClientSetup, schema_of
from fedrec.federation.server_side import ServerSide
from fedrec.federation.update import Update
from fedrec.privacy.sign_attack import auc, sign_attack
from fedrec.secure.fixed_point import FRACTION, layout_of
from fedrec.secure.simulated import LOST, SimulatedSum, SimulatedSums

TABLE = "item"


@dataclass(frozen=True)
class Exposed:
    """AUC of the sign attack, mean over clients, on what the server sees of each."""

    method: str
    clients: int
    upload: float
    """Their own uploads, as they come without secure sums."""
    message: float
    """Their messages of a secure sum, read as fixed point."""
    total: float
    """The sum over all of them, the same guess for everybody."""
    popularity: float
    """No attack: how many of these clients have the item."""
    correlation: float
    """The largest between a masked upload and the true one, without its sign."""

    def to_dict(self) -> dict[str, float | str]:
        return asdict(self)


class Recorded:
    """A secure sum that also keeps what went in."""

    def __init__(self, inner: SimulatedSum) -> None:
        self.inner, self.updates = inner, dict[int, Update]()
        self.is_given_up, self.result, self.traffic = False, inner.result, inner.traffic

    def take(self, update: Update) -> None:
        self.updates[int(update.clients[0])] = update
        self.inner.take(update)


def expose_items(method: Method, data: ClientData, count: int) -> Exposed:
    """Of the first round of the first so many clients that have items."""
    chosen = data.clients[data.positives > 0][:count]
    hosted = data.shard(chosen)
    server = ServerSide(method, data.world)
    before = server.tensors.get(TABLE)
    layout = layout_of(schema_of(server, ClientSetup(data.negatives, data.unique)), method.info.name)
    names = [part.name for part in layout.parts]
    if before is None or TABLE not in names or method.info.centralised:
        raise FedrecError(f"{method.info.name} uploads no item table, which the sign attack needs; try fedmf")
    messages: dict[int, np.ndarray] = {}

    def keep(phase: str, client: int, message: bytes) -> None:
        if phase == "masked":
            messages[client] = unpack(message)[1]["sum"].numpy()

    sums = SimulatedSums(layout, LOST, data.world.device, keep)
    recorded = Recorded(sums.begin(chosen, 0))
    side = ClientSide(method, hosted, apart=True)
    total, _ = side.train(chosen, chosen, 0, lambda some: server.broadcast(some, 0), len(chosen), recorded)
    start = sum(part.entries + 1 for part in layout.parts[: names.index(TABLE)])
    table, size = before.cpu().numpy(), before.numel()
    histories = {int(client): np.unique(hosted.chunk(np.array([client])).items) for client in chosen}
    clear = {client: _mean(update) for client, update in recorded.updates.items()}
    masked = {client: sent[start : start + size] * 2.0**-FRACTION for client, sent in messages.items()}
    counts = np.bincount(np.concatenate(list(histories.values())), minlength=len(table))

    def guess_items(seen: Callable[[int], np.ndarray]) -> float:
        return float(np.mean([auc(seen(client), items) for client, items in histories.items()]))

    summed = sign_attack(table, _mean(total))
    return Exposed(
        method.info.name,
        len(chosen),
        guess_items(lambda client: sign_attack(table, clear[client])),
        guess_items(lambda client: sign_attack(table, masked[client].reshape(table.shape))),
        guess_items(lambda client: summed),
        guess_items(lambda client: counts),
        max(abs(float(np.corrcoef(masked[client], clear[client].ravel())[0, 1])) for client in clear),
    )


def _mean(update: Update) -> np.ndarray:
    total = update.totals[TABLE].cpu().numpy()
    return total / update.weights[TABLE] if TABLE in update.means else total
