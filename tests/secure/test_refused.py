"""Messages that do not fit are refused by name and never added; what does not fit the range is an error."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage, pack, unpack
from fedrec.federation.update import Update
from fedrec.secure import Aborted, Collector, Layout, Member, Terms
from fedrec.secure.fixed_point import ForgedWeight, Part
from secure.helpers import LAYOUT, Secure, added, terms, update


def changed(message: bytes, **values: Any) -> bytes:
    header, tensors = unpack(message)
    return pack({**header, **values}, tensors)


def at_masked(count: int = 4) -> tuple[Secure, dict[int, bytes]]:
    """A sum that waits for uploads, and the uploads."""
    secure = Secure(range(count), terms(minimum=2))
    secure.phase("keys", dict.fromkeys(range(count), b""))
    secure.phase("shares", secure.collector.close_keys())
    downs = secure.collector.close_shares()
    return secure, {number: secure.answer("masked", number, down) for number, down in downs.items()}


def finished(secure: Secure, uploads: dict[int, bytes]) -> None:
    """The sum of these uploads comes out as if nothing else had been sent."""
    for number, message in uploads.items():
        secure.collector.take_masked(number, message)
    secure.phase("unmask", secure.collector.close_masked())
    found = secure.collector.result()
    assert float((found.totals["item"] - added(list(uploads))["item"]).abs().max()) < 1e-8


def with_sum(values: torch.Tensor) -> Callable[[bytes], bytes]:
    def make(message: bytes) -> bytes:
        header, tensors = unpack(message)
        return pack(header, {**tensors, "sum": values})

    return make


def with_clients(message: bytes) -> bytes:
    header, tensors = unpack(message)
    return pack(header, {**tensors, "clients": torch.tensor([2])})


REFUSED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "too short": (with_sum(torch.zeros(LAYOUT.entries - 1, dtype=torch.int64)), "must be 25 integers"),
    "too long": (with_sum(torch.zeros(LAYOUT.entries + 9, dtype=torch.int64)), "must be 25 integers"),
    "oversized": (with_sum(torch.zeros(1 << 16, dtype=torch.int64)), "bytes; .* are allowed"),
    "floats": (with_sum(torch.zeros(LAYOUT.entries, dtype=torch.float64)), "must be 25 integers"),
    "another session": (lambda m: changed(m, session="other"), "another secure sum"),
    "another phase": (lambda m: changed(m, phase="keys"), "phase 'keys', where 'masked' is due"),
    "another member": (lambda m: changed(m, **{"from": 2}), "member 1 sent a message of member 2"),
    "another's client": (with_clients, "an upload of client 2, which was not requested from member 1"),
    "torn": (lambda m: m[: len(m) // 2], "not a fedrec message"),
    "nothing": (lambda m: b"", "not a fedrec message"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_bad_upload_is_refused_by_name_and_the_sum_is_of_the_others(kind: str) -> None:
    make, words = REFUSED[kind]
    secure, uploads = at_masked()
    with pytest.raises(BadMessage, match=words):
        secure.collector.take_masked(1, make(uploads.pop(1)))
    finished(secure, uploads)


def test_an_upload_is_taken_once() -> None:
    secure, uploads = at_masked()
    secure.collector.take_masked(1, uploads[1])
    with pytest.raises(BadMessage, match="member 1 sent 'masked' twice"):
        secure.collector.take_masked(1, uploads.pop(1))
    secure.collector.take_masked(0, uploads.pop(0))
    for number, message in uploads.items():
        secure.collector.take_masked(number, message)
    secure.phase("unmask", secure.collector.close_masked())
    assert float((secure.collector.result().totals["item"] - added(range(4))["item"]).abs().max()) < 1e-8


def test_an_upload_of_an_earlier_sum_is_refused() -> None:
    _, earlier = at_masked()
    secure, _ = at_masked()
    with pytest.raises(BadMessage, match="another secure sum"):
        secure.collector.take_masked(1, earlier[1])


def test_strangers_are_refused() -> None:
    secure, uploads = at_masked()
    with pytest.raises(BadMessage, match="member 9 is not, or no longer, part"):
        secure.collector.take_masked(9, changed(uploads[1], **{"from": 9}))
    fresh = Secure(range(3))
    with pytest.raises(BadMessage, match="member 7 is not"):
        fresh.collector.take_keys(7, Member(7, fresh.terms).keys())


def test_one_who_left_does_not_come_back() -> None:
    secure = Secure(range(4), leaves=lambda now, member: now == "keys" and member == 3)
    secure.phase("keys", dict.fromkeys(range(4), b""))
    secure.collector.close_keys()
    with pytest.raises(BadMessage, match="too late"):
        secure.collector.take_keys(3, secure.members[3].keys())


def test_phases_come_in_order() -> None:
    secure = Secure(range(3))
    with pytest.raises(BadMessage, match="at 'keys', not at 'masked'"):
        secure.collector.close_masked()
    with pytest.raises(BadMessage, match="its next phase is 'keys'"):
        secure.members[0].mask(b"", update(0))
    secure.members[0].keys()
    with pytest.raises(BadMessage, match="its next phase is 'shares'"):
        secure.members[0].keys()


def test_an_upload_is_masked_once() -> None:
    """Two uploads under one mask would tell their difference."""
    secure = Secure(range(3))
    secure.phase("keys", dict.fromkeys(range(3), b""))
    secure.phase("shares", secure.collector.close_keys())
    downs = secure.collector.close_shares()
    secure.members[0].mask(downs[0], update(0))
    with pytest.raises(BadMessage, match="asked for 'masked', but its next phase is 'unmask'"):
        secure.members[0].mask(downs[0], update(1))


@pytest.mark.parametrize("sealed", ["garbage", "another"])
def test_a_share_that_cannot_be_opened_costs_a_share_and_not_the_sum(sealed: str) -> None:
    """Changed in transit or meant for another member: its owner's secret comes from the other holders."""
    secure = Secure(range(5))
    secure.phase("keys", dict.fromkeys(range(5), b""))
    secure.phase("shares", secure.collector.close_keys())
    downs = secure.collector.close_shares()
    header, _ = unpack(downs[0])
    wrong = base64.b64encode(bytes(148)).decode() if sealed == "garbage" else header["sealed"]["2"]
    downs[0] = changed(downs[0], sealed={**header["sealed"], "1": wrong})
    secure.phase("masked", downs)
    secure.phase("unmask", secure.collector.close_masked())
    found = secure.collector.result()
    assert torch.allclose(found.totals["item"], added(range(5))["item"], atol=1e-8)
    assert not secure.collector.culprits


