"""Keys of a secure sum are signed: whoever puts another in a member's place is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrec.deploy.keys import make_node_key
from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage, pack, unpack
from fedrec.secure import Collector, Member, Peers, SigningKey, Terms, read_public
from secure.helpers import LAYOUT, terms

MEMBERS = (0, 1, 2)


class Trio:
    """Three members with identities, up to the message that carries the others' keys."""

    def __init__(self, folder: Path) -> None:
        for number in MEMBERS:
            make_node_key(folder / f"node-{number}")
        self.folder = folder
        self.identities = [SigningKey(folder / f"node-{number}") for number in MEMBERS]
        self.terms = terms()

    def relayed(self, terms: Terms | None = None) -> tuple[Member, dict[str, Any]]:
        """Member 0, and what the server relays to it."""
        members = [Member(number, terms or self.terms) for number in MEMBERS]
        collector = Collector(terms or self.terms, {number: [number] for number in MEMBERS})  # type: ignore[dict-item]
        for number, member in enumerate(members):
            collector.take_keys(number, member.keys(self.identities[number]))
        return members[0], unpack(collector.close_keys()[0])[0]

    def peers(self, **known: Any) -> Peers:
        return Peers(self.identities[0].public, **known)


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)


def test_signed_keys_are_taken_and_remembered(trio: Trio) -> None:
    member, header = trio.relayed()
    peers = trio.peers(pinned=read_public(trio.folder))
    member.shares(pack(header, {}), peers)
    assert peers.met == {1: trio.identities[1].public, 2: trio.identities[2].public}


@pytest.mark.parametrize("kind", ["mask", "seal"])
def test_a_swapped_key_is_refused(trio: Trio, kind: str) -> None:
    member, header = trio.relayed()
    _, others = trio.relayed()
    header["keys"]["1"][kind] = others["keys"]["1"][kind]
    with pytest.raises(BadMessage, match="member 1 are not those that it signed"):
        member.shares(pack(header, {}), trio.peers())


def test_keys_of_another_sum_or_member_are_refused(trio: Trio) -> None:
    member, header = trio.relayed()
    _, before = trio.relayed(terms())
    for other, wanted in (("1", "member 1 are not those"), ("2", "member 1 are not those")):
        changed = {**header, "keys": {**header["keys"], "1": before["keys"][other]}}
        with pytest.raises(BadMessage, match=wanted):
            member.shares(pack(changed, {}), trio.peers())


def test_unsigned_keys_are_refused(trio: Trio) -> None:
    member, header = trio.relayed()
    del header["keys"]["2"]["identity"]
    with pytest.raises(BadMessage, match="member 2 are not signed"):
        member.shares(pack(header, {}), trio.peers())


def test_a_key_that_was_not_agreed_on_is_refused(trio: Trio) -> None:
    member, header = trio.relayed()
    (trio.folder / "node-2.pub").unlink()
    with pytest.raises(BadMessage, match="member 2 are signed by a key that was not agreed on"):
        member.shares(pack(header, {}), trio.peers(pinned=read_public(trio.folder)))


def test_whoever_signs_first_is_that_member_from_then_on(trio: Trio) -> None:
    member, header = trio.relayed()
    with pytest.raises(BadMessage, match="member 1 are signed by another key than before"):
        member.shares(pack(header, {}), trio.peers(met={1: trio.identities[2].public}))


def test_one_key_cannot_stand_for_two_members(trio: Trio) -> None:
    """One colluding node that a server shows as many could take a sum apart."""
    trio.identities[2] = trio.identities[1]
    member, header = trio.relayed()
    with pytest.raises(BadMessage, match="stands for another member"):
        member.shares(pack(header, {}), trio.peers())


def test_keys_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match="holds no public keys"):
        read_public(tmp_path)
    (tmp_path / "a.pub").write_text("nonsense")
    with pytest.raises(FedrecError, match="cannot read the public key"):
        read_public(tmp_path)
    with pytest.raises(FedrecError, match="cannot read the private key"):
        SigningKey(tmp_path / "a.pub")


def surrounding_names(keys: str) -> int:
    """Count the names that a server tries until both sides of a member among a hundred are of its own twenty."""
    colluders = set(range(80, 100))
    for count in range(20_000):
        circle = Terms(f"name {count}", LAYOUT).circle(range(100), keys)
        at = circle.order.index(0)
        if {circle.order[(at + step) % 100] for step in (-1, 1)} <= colluders:
            return count + 1
    return 0


def test_a_server_could_choose_who_neighbours_whom_by_its_name_for_a_sum() -> None:
    """Attack: the order was known before anybody had sent a key."""
    assert surrounding_names("") > 0


def test_the_circle_is_made_of_keys_that_come_after_the_name(trio: Trio) -> None:
    """The same name, asked twice: other keys, another hash. And a server that says another hash is refused."""
    first, header = trio.relayed()
    first.shares(pack(header, {}), trio.peers())
    second, again = trio.relayed()
    second.shares(pack(again, {}), trio.peers())
    assert first._graph != second._graph
    circles = [first.terms.circle(range(100), one._graph).order for one in (first, second)]
    assert circles[0] != circles[1]
    for wrong, reason in (
        (None, "does not say what keys its circle is made of"),
        (header["digests"][:2], "does not have a digest of every member's keys"),
        ([*again["digests"][:1], *header["digests"][1:]], "was not made of this member's keys"),
    ):
        member, own = trio.relayed()
        with pytest.raises(BadMessage, match=reason):
            member.shares(pack({**own, "digests": wrong}, {}), trio.peers())
    member, own = trio.relayed()
    lied = [*own["digests"][:2], header["digests"][2]]
    with pytest.raises(BadMessage, match="member 2 are not those that the circle was made of"):
        member.shares(pack({**own, "digests": lied}, {}), trio.peers())
