"""Secure sums from end to end: the sum is exact, whoever leaves, or there is none."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.federation.codec import unpack
from fedrec.federation.update import Update
from fedrec.secure import Aborted, Layout, Member, shamir
from fedrec.secure.collector import Collector
from fedrec.secure.fixed_point import Part
from fedrec.secure.terms import Circle, close_message, degree
from secure.helpers import LAYOUT, Secure, added, terms, update

PHASES = ("keys", "shares", "masked", "unmask")


def assert_sum(found: Update, numbers: list[int]) -> None:
    wanted, room = added(numbers), len(numbers) * 2.0**-33 * 1.001
    assert list(found.clients) == sorted(numbers)
    assert found.means == {"item"}
    for name in ("count", "item"):
        assert float((found.totals[name] - wanted[name]).abs().max()) <= room
    assert found.weights == {"count": len(numbers), "item": float(wanted["weight"])}


@pytest.mark.parametrize("count", [3, 4, 7, 17, 60])
def test_the_sum_is_exact_to_fixed_point(count: int) -> None:
    numbers = [3 * number + 1 for number in range(count)]
    assert_sum(Secure(numbers).run(), numbers)


def test_the_mean_is_that_of_the_weights() -> None:
    """Weights are masked and summed like the rest."""
    ups = Secure(range(5)).run().ups(torch.float64)
    wanted = added(range(5))
    assert torch.allclose(ups["item"], wanted["item"] / wanted["weight"], atol=1e-9)


@pytest.mark.parametrize("phase", PHASES)
def test_one_of_three_may_leave_in_any_phase(phase: str) -> None:
    secure = Secure(range(3), terms(minimum=2), leaves=lambda now, member: now == phase and member == 1)
    assert_sum(secure.run(), [0, 1, 2] if phase == "unmask" else [0, 2])


@settings(max_examples=40)
@given(st.integers(3, 24), st.integers(2, 6), st.data())
def test_whoever_leaves_the_sum_is_of_those_who_arrived_or_there_is_none(
    count: int, minimum: int, data: st.DataObject
) -> None:
    """Members leave at random: a sum is right, and is given up only where too few are left."""
    leaving = data.draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(PHASES), max_size=count // 2))
    secure = Secure(range(count), terms(minimum=minimum, lost=0.2), lambda now, member: leaving.get(member) == now)
    arrived = [member for member in range(count) if leaving.get(member, "unmask") == "unmask"]
    roster = [member for member in range(count) if leaving.get(member) != "keys"]
    sharing = {member for member in roster if leaving.get(member) != "shares"}
    circle = secure.terms.circle(roster)
    enough = len(arrived) >= minimum and _holders(circle, sharing, set(arrived) - leaving.keys())
    if enough:
        assert_sum(secure.run(), arrived)
    else:
        with pytest.raises(Aborted):
            secure.run()


def _holders(circle: Circle, sharing: set[int], left: set[int]) -> bool:
    """Whether of every member that sent shares a threshold of holders is left."""
    return all(len(left.intersection([*circle.neighbours(member), member])) >= circle.threshold for member in sharing)


def test_many_members_have_few_neighbours() -> None:
    assert degree(3, 0.05) == 2
    assert degree(16, 0.05) == 15
    assert degree(943, 0.05) == 24
    assert degree(943, 0.2) > degree(943, 0.05)
    assert degree(10_000, 0.05) < 40
    circle = terms().circle(range(100))
    assert sorted(circle.order) == list(range(100))
    assert circle.order != terms().circle(range(100)).order, "another session, another circle"
    for member in range(100):
        mine = circle.neighbours(member)
        assert len(mine) == circle.degree
        assert all(member in circle.neighbours(other) for other in mine)
        assert 2 * circle.threshold > circle.degree + 1, "a majority"


def test_a_fifth_of_many_may_be_lost() -> None:
    gone = set(np.random.default_rng(3).choice(80, 16, replace=False).tolist())
    secure = Secure(range(80), terms(lost=0.2), lambda now, member: now == "masked" and member in gone)
    assert_sum(secure.run(), sorted(set(range(80)) - gone))


# -- what the server sees --

WIDE = Layout((Part("item", (400, 8), mean=True),))
CHANCE = 5 / np.sqrt(400 * 8)  # five standard deviations of the correlation of what has nothing in common


def wide_update(number: int) -> Update:
    values = torch.from_numpy(np.random.default_rng(number).normal(size=(400, 8)))
    return Update({"item": values}, {"item": 3.0}, frozenset({"item"}), {}, np.array([number]))


class Wide(Secure):
    def answer(self, name: str, number: int, down: bytes) -> bytes:
        return (
            self.members[number].mask(down, wide_update(number))
            if name == "masked"
            else super().answer(name, number, down)
        )


def correlations(message: bytes, truth: np.ndarray) -> list[float]:
    """Of all that a message holds with an upload, as numbers of 8 bytes at any of their places."""
    found = []
    _, tensors = unpack(message)
    views = [value.numpy().view(kind) for value in tensors.values() for kind in (np.int64, np.uint64)]
    views += [np.frombuffer(message[shift : shift + (len(message) - shift) // 8 * 8], np.int64) for shift in range(8)]
    for view in views:
        for start in {0, max(0, len(view) - len(truth))}:
            part = view[start : start + len(truth)].astype(np.float64)
            if len(part) > 1000:
                found.append(abs(float(np.corrcoef(part, truth[: len(part)])[0, 1])))
    return found


def test_no_message_tells_of_the_upload_in_it() -> None:
    """All messages of three members, as the server received them."""
    secure = Wide(range(3), terms(WIDE))
    found = secure.run()
    wanted = sum(wide_update(number).totals["item"] for number in range(3))
    assert float((found.totals["item"] - wanted).abs().max()) <= 3 * 2.0**-33 * 1.001
    for number in range(3):
        truth = wide_update(number).totals["item"].numpy().ravel()
        assert max(correlations(secure.messages["masked"][number], truth)) < CHANCE
        for phase in ("keys", "shares", "unmask"):
            assert len(secure.messages[phase][number]) < 2000, "too small to hold an upload"


def test_two_sums_of_the_same_uploads_have_nothing_in_common() -> None:
    first, second = Wide(range(3), terms(WIDE)), Wide(range(3), terms(WIDE))
    first.run(), second.run()
    one, other = (unpack(secure.messages["masked"][0])[1]["sum"].numpy() for secure in (first, second))
    assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < CHANCE


def test_an_upload_that_comes_late_stays_hidden() -> None:
    """The server has reconstructed the key of one who left, and then its upload comes: its own mask is still on it."""
    secure = Wide(range(4), terms(WIDE, minimum=2))
    secure.phase("keys", dict.fromkeys(range(4), b""))
    secure.phase("shares", secure.collector.close_keys())
    downs = secure.collector.close_shares()
    late = secure.members[3].mask(downs.pop(3), wide_update(3))
    secure.phase("masked", downs)
    secure.phase("unmask", secure.collector.close_masked())
    secure.collector.result()
    with pytest.raises(Exception, match="too late"):
        secure.collector.take_masked(3, late)
    bare = unpack(late)[1]["sum"].numpy().view(np.uint64).copy()
    for other in range(3):  # take the pairwise masks off, as the server can now
        secure.collector._sum = bare
        secure.collector._clients = {other: np.array([other])}
        secure.collector._take_off_pairs(3)
    truth = wide_update(3).totals["item"].numpy().ravel()
    assert abs(np.corrcoef(bare[:-1].view(np.int64).astype(float), truth)[0, 1]) < CHANCE


def test_of_each_member_the_key_or_the_seed_is_given_and_never_both() -> None:
    secure = Secure(range(6), leaves=lambda now, member: now == "masked" and member == 2)
    secure.run()
    threshold = secure.terms.circle(range(6)).threshold
    for owner, held in secure.collector._shares.items():
        found = shamir.combine(held, threshold)
        member = secure.members[owner]
        assert (found == member._mask_key.raw) == (owner == 2)
        assert (found == member._seed) == (owner != 2)
    for member in secure.members.values():
        if member.number != 2:
            with pytest.raises(Exception, match="its next phase is 'done'"):
                member.unmask(b"")


def test_a_server_that_lies_to_half_of_the_members_gets_one_secret_at_most() -> None:
    """Told that 5 arrived, some give the seed; told that it did not, the others give the key: neither is enough."""
    secure = Secure(range(6), terms(minimum=2))
    secure.phase("keys", dict.fromkeys(range(6), b""))
    secure.phase("shares", secure.collector.close_keys())
    secure.phase("masked", secure.collector.close_shares())
    given: dict[bool, dict[int, bytes]] = {True: {}, False: {}}
    for number in range(5):
        told = number % 2 == 0
        arrived = [0, 1, 2, 3, 4, 5] if told else [0, 1, 2, 3, 4]
        header, _ = unpack(secure.members[number].unmask(close_message(secure.terms, "unmask", {"arrived": arrived})))
        given[told][number] = base64.b64decode(header["shares"]["5"])
    threshold = secure.terms.circle(range(6)).threshold
    for shares, secret in ((given[True], secure.members[5]._seed), (given[False], secure.members[5]._mask_key.raw)):
        assert len(shares) < threshold
        assert shamir.combine(shares, len(shares)) != secret


# -- between processes --


def test_a_member_goes_on_from_its_stored_state() -> None:
    """As where every message is answered by a process of its own."""

    class Stored(Secure):
        def answer(self, name: str, number: int, down: bytes) -> bytes:
            self.members[number] = Member.load(self.members[number].save())
            message = super().answer(name, number, down)
            self.members[number] = Member.load(self.members[number].save())
            return message

    assert_sum(Stored(range(5), leaves=lambda now, member: now == "masked" and member == 4).run(), [0, 1, 2, 3])


def test_a_members_secrets_are_not_printed() -> None:
    member = Member(1, terms())
    assert "_seed" not in repr(member)
    assert "_mask_key" not in repr(member)


def test_memory_of_the_collector_does_not_grow_with_uploads() -> None:
    collector = Collector(terms(), {number: np.array([number]) for number in range(5)})
    assert collector._sum.nbytes == 8 * LAYOUT.entries
    assert update(1).totals["item"].numel() + 3 + 2 == LAYOUT.entries
