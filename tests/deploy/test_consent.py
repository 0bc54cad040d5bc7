"""A node's owner agrees to some federations and not to others; what goes beyond is refused in one line at both ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.town import Town, settings
from fedrec.deploy.audit_log import AuditLog
from fedrec.deploy.consent import Consent, describe_federation
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.node import NodeHost, Settings
from fedrec.deploy.services import make_terms
from fedrec.errors import FedrecError
from fedrec.experiment.config import make_config


def own_town(folder: Path, consent: Consent, secure: bool = False, members: int = 0, **more: Any) -> Town:
    """A federation that is no rehearsal, of nodes whose owners agree to this."""
    town = Town(settings("fedmf", **more), folder, secure=secure, minimum=3)
    terms = replace(town.rehearsal.terms, seeded=False, members=members)
    town.rehearsal = replace(town.rehearsal, terms=terms)
    for state in town.states:
        known = Settings.read(state)
        replace(known, seeded=False, own=replace(known.own, places=None), consent=consent).write(state)
    town.hosts = {10 + k: NodeHost(state).handle for k, state in enumerate(town.states)}
    return town


def join(town: Town) -> str:
    """Let the first node be greeted; the words of its refusal, or none."""
    hello = frame({"kind": "hello"}, [town.rehearsal.terms.encode()])
    return str(unframe(town.hosts[10](hello))[0].get("error", ""))


@pytest.mark.parametrize(
    ("consent", "proposed", "reason"),
    [
        (Consent(), {}, "updates would not be summed up securely"),
        (Consent(), {"secure": True, "members": 3}, "secure sums may be of 3 nodes; agreed on: at least 5"),
        (Consent.to_anything(), {}, ""),
        (Consent(members=3), {"secure": True, "members": 3}, ""),
        (replace(Consent.to_anything(), methods=("fedavg",)), {}, "the method is fedmf; agreed on: fedavg"),
        (replace(Consent.to_anything(), privacy=("clip",)), {}, "uploads would not pass 'clip'"),
        (replace(Consent.to_anything(), privacy=("clip",)), {"privacy": "clip=1"}, ""),
        (replace(Consent.to_anything(), rounds=2), {}, "it is to last 3 rounds; agreed on: at most 2"),
        (replace(Consent.to_anything(), megabytes=1e-6), {}, "agreed on: at most 1e-06 MB"),
        (Consent(secure_sums="required"), {}, "updates would not be summed up securely"),
    ],
)
def test_what_was_not_agreed_to_is_refused(
    consent: Consent, proposed: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    town = own_town(tmp_path, consent, **proposed)
    found = join(town)
    assert reason in found
    assert found.startswith("the owner of this node does not agree" if reason else "")
    refused = [line["refused"] for line in AuditLog(town.states[0]).read() if "refused" in line]
    assert refused == ([found] if found else [])


def test_a_server_once_chose_alone(tmp_path: Path) -> None:
    """With owners who agree to anything, as all did, a federation runs in the open; with the defaults it cannot."""
    town = own_town(tmp_path / "before", Consent.to_anything())
    assert town.server().run()["rounds_run"] == 3
    town = own_town(tmp_path / "now", Consent())
    with pytest.raises(FedrecError, match="0 of at least 3 nodes have joined"):
        town.server().run()
    assert {one["reason"] for one in town.told("refused")} == {join(town)}


def test_fewer_members_than_agreed_never_get_an_update(tmp_path: Path) -> None:
    """A server that names five members in its terms and begins a sum of two."""
    town = own_town(tmp_path, Consent(), secure=True, members=5)
    server = town.server()
    assert server.turns.sums is not None
    server.turns.sums.minimum = 2
    with pytest.raises(FedrecError, match="fewer than 3 nodes"):
        server.run()
    reasons = " ".join(one["reason"] for one in town.told("refused"))
    assert "takes part in sums of at least 5" in reasons


def test_figures_of_few_users_are_not_reported(tmp_path: Path) -> None:
    town = own_town(tmp_path, replace(Consent.to_anything(), users=1000))
    with pytest.raises(FedrecError, match="a node with few users"):
        town.server().run()


def test_the_owner_is_told_and_asked(tmp_path: Path) -> None:
    town = own_town(tmp_path, Consent.to_anything())
    shown: list[list[str]] = []

    def decline(lines: list[str]) -> bool:
        shown.append(lines)
        return False

    town.hosts[10] = NodeHost(town.states[0], ask=decline).handle
    assert join(town) == "the owner of this node has declined to join"
    assert not (town.states[0] / "terms.json").exists()
    assert "It sees this node's own update of every round." in " ".join(shown[0])
    town.hosts[10] = NodeHost(town.states[0], ask=lambda lines: True).handle
    assert not join(town)
    town.hosts[10] = NodeHost(town.states[0], ask=decline).handle
    assert not join(town)  # who has joined is not asked again
    assert len(shown) == 1


def test_a_sum_that_gives_histories_away_is_said_to(tmp_path: Path) -> None:
    town = Town(settings("fedgram"), tmp_path, secure=True)
    said = " ".join(describe_federation(town.rehearsal.terms, {"clients": 1, "users": 1, "interactions": 2}))
    assert "With three members it gives away all histories" in said


def test_sums_are_secure_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    items = tmp_path / "items.csv"
    items.write_text("item\n" + "".join(f"{k}\n" for k in range(40)))
    for method, secure, members in (("fedmf", True, 5), ("fedca", False, 0)):
        terms, _ = make_terms(make_config({"method": method, "data": "x"}), items, 9)
        assert (terms.secure, terms.members) == (secure, members)
    terms, _ = make_terms(make_config({"method": "fedmf", "data": "x"}), items, 9, False)
    assert (terms.secure, terms.members) == (False, 0)


def test_a_file_of_consent(tmp_path: Path) -> None:
    path = tmp_path / "consent.toml"
    path.write_text('methods = ["fedmf"]\nmembers = 8\nprivacy = ["clip"]\nrounds = 20\nmegabytes = 100\n')
    read = Consent.read(path)
    assert read == Consent(("fedmf",), members=8, privacy=("clip",), rounds=20, megabytes=100)
    for wrong in ("member = 8", "members = 1", 'methods = "fedmf"', 'secure_sums = "no"', "megabytes = 0", "= 1"):
        path.write_text(wrong)
        with pytest.raises(FedrecError, match="cannot read the consent"):
            Consent.read(path)
