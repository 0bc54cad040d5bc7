"""Secure sums over the messages of the exchange: three groups of clients, of which the server sees the sum alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.federation.codec import unpack
from fedrec.federation.contract import Method
from fedrec.federation.exchange import Reply, Task
from fedrec.federation.update import Update
from fedrec.methods.average.fedavg import FedAvg
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.reference.popularity import Popularity
from fedrec.secure import Collector, Member, Terms, layout_of, new_session
from fedrec.testing import assert_close, tiny_world
from fedrec.testing.grid import Grid

GROUPS = [np.arange(5), np.arange(5, 9), np.arange(9, 12)]
FEDMF = FedMF(dim=4, lr=1.0, batch=16)


class SecureGrid(Grid):
    """As `Grid`, but a group's update leaves it masked; `received` is all that the server was sent."""

    def __init__(self, method: Method, groups: list[np.ndarray] = GROUPS, items: int = 40) -> None:
        super().__init__(method, tiny_world(items), groups)
        self.received: list[bytes] = []
        self.true: dict[int, Update] = {}

    def round(self, number: int, gone: int | None = None) -> None:
        server = self.coordinator
        server.begin(number)
        layout = layout_of(server.schema, server.server.method.info.name)
        terms = Terms(new_session(f"round {number}"), layout, minimum=2)
        collector = Collector(terms, {k: server.list_expected_clients(k) for k in range(len(self.nodes))})
        members = [Member(k, Terms.decode(terms.encode())) for k in range(len(self.nodes))]
        for k, member in enumerate(members):
            collector.take_keys(k, self.sent(member.keys()))
        for k, down in collector.close_keys().items():
            collector.take_shares(k, self.sent(members[k].shares(down)))
        for k, down in collector.close_shares().items():
            if k == gone:
                continue
            task = Task.decode(server.task(k).encode(), torch.device("cpu"))
            reply = self.nodes[k].take(task)
            self.true[k] = replace(reply.update, totals={name: v.clone() for name, v in reply.update.totals.items()})
            server.fold(k, self.sent(reply.blind().encode()))
            collector.take_masked(k, self.sent(members[k].mask(down, reply.update)))
        for k, down in collector.close_masked().items():
            collector.take_unmasked(k, self.sent(members[k].unmask(down)))
        server.fold_sum(collector.result())
        assert not server.rejected
        server.end()

    def sent(self, message: bytes) -> bytes:
        self.received.append(message)
        return message


@pytest.mark.parametrize(
    "method", [FEDMF, FedAvg(dim=4, lr=1.0, batch=16), Popularity(), FedGram()], ids=lambda method: method.info.name
)
def test_three_groups_end_as_without_masks(method: Method) -> None:
    plain, secure = Grid(method, tiny_world(), GROUPS), SecureGrid(method)
    for number in range(min(method.rounds, 3)):
        plain.round(number)
        secure.round(number)
    assert_close(secure.outcome(3), plain.outcome(3), 1e-7, "with secure sums")


def test_a_group_that_drops_out_costs_its_own_upload_alone() -> None:
    secure, plain = SecureGrid(FEDMF), Grid(FEDMF, tiny_world(), GROUPS)
    secure.round(0, gone=1)
    plain.coordinator.begin(0)
    for k in (0, 2):
        plain.coordinator.fold(k, plain.nodes[k].handle(plain.coordinator.task(k).encode()))
    plain.coordinator.end()
    tables = (grid.coordinator.server.tensors["item"] for grid in (secure, plain))
    assert torch.allclose(*tables, atol=1e-8)


def test_nothing_that_the_server_received_tells_of_an_upload() -> None:
    """Three nodes: every message is looked at, as whole numbers and as floats, at each place."""
    secure = SecureGrid(FedMF(dim=32, lr=1.0), items=200)
    secure.round(0)
    assert len(secure.received) == 3 * 5
    for update in secure.true.values():
        truth = update.totals["item"].numpy().ravel()
        for message in secure.received:
            for value in unpack(message)[1].values():
                for kind in (np.int64, np.uint64, np.float64):
                    view = value.numpy().ravel().view(kind) if value.dtype == torch.int64 else value.numpy().ravel()
                    numbers = np.nan_to_num(view[: len(truth)].astype(np.float64), posinf=0, neginf=0)
                    if len(numbers) == len(truth):
                        ranks = np.argsort(np.argsort(numbers)).astype(np.float64)
                        for seen in (numbers / max(1.0, np.abs(numbers).max()), ranks):
                            assert abs(np.corrcoef(seen, truth)[0, 1]) < 0.05


def test_a_blind_reply_holds_figures_and_nothing_else() -> None:
    update = Update({"item": torch.ones(2)}, {"item": 3.0}, frozenset({"item"}), {}, np.array([1]))
    blind = Reply.decode(Reply(update, ({"users": 2.0}, {})).blind().encode(), torch.device("cpu"))
    assert not blind.update.totals
    assert not len(blind.update.clients)
    assert blind.figures == ({"users": 2.0}, {})


def test_a_method_that_gathers_is_refused_by_name() -> None:
    schema = Grid(FedCA(dim=4, lr=1.0, batch=16), tiny_world(), GROUPS).coordinator.schema
    with pytest.raises(FedrecError, match="fedca needs each client's own upload"):
        layout_of(schema, "fedca")
