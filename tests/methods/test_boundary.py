"""Attributes stay at the server and interactions at the clients, for every method that says so; and leaks are found."""

from __future__ import annotations

import pytest
import torch

from fedrec.experiment.params import build_method
from fedrec.federation.contract import Down, Gather
from fedrec.methods import methods
from fedrec.methods.cold.cs_pfedrec import CsPFedRec
from fedrec.methods.cold.fedmvmf import FedMVMF
from fedrec.methods.cold.ifedrec import IFedRec
from fedrec.testing import require_attributes_stay, tiny_world

SAYING_SO = [
    name for name, cls in methods().items() if cls().disclosure.attributes == "server" and not cls.info.centralised
]
SMALL = {"ifedrec": {"dim": 4, "batch": 16, "lr": 0.1, "rate_scale": 0.2, "align": 5.0}}


def more(down: Down, **tensors: torch.Tensor) -> Down:
    return Down(shared={**down.shared, **tensors}, own=down.own)


class OffersAttributes(IFedRec):
    def offer(self, server, clients, round, items):
        return more(super().offer(server, clients, round, items), seen=server["attributes"][items])


class SendsAttributesLater(IFedRec):
    def broadcast(self, server, clients, round):
        down = super().broadcast(server, clients, round)
        return more(down, seen=server["attributes"]) if round else down


class SendsACopy(IFedRec):
    """Under another name, as if it had been learned."""

    def init_server(self, world, attributes=None):
        return super().init_server(world, attributes) | {"content": attributes.clone()}

    def broadcast(self, server, clients, round):
        return more(super().broadcast(server, clients, round), content=server["content"])


class SendsWhatIsAlike(FedMVMF):
    def init_server(self, world, attributes=None):
        return super().init_server(world, attributes) | {"alike": attributes @ attributes.T}

    def broadcast(self, server, clients, round):
        return more(super().broadcast(server, clients, round), alike=server["alike"])


class OffersFactorsOfAttributes(FedMVMF):
    def offer(self, server, clients, round, items):
        down = super().offer(server, clients, round, items)
        return Down(shared={"item": down.shared["item"] + server["attributes"][items].sum(1, keepdim=True)})


class OffersNeighbours(CsPFedRec):
    def offer(self, server, clients, round, items):
        return more(super().offer(server, clients, round, items), near=server["near"])


class UploadsItems(FedMVMF):
    def local(self, state, down, chunk, round):
        state, payload = super().local(state, down, chunk, round)
        return state, payload | {"mine": Gather(torch.from_numpy(chunk.matrix().toarray()))}


class UploadsMarkedRows(FedMVMF):
    def local(self, state, down, chunk, round):
        state, payload = super().local(state, down, chunk, round)
        marks = torch.from_numpy(chunk.matrix().toarray())[..., None].expand(-1, -1, self.dim)
        return state, payload | {"mine": Gather(marks.contiguous())}


LEAKS = {
    SendsACopy: "the broadcast of ifedrec in round 0: 'content' tells attributes",
    SendsWhatIsAlike: "the broadcast of fedmvmf in round 0: 'alike' tells attributes",
    OffersAttributes: "the offer of ifedrec in round 0: 'seen' tells attributes",
    SendsAttributesLater: "the broadcast of ifedrec in round 1: 'seen' tells attributes",
    OffersFactorsOfAttributes: "the offer of fedmvmf in round 0: 'item' tells attributes",
    OffersNeighbours: "the offer of cs-pfedrec in round 0: 'near' tells attributes",
    UploadsItems: "fedmvmf uploads 'mine'",
    UploadsMarkedRows: "'mine' marks the items of its client",
}


@pytest.mark.parametrize("name", SAYING_SO)
def test_attributes_stay_at_the_server_and_interactions_at_the_clients(name):
    require_attributes_stay(build_method(name, params=SMALL.get(name, {"dim": 4})), tiny_world())


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_what_leaks_is_found(leak):
    method = leak(**SMALL["ifedrec"]) if issubclass(leak, IFedRec) else leak(dim=4)
    with pytest.raises(AssertionError, match=LEAKS[leak]):
        require_attributes_stay(method, tiny_world())


def test_there_is_something_to_test():
    assert {"ifedrec", "fedmvmf", "cs-pfedrec"} <= set(SAYING_SO)