def test_who_sends_garbage_to_too_many_is_named() -> None:
    secure = Secure(range(5))
    secure.phase("keys", dict.fromkeys(range(5), b""))
    secure.phase("shares", secure.collector.close_keys())
    downs = secure.collector.close_shares()
    for number in (0, 2, 3):
        given = unpack(downs[number])[0]["sealed"]
        downs[number] = changed(downs[number], sealed={**given, "1": base64.b64encode(bytes(148)).decode()})
    secure.phase("masked", downs)
    with pytest.raises(Aborted, match="of member 1 and its neighbours 2 sent their uploads"):
        secure.collector.close_masked()
    assert secure.collector.culprits == {1: "shares that its neighbours cannot open"}


@pytest.mark.parametrize("gone", [None, 3])
def test_a_wrong_share_costs_its_sender_and_not_the_sum(gone: int | None) -> None:
    """The first shares that came once ended it; now the secret comes from those that fit, and the culprit is named."""
    secure = Secure(range(4), terms(minimum=2), lambda now, member: now == "masked" and member == gone)
    secure.phase("keys", dict.fromkeys(range(4), b""))
    secure.phase("shares", secure.collector.close_keys())
    secure.phase("masked", secure.collector.close_shares())
    for number, down in secure.collector.close_masked().items():
        message = secure.members[number].unmask(down)
        if number == 0:
            shares = {**unpack(message)[0]["shares"], "3": base64.b64encode(bytes(66)).decode()}
            message = changed(message, shares=shares)
        secure.collector.take_unmasked(number, message)
    if gone is None:
        found = secure.collector.result()
        assert torch.allclose(found.totals["item"], added(range(4))["item"], atol=1e-8)
        assert secure.collector.culprits == {0: "a wrong share of member 3's seed"}
        return
    with pytest.raises(Aborted, match="member 3's key do not match: too many of them are wrong"):
        secure.collector.result()  # three holders are left of four, and three shares are needed


