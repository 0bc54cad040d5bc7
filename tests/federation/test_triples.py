from __future__ import annotations

import numpy as np
import torch

from fedrec.testing import tiny_world
from fedrec.training.triples import Triples

DATA = tiny_world(silos=(5, 4, 3), empty=True)
EVERYONE = DATA.chunk(np.arange(3))


def test_a_triple_is_a_user_with_a_liked_and_another_item():
    triples = Triples(EVERYONE, 0)
    mine = [set(EVERYONE.items[a:b]) for a, b in zip(EVERYONE.user_ptr, EVERYONE.user_ptr[1:], strict=False)]
    for owner, user, liked, other in zip(triples.owner, triples.user, triples.liked, triples.other, strict=True):
        assert EVERYONE.owner[user] == owner == liked // 40 == other // 40
        assert int(liked % 40) in mine[user]
        assert int(other % 40) not in mine[user]


def test_as_many_as_interactions_less_those_of_users_without_any():
    count = Triples(EVERYONE, 0).count
    assert count[:2].tolist() == EVERYONE.positives[:2].tolist()
    assert 0 < count[2] < EVERYONE.positives[2]  # a third of its draws hit the user without items


def test_users_are_drawn_alike_whatever_their_activity():
    """A silo of two users with 30 and 3 items, in many draws."""
    data = tiny_world(items=60, per_user=(30, 3), silos=(2,))
    chunk = data.chunk(np.array([0]))
    drawn = torch.cat([Triples(chunk, draw).user for draw in range(60)])
    assert abs(float(drawn.double().mean()) - 0.5) < 0.04
    other = torch.cat([Triples(chunk, draw).other for draw in range(60)]) % 60
    assert len(other.unique()) > 55


def test_an_epoch_is_every_triple_once():
    triples = Triples(EVERYONE, 0)
    seen = {}
    for number in (0, 1):
        batches = list(triples.epoch(3, number, 7))
        assert len(batches) == -(-int(triples.count.max()) // 7)
        parts = [torch.stack([b.owner, b.user, b.liked, b.other]) for b in batches]
        seen[number] = torch.cat(parts, 1)
        for batch in batches:
            assert int(batch.size.max()) == batch.width <= 7
            assert torch.equal(torch.bincount(batch.owner, minlength=3), batch.size)
            assert len(batch.slot.unique()) == len(batch.slot)
            assert torch.equal(batch.slot // batch.width, batch.owner)
    whole = torch.stack([triples.owner, triples.user, triples.liked, triples.other])
    for order in seen.values():
        assert sorted(order.T.tolist()) == sorted(whole.T.tolist())
    assert not torch.equal(seen[0], seen[1])


def test_a_client_draws_the_same_in_any_company():
    together = Triples(EVERYONE, 2)
    for number in range(3):
        alone = Triples(DATA.chunk(np.array([number])), 2)
        here = together.owner == number
        assert torch.equal(alone.liked, together.liked[here] - 40 * number)
        assert torch.equal(alone.other, together.other[here] - 40 * number)
    assert not torch.equal(Triples(EVERYONE, 2).other, Triples(EVERYONE, 3).other)
