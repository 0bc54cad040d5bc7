from __future__ import annotations

import numpy as np
import torch

from fedrec.federation.clients import ClientData
from fedrec.federation.noise import Laplace
from fedrec.federation.stages import Clip
from fedrec.methods import Popularity
from fedrec.testing import MethodTests, run, tiny_world


class TestPopularity(MethodTests):
    method = Popularity()
    random = False
    rounds = 1

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        """Counts of those who took part in the last round."""
        from fedrec.federation.contract import participants

        count = np.zeros(data.world.items)
        for client in participants(data.world, rounds - 1, data.world.participation):
            for place in range(data.client_ptr[client], data.client_ptr[client + 1]):
                for item in data.items[data.user_ptr[place] : data.user_ptr[place + 1]]:
                    count[item] += 1
        counts = torch.from_numpy(count)
        return {"server.popularity": counts[:, None], "scores": counts.expand(len(data.users), -1)}


def test_counts_are_whole_interactions_of_everybody():
    data = tiny_world()
    count = run(Popularity(), data, 1)["server.popularity"]
    assert count.sum() == len(data.items)
    assert torch.equal(count[:, 0], torch.from_numpy(np.bincount(data.items, minlength=40)).double())


def test_an_item_that_two_users_of_a_silo_share_counts_twice_behind_noise_too():
    """Stages look at each client's whole upload: it must be the same table that is summed without them."""
    data = tiny_world(silos=(5, 4, 3))
    plain = run(Popularity(), data, 1)["server.popularity"]
    assert plain.max() > 3, "some silo must hold an item twice"
    noised = run(Popularity(), data, 1, stages=[Laplace(1e-9)])["server.popularity"]
    assert torch.allclose(plain, noised, atol=1e-6)
    assert torch.allclose(plain, run(Popularity(), data, 1, stages=[Clip(1e6)])["server.popularity"], atol=1e-9)
