"""Negatives, batches and working sets, against definitions written out in plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk, ClientData, Forbidden, Pool
from fedrec.federation.contract import World
from fedrec.kernels.mf import draw_negatives, permutation
from fedrec.random import SWAPS, Purpose, fold, stream
from fedrec.testing import tiny_world
from fedrec.training.samples import Samples, negatives

ROUND = 3


def everyone(data: ClientData) -> Chunk:
    return data.chunk(np.arange(data.world.clients))


def drawn_by_user(chunk: Chunk, round: int) -> dict[int, np.ndarray]:
    """`[positives, slots]` under the user's index in the data set."""
    drawn = negatives(chunk, round).numpy()
    return {int(user): drawn[a:b] for user, a, b in zip(chunk.users, chunk.user_ptr, chunk.user_ptr[1:], strict=False)}


def one_user(
    n_items: int,
    items: list[int],
    negatives: int = 4,
    forbidden: list[int] | None = None,
    seed: int = 0,
    unique: str = "positive",
) -> ClientData:
    world = World(items=n_items, clients=1, seed=seed, dtype=torch.float64)
    held = None if forbidden is None else Forbidden(np.zeros(len(forbidden), int), np.array(forbidden))
    return ClientData.build(
        world,
        np.zeros(len(items), int),
        np.array(items),
        users=np.array([0]),
        client_ptr=np.array([0, 1]),
        negatives=negatives,
        forbidden=held,
        unique=unique,
    )


WORLDS = {
    "devices": {},
    "silos": {"silos": (5, 4, 3)},
    "empty": {"empty": True},
    "scarce": {"items": 16, "negatives": 5},
    "forbidden": {"forbidden": Forbidden(np.repeat(np.arange(12), 3), np.tile([7, 20, 39], 12))},
    "unique": {"unique": "user", "items": 90, "empty": True},
    "unique and scarce": {"unique": "user"},  # one user needs 60 negatives and has 25 items outside their own
}


class TestNegatives:
    @pytest.mark.parametrize("world", WORLDS)
    def test_same_integers_as_the_kernel(self, world):
        data = tiny_world(**WORLDS[world])
        chunk = everyone(data)
        base = stream(data.world.seed, Purpose.NEGATIVES, ROUND)
        for place, (user, found) in enumerate(drawn_by_user(chunk, ROUND).items()):
            assert user == data.users[place]
            gap = data.pool.gap[data.pool.indptr[place] : data.pool.indptr[place + 1]]
            out = np.empty(found.size, np.int64)
            draw_negatives(
                np.uint64(fold(base, user)),
                data.negatives,
                data.world.items,
                len(found),
                gap,
                data.unique == "user",
                out,
            )
            assert found.ravel().tolist() == out.tolist()

    @pytest.mark.parametrize("world", WORLDS)
    def test_never_a_positive_nor_forbidden_nor_twice(self, world):
        data = tiny_world(**WORLDS[world])
        forbidden = WORLDS[world].get("forbidden")
        for round in range(20):
            for place, found in enumerate(drawn_by_user(everyone(data), round).values()):
                own = set(data.items[data.user_ptr[place] : data.user_ptr[place + 1]].tolist())
                banned = own | (set(forbidden.item.tolist()) if forbidden else set())
                assert not banned & set(found.ravel().tolist())
                assert ((found >= 0) & (found < data.world.items)).all()
                if data.unique == "positive" and data.world.items - len(banned) >= data.negatives:
                    assert all(len(set(row)) == data.negatives for row in found.tolist())

    def test_uniform_over_the_pool(self):
        items = [0, 3, 4, 9, 15]
        pool = sorted(set(range(16)) - set(items))
        counts: Counter[int] = Counter()
        by_slot = np.zeros((4, 16))
        for seed in range(600):
            drawn = negatives(everyone(one_user(16, items, seed=seed)), ROUND).numpy()
            counts.update(drawn.ravel().tolist())
            for slot in range(4):
                by_slot[slot] += np.bincount(drawn[:, slot], minlength=16)
        assert set(counts) == set(pool)
        assert stats.chisquare([counts[i] for i in pool]).pvalue > 0.001
        for slot in range(4):
            assert stats.chisquare(by_slot[slot, pool]).pvalue > 0.001

    def test_pairs_within_a_positive_are_uniform(self):
        """Without replacement, every pair of different items is as likely as any other."""
        counts: Counter[tuple[int, ...]] = Counter()
        for seed in range(1500):
            drawn = negatives(everyone(one_user(8, [2, 5], negatives=2, seed=seed)), ROUND).numpy()
            counts.update(tuple(row) for row in drawn.tolist())
        assert len(counts) == 6 * 5
        assert stats.chisquare(list(counts.values())).pvalue > 0.001

    def test_held_out_items_appear_unless_forbidden(self):
        """An honest pool knows nothing of held-out items: they come as often as any other."""
        held_out, rounds = [1, 2, 3], 800
        seen = dict.fromkeys((False, True), 0)
        for leaked in seen:
            data = one_user(23, [0, 10, 20], forbidden=held_out if leaked else None)
            for round in range(rounds):
                seen[leaked] += int(np.isin(negatives(everyone(data), round).numpy(), held_out).sum())
        draws = rounds * 3 * 4
        assert seen[True] == 0
        assert stats.binomtest(seen[False], draws, 3 / 20).pvalue > 0.001

    def test_pool_smaller_than_slots_is_drawn_with_replacement(self):
        data = one_user(6, [0, 1, 2, 3], negatives=4)
        drawn = np.concatenate([negatives(everyone(data), round).numpy() for round in range(200)])
        assert set(drawn.ravel().tolist()) == {4, 5}
        assert stats.chisquare(np.bincount(drawn.ravel())[4:]).pvalue > 0.001

    def test_exactly_as_many_as_slots(self):
        data = one_user(6, [0, 1], negatives=4)
        assert (np.sort(negatives(everyone(data), 0).numpy(), 1) == [2, 3, 4, 5]).all()

    def test_user_with_every_item_is_refused(self):
        with pytest.raises(FedrecError, match="every one of the 4 items"):
            one_user(4, [0, 1, 2, 3])
        assert one_user(4, [0, 1, 2, 3], negatives=0).items.tolist() == [0, 1, 2, 3]

    def test_forbidden_items_can_fill_the_world_too(self):
        with pytest.raises(FedrecError, match="no negatives can be drawn"):
            one_user(4, [0, 1], forbidden=[2, 3])

    def test_redrawn_every_round_and_for_every_seed(self):
        data = tiny_world()
        first = negatives(everyone(data), 0)
        assert torch.equal(first, negatives(everyone(data), 0))
        assert not torch.equal(first, negatives(everyone(data), 1))
        assert not torch.equal(first, negatives(everyone(tiny_world(seed=1)), 0))

    def test_a_user_draws_the_same_in_any_company(self):
        data = tiny_world()
        together = drawn_by_user(everyone(data), ROUND)
        for clients in ([4], [7, 2], [11, 0, 5]):
            for user, drawn in drawn_by_user(data.chunk(np.array(clients)), ROUND).items():
                assert (drawn == together[user]).all()