def test_nine_members_and_one_wrong_share_in_all() -> None:
    """Attack: one of nine ends any sum by shares of zeros. Now it is named, and the sum is that of all."""
    secure = Secure(range(9))
    secure.phase("keys", dict.fromkeys(range(9), b""))
    secure.phase("shares", secure.collector.close_keys())
    secure.phase("masked", secure.collector.close_shares())
    for number, down in secure.collector.close_masked().items():
        message = secure.members[number].unmask(down)
        if number == 4:
            zeros = base64.b64encode(bytes(66)).decode()
            message = changed(message, shares=dict.fromkeys(unpack(message)[0]["shares"], zeros))
        secure.collector.take_unmasked(number, message)
    found = secure.collector.result()
    assert torch.allclose(found.totals["item"], added(range(9))["item"], atol=1e-8)
    assert set(secure.collector.culprits) == {4}


EQUAL = Layout((Part("item", (2,), mean=True, equal=True),))


@pytest.mark.parametrize("forged", [-8.999, -20.0, 3.0, -8.0])
def test_forged_weights_in_a_blind_mean(forged: float) -> None:
    """Attack: of nine members one sends such a weight. Unchecked, the mean is 9,000 times too large, or gone."""
    updates = [Update({"item": torch.ones(2)}, {"item": 1.0}, frozenset({"item"}), {}, np.array([k])) for k in range(9)]
    updates[8] = replace(updates[8], weights={"item": forged})
    sums = np.add.reduce([EQUAL.encode(update, 9) for update in updates])
    with pytest.raises(ForgedWeight, match=r"'item' is .* for 9 clients; a member has sent a wrong one"):
        EQUAL.decode(sums, np.arange(9))
    free = Layout((Part("item", (2,), mean=True),))
    if forged == 3.0:
        assert free.decode(sums, np.arange(9)).weights == {"item": 11.0}  # where weights differ, they are bounded alone
    elif forged < -8.999:
        with pytest.raises(ForgedWeight):
            free.decode(sums, np.arange(9))


def test_a_key_that_nobody_made_is_refused() -> None:
    secure = Secure(range(3))
    secure.phase("keys", dict.fromkeys(range(3), b""))
    down = secure.collector.close_keys()[0]
    header, _ = unpack(down)
    zero = base64.b64encode(bytes(32)).decode()
    with pytest.raises(BadMessage, match="yields no shared secret"):
        secure.members[0].shares(changed(down, keys={**header["keys"], "1": {"mask": zero, "seal": zero}}))
    with pytest.raises(BadMessage, match="not those of this member's neighbours"):
        secure.members[0].shares(changed(down, keys={"1": header["keys"]["1"]}))
    with pytest.raises(BadMessage, match="leaves this member out"):
        secure.members[0].shares(changed(down, roster=[1, 2, 5]))
    with pytest.raises(BadMessage, match="the roster names a member twice"):
        secure.members[0].shares(changed(down, roster=[0, 1, 2, 2]))


# -- groups that are too small --


def test_too_few_give_no_sum() -> None:
    secure = Secure(range(5), terms(minimum=4), lambda now, member: now == "masked" and member < 2)
    with pytest.raises(Aborted, match="3 members sent 'masked'; a secure sum needs 4"):
        secure.run()
    with pytest.raises(BadMessage, match="at 'done'"):
        secure.collector.result()


def test_a_member_does_not_take_part_in_a_group_that_is_too_small_for_it() -> None:
    with pytest.raises(FedrecError, match="sums of at least 10"):
        Member(0, terms(minimum=5), least=10)
    with pytest.raises(FedrecError, match="hides nobody"):
        terms(minimum=1)
    secure, uploads = at_masked()
    for number, message in uploads.items():
        secure.collector.take_masked(number, message)
    down = secure.collector.close_masked()[0]
    with pytest.raises(Aborted, match="1 uploads arrived"):
        secure.members[0].unmask(changed(down, arrived=[0]))
    with pytest.raises(BadMessage, match="leaves this one out"):
        secure.members[0].unmask(changed(down, arrived=[1, 2, 3]))
    with pytest.raises(Aborted, match="of member 0 and its neighbours 2 sent"):
        secure.members[0].unmask(changed(down, arrived=[0, 1]))


