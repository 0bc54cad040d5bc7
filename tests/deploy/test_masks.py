"""Secure sums between nodes: two exchanges a round, signed keys, and what happens when the plan does not hold."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.town import Town, settings
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.job import ReceivedRecorder
from fedrec.deploy.link import Limits
from fedrec.deploy.local_link import LocalLink
from fedrec.deploy.node import NodeHost
from fedrec.deploy.rehearsal import rehearse
from fedrec.deploy.server import Server
from fedrec.experiment.config import make_config
from fedrec.experiment.driver import execute
from fedrec.experiment.folder import RunFolder
from fedrec.federation.codec import pack, unpack
from fedrec_studies.trials.secrecy import GONE, NODES, ROUNDS, compare_sums, correlate, true_updates


def secure_town(folder: Path, **more: Any) -> Town:
    return Town(settings("fedmf", **more), folder, secure=True, minimum=2)


def instead(town: Town, node: int, change: Callable[[dict[str, Any], list[bytes]], bytes]) -> None:
    """Let a node get another message than the one that was sent."""
    handle = town.hosts[node]
    town.hosts[node] = lambda message: handle(change(*unframe(message)))


def same_test(town: Town, found: dict[str, Any]) -> bool:
    wanted = execute(town.config).summary["test"]
    return np.allclose(list(found["test"].values()), [wanted[name] for name in found["test"]], rtol=1e-5)


def test_a_round_is_two_exchanges(tmp_path: Path) -> None:
    """Two more begin the first sum, and two end the run: the last score, and the test."""
    town = secure_town(tmp_path)
    found = town.server().run()
    assert not town.told("refused")
    assert found["deployment"]["exchanges"] == 2 + 2 * 3 + 2
    assert same_test(town, found)
    for path in town.states[0].glob("sum-*"):  # no secret of a finished sum is kept
        assert unframe(path.read_bytes())[1][0] == b""


def test_participation_changes_from_round_to_round(tmp_path: Path) -> None:
    town = secure_town(tmp_path, participation=0.4)
    found = town.server().run()
    assert not town.told("refused")
    assert found["deployment"]["exchanges"] == 2 + 2 * 3 + 2
    assert same_test(town, found)


def test_a_server_that_puts_its_own_key_in_a_members_place_is_refused(tmp_path: Path) -> None:
    """It cannot sign; the node stays out of that sum, and of every other that is tampered with."""
    town = secure_town(tmp_path)

    def tampering(header: dict[str, Any], parts: list[bytes]) -> bytes:
        if "shares" in header.get("phases", ()):
            at = header["phases"].index("shares")
            words = unpack(parts[at])[0]
            words["keys"]["1"]["mask"] = words["keys"]["2"]["mask"]
            parts[at] = pack(words, {})
        return frame(header, parts)

    instead(town, 10, tampering)
    found = town.server().run()
    reasons = {one["reason"] for one in town.told("refused")}
    assert reasons == {"the keys of member 1 are not those that it signed"}
    assert found["deployment"]["lost"] > 0
    assert found["rounds_run"] == 3


def test_a_node_that_sends_wrong_shares_is_named_and_left_out(tmp_path: Path) -> None:
    """Once it ended every sum that it was in; now it costs nothing but itself."""
    town = Town(settings("fedmf"), tmp_path, nodes=5, secure=True, minimum=2)
    handle = town.hosts[12]

    def lying(message: bytes) -> bytes:
        header, parts = unframe(handle(message))
        for k, phase in enumerate(unframe(message)[0].get("phases", ())):
            if phase == "unmask":
                words = unpack(parts[k])[0]
                zeros = base64.b64encode(bytes(66)).decode()
                parts[k] = pack({**words, "shares": dict.fromkeys(words["shares"], zeros)}, {})
        return frame(header, parts)

    town.hosts[12] = lying
    found = town.server().run()
    told = {one["reason"] for one in town.told("refused")}
    assert len(told) == 1
    assert told.pop().endswith("; it is left out from now on")
    assert found["rounds_run"] == 3
    assert town.told("given up") == []


def test_somebody_new_is_in_the_next_sum(tmp_path: Path) -> None:
    town = secure_town(tmp_path)
    town.limits = Limits(**{**vars(town.limits), "first": 2})
    late, handle = town.hosts.pop(12), town.hosts[10]

    def opening(message: bytes) -> bytes:
        if unframe(message)[0].get("turn") == 1:
            town.hosts[12] = late
        return handle(message)

    town.hosts[10] = opening
    found = town.server().run()
    assert not town.told("refused")
    assert found["deployment"]["exchanges"] == 2 + 2 * 3 + 2 + 2  # the sum of the last round was begun anew
    records = [line for line in town.run_folder.metrics.read_text().splitlines() if '"nodes": 3' in line]
    assert len(records) == 1


class Stopped(Exception):
    """The server's process is killed."""


@pytest.mark.parametrize("after", ["turn", "secure"])
def test_a_server_that_is_killed_goes_on_with_the_sum(after: str, tmp_path: Path) -> None:
    town = secure_town(tmp_path)
    handle, seen = town.hosts[12], [0]

    def dying(message: bytes) -> bytes:
        reply, header = handle(message), unframe(message)[0]
        seen[0] += header.get("turn") == 1
        if seen[0] and header["kind"] == after:
            raise Stopped
        return reply

    town.hosts[12] = dying
    with pytest.raises(Stopped):
        town.server().run()
    town.hosts[12] = handle
    found = town.server().run()
    assert not town.told("refused")
    assert same_test(town, found)


def test_what_the_server_received_tells_the_sum_and_nothing_else(tmp_path: Path) -> None:
    """As `fedrec deploy secrecy` looks at it, here without processes; messages in the clear are told apart."""
    config = make_config(
        {"method": "fedmf", "data": "synthetic@users=40+items=200+seed=2", "rounds": ROUNDS, "params": {"dim": 128}}
    )
    truth = true_updates(rehearse(config, secure=True), tmp_path / "known")
    messages = {}
    for name, secure in (("masked", True), ("open", False)):
        rehearsal, folder = rehearse(config, secure=secure), tmp_path / name
        hosts = {k: NodeHost(state).handle for k, state in enumerate(rehearsal.deal(folder, NODES))}

        def gone(message: bytes, handle: Any = hosts[GONE]) -> bytes:
            if unframe(message)[0].get("turn") == ROUNDS - 1:
                raise TimeoutError
            return handle(message)

        hosts[GONE] = gone
        (folder / "received").mkdir()
        link = ReceivedRecorder(LocalLink(hosts), folder / "received")
        out = RunFolder.create(folder / "run", config.to_dict())
        Server(rehearsal.terms, out, link, Limits(60, 2, NODES), lambda *_: None).run()
        messages[name] = [path.read_bytes() for path in sorted((folder / "received").iterdir())]
    assert correlate(messages["open"], truth)["correlation"] > 0.99
    found = correlate(messages["masked"], truth)
    assert found["compared"] > 50
    assert found["correlation"] < 0.05
    sums = compare_sums(messages["masked"], truth)
    assert 0 < sums["error"] <= sums["bound"]