def in_any_order(key: int, size: int, position: int) -> int:
    """Where a position goes when all are shuffled, by plain integers: in each turn, pairs swap or do not."""
    for turn in range(SWAPS):
        pivot = (fold(key, 2 * turn) >> 32) * size >> 32
        other = (pivot - position) % size
        if fold(fold(key, 2 * turn + 1), max(position, other)) >> 63:
            position = other
    return position


class TestUniqueOfAUser:
    @pytest.mark.parametrize("world", ["unique", "unique and scarce"])
    def test_by_definition(self, world):
        """The k-th negative of a user is the k-th item of their pool in an order drawn for the round.

        Where more are needed than the pool has, it is gone through again, in another order.
        """
        data = tiny_world(**WORLDS[world])
        base = stream(data.world.seed, Purpose.NEGATIVES, ROUND)
        for place, (user, found) in enumerate(drawn_by_user(everyone(data), ROUND).items()):
            own = set(data.items[data.user_ptr[place] : data.user_ptr[place + 1]].tolist())
            pool = [item for item in range(data.world.items) if item not in own]
            expected = [
                pool[in_any_order(fold(fold(base, user), k // len(pool)), len(pool), k % len(pool))]
                for k in range(found.size)
            ]
            assert found.ravel().tolist() == expected

    def test_no_item_twice_in_a_round(self):
        data, repeated = tiny_world(**WORLDS["unique"]), 0
        for round in range(20):
            for found in drawn_by_user(everyone(data), round).values():
                assert len(set(found.ravel().tolist())) == found.size
            before = drawn_by_user(everyone(replace(data, unique="positive")), round)
            repeated += sum(len(set(found.ravel().tolist())) < found.size for found in before.values())
        assert repeated, "the other draw would not have repeated any either: this world shows nothing"

    def test_a_pool_that_is_too_small_is_used_up_before_any_item_comes_again(self):
        """Five items are left to a user who needs 12: each comes twice, two of them a third time."""
        for round in range(20):
            drawn = negatives(everyone(one_user(8, [0, 3, 5], unique="user")), round).numpy().ravel()
            assert sorted(np.bincount(drawn, minlength=8)[[1, 2, 4, 6, 7]].tolist()) == [2, 2, 2, 3, 3]
            assert len(set(drawn[:5].tolist())) == len(set(drawn[5:10].tolist())) == 5

    def test_a_user_draws_the_same_in_any_company(self):
        data = tiny_world(**WORLDS["unique and scarce"])
        together = drawn_by_user(everyone(data), ROUND)
        for clients in ([4], [7, 2], [11, 0, 5]):
            for user, drawn in drawn_by_user(data.chunk(np.array(clients)), ROUND).items():
                assert (drawn == together[user]).all()


def test_pool_ranks_are_the_allowed_items():
    pool = Pool.excluding(np.array([0, 0, 0, 1]), np.array([2, 0, 5, 3]), 2)
    for user, banned in ((0, {0, 2, 5}), (1, {3})):
        gap = pool.gap[pool.indptr[user] : pool.indptr[user + 1]]
        allowed = [i for i in range(8) if i not in banned]
        assert [rank + int((gap <= rank).sum()) for rank in range(len(allowed))] == allowed


def plain_epoch(data: ClientData, client: int, loss: str, epoch: int) -> list[tuple]:
    """The samples of one client in training order: (user place, item, label) or (user place, positive, negative)."""
    chunk = data.chunk(np.array([client]))
    drawn = negatives(chunk, ROUND).tolist()
    owner = np.repeat(chunk.places, np.diff(chunk.user_ptr))
    positives = list(zip(owner.tolist(), chunk.items.tolist(), strict=True))
    if loss == "bpr":
        samples = [(user, item, n) for (user, item), row in zip(positives, drawn, strict=True) for n in row]
    else:
        samples = [(user, item, 1.0) for user, item in positives]
        samples += [(user, n, 0.0) for (user, _), row in zip(positives, drawn, strict=True) for n in row]
    order = np.empty(len(samples), np.int64)
    permutation(np.uint64(fold(stream(data.world.seed, Purpose.ORDER, ROUND, client), epoch)), len(samples), order)
    return [samples[k] for k in order]


def batched_epoch(samples: Samples, epoch: int) -> dict[int, list[list[tuple]]]:
    """The same from `Samples`: client -> batches -> samples."""
    chunk = samples.chunk
    found: dict[int, list[list[tuple]]] = {int(c): [] for c in chunk.clients}
    for batch in samples.epoch(epoch):
        for k in range(batch.clients):
            client = int(chunk.clients[samples.order[k]])
            real = batch.valid[k]
            assert int(real.sum()) == int(batch.size[k])
            users = chunk.places[samples.user_order[batch.user[k][real]].numpy()].tolist()
            assert (samples.owner[batch.pos[k]] == k).all(), "a row of another client"
            pos = samples.item[batch.pos[k][real]].tolist()
            third = batch.label[k][real] if batch.neg is None else samples.item[batch.neg[k][real]]
            found[client].append(list(zip(users, pos, third.tolist(), strict=True)))
    return found


@pytest.mark.parametrize("world", ["devices", "silos", "empty", "scarce", "unique and scarce"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
@pytest.mark.parametrize("size", [1, 16, 256])
class TestBatches:
    def test_are_the_plain_list_in_pieces(self, world, loss, size):
        data = tiny_world(**WORLDS[world])
        clients = np.random.default_rng(0).permutation(data.world.clients)
        samples = Samples(data.chunk(clients), ROUND, loss, size)
        for epoch in (0, 1):
            for client, batches in batched_epoch(samples, epoch).items():
                plain = plain_epoch(data, client, loss, epoch)
                assert batches == [plain[k : k + size] for k in range(0, len(plain), size)]

    def test_every_sample_once_an_epoch(self, world, loss, size):
        data = tiny_world(**WORLDS[world])
        samples = Samples(everyone(data), ROUND, loss, size)
        epochs = [batched_epoch(samples, epoch) for epoch in (0, 1)]
        for client in range(data.world.clients):
            first, second = (Counter(s for batch in epoch[client] for s in batch) for epoch in epochs)
            assert first == second
            per_positive = data.negatives + (1 if loss == "bce" else 0)
            assert sum(first.values()) == data.positives[client] * per_positive


def test_order_changes_with_the_epoch():
    samples = Samples(everyone(tiny_world()), ROUND, "bce", 16)
    assert batched_epoch(samples, 0) != batched_epoch(samples, 1)


def test_without_negatives_only_positives_are_trained():
    samples = Samples(everyone(tiny_world(negatives=0)), ROUND, "bce", 16)
    assert all(label == 1.0 for batches in batched_epoch(samples, 0).values() for b in batches for *_, label in b)


def test_working_set_is_the_distinct_pairs_and_nothing_more():
    """2,000 clients x 5,000 items hold ten million pairs; a round touches those of its samples."""
    rng = np.random.default_rng(0)
    clients, items, each = 2000, 5000, 3
    item = np.concatenate([rng.choice(items, each, replace=False) for _ in range(clients)])
    world = World(items=items, clients=clients)
    data = ClientData.build(
        world, np.repeat(np.arange(clients), each), item, users=np.arange(clients), client_ptr=np.arange(clients + 1)
    )
    chunk = everyone(data)
    samples = Samples(chunk, 0, "bce", 256)
    owner = np.repeat(np.arange(clients), each)
    touched = set(zip(owner.tolist(), item.tolist(), strict=True))
    touched |= {(int(c), i) for c, row in zip(owner, negatives(chunk, 0).tolist(), strict=True) for i in row}
    client = chunk.clients[samples.order[samples.owner]]
    assert len(samples.item) == len(touched) <= clients * each * 5
    assert set(zip(client.tolist(), samples.item.tolist(), strict=True)) == touched
    held = sum(t.numel() for t in vars(samples).values() if isinstance(t, torch.Tensor))
    assert held < clients * items / 50