def test_a_cohort_is_hidden_too_or_there_is_no_sum() -> None:
    """A part over one cohort is a sum of its members alone."""
    layout = Layout((Part("item@a", (5,), mean=True), Part("item@b", (5,), mean=True)))
    for size, hidden in ((3, True), (2, False)):
        cohorts = {"a": np.arange(size), "b": np.arange(size, 7)}
        secure = Secure(range(7), terms(layout))
        secure.collector = Collector(secure.terms, {k: np.array([k]) for k in range(7)}, cohorts)
        secure.phase("keys", dict.fromkeys(range(7), b""))
        secure.phase("shares", secure.collector.close_keys())
        for number, down in secure.collector.close_shares().items():
            name = "item@a" if number < size else "item@b"
            one = Update({name: torch.full((5,), number + 1.0)}, {name: 1.0}, frozenset({name}), {}, np.array([number]))
            secure.collector.take_masked(number, secure.members[number].mask(down, one))
        if not hidden:
            with pytest.raises(Aborted, match="2 members of the cohort a arrived; a secure sum needs 3"):
                secure.collector.close_masked()
            continue
        secure.phase("unmask", secure.collector.close_masked())
        found = secure.collector.result()
        assert found.totals["item@a"].tolist() == [6.0] * 5
        assert found.weights == {"item@a": 3.0, "item@b": 4.0}


# -- range --


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (-1e9, "1e\\+09")])
def test_what_does_not_fit_is_an_error_and_never_clipped(value: float, shown: str) -> None:
    one = update(0)
    one.totals["item"][2, 1] = value
    with pytest.raises(FedrecError, match=f"'item' holds {shown}.*up to 3.579e\\+08; lower --secure-bits"):
        LAYOUT.encode(one, 3)


def test_the_range_holds_for_the_sum() -> None:
    """The largest number that is taken, from everybody: the sum is right and has not wrapped."""
    layout = Layout((Part("count", (2,), mean=False),), 20)
    most = layout.limit(5)
    one = replace(
        update(0),
        totals={"count": torch.tensor([most, -most], dtype=torch.float64)},
        weights={"count": 1.0},
        means=frozenset(),
    )
    total = sum((layout.encode(one, 5) for _ in range(5)), np.zeros(3, dtype=np.uint64))
    assert layout.decode(total, np.arange(5)).totals["count"].tolist() == [5 * most, -5 * most]


def test_weights_have_a_range_too() -> None:
    with pytest.raises(FedrecError, match="the weight of 'item' holds 1e\\+12"):
        LAYOUT.encode(replace(update(0), weights={"count": 1.0, "item": 1e12}), 3)


def test_what_is_no_sum_is_refused() -> None:
    gathered = replace(update(0), gathered={"profile": [(np.array([0]), torch.zeros(1, 2))]})
    with pytest.raises(FedrecError, match="'profile' is each client's own upload"):
        LAYOUT.encode(gathered, 3)
    with pytest.raises(FedrecError, match="unexpected 'user'"):
        LAYOUT.encode(replace(update(0), totals={"user": torch.zeros(1)}), 3)
    with pytest.raises(FedrecError, match=r"'count' has the shape \(4,\); it must be \(3,\)"):
        LAYOUT.encode(replace(update(0), totals={"count": torch.zeros(4)}), 3)


def test_what_nobody_sent_is_not_in_the_sum() -> None:
    """As the part of a cohort of which nobody took part."""
    one = replace(update(0), totals={"count": update(0).totals["count"]})
    found = LAYOUT.decode(LAYOUT.encode(one, 3), np.array([0]))
    assert set(found.totals) == {"count"}
    assert not found.means


def test_terms_travel() -> None:
    sent = terms(minimum=5, lost=0.1)
    assert Terms.decode(sent.encode()) == sent
    with pytest.raises(BadMessage, match="not the terms of a secure sum"):
        Terms.decode(pack({"session": "x"}, {}))
    with pytest.raises(BadMessage, match="not a stored member"):
        Member.load(sent.encode())
    with pytest.raises(FedrecError, match="choose 1 to 52"):
        Layout((), 60)
    with pytest.raises(FedrecError, match="below 50%"):
        terms(lost=0.5)
