"""What goes wrong in a federation, in one process: nothing is lost but the current round, and it is said why."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.town import Town, settings
from fedrec.deploy.consent import Consent
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.node import NodeHost, Settings
from fedrec.deploy.node_recommender import recommend
from fedrec.deploy.shard import NodeData
from fedrec.deploy.state import TURN, StateFolder
from fedrec.errors import FedrecError
from fedrec_studies.trials.faults import AT, POISON, in_process
from waiting import GENEROUS

EACH = 9  # clients of a node
Change = Callable[[Any], Any]


def town_of(tmp_path: Path, rounds: int = 3, **limits: Any) -> Town:
    return Town(settings("fedmf", rounds=rounds), tmp_path, **limits)


def untouched(tmp_path: Path, rounds: int = 3) -> dict[str, Any]:
    """What comes out where nothing goes wrong."""
    return town_of(tmp_path / "calm", rounds).server().run()


class Stopped(Exception):
    """The server's process is killed."""


def killed_at(town: Town, turn: int) -> None:
    """Run until the replies of a turn are in, and die there."""
    handle = town.hosts[12]

    def last(message: bytes) -> bytes:
        reply = handle(message)
        if unframe(message)[0].get("turn") == turn:
            raise Stopped
        return reply

    town.hosts[12] = last
    with pytest.raises(Stopped):
        town.server().run()
    town.hosts[12] = handle


@pytest.mark.parametrize("turn", [0, 1, 3, 4])
def test_a_server_that_is_killed_goes_on_as_if_it_never_was(turn: int, tmp_path: Path) -> None:
    """Nodes that had done the turn do it again from where they were: the end is the same to the last bit."""
    town = town_of(tmp_path / "torn")
    killed_at(town, turn)
    found, wanted = town.server().run(), untouched(tmp_path)
    assert not town.told("refused")
    assert found["test"] == wanted["test"]
    assert found["valid"] == wanted["valid"]
    records = (town.run_folder.metrics.read_text().splitlines(), (tmp_path / "calm/run/metrics.jsonl").read_text())
    assert len(records[0]) == len(records[1].splitlines()) == 3


def test_a_node_that_is_gone_in_a_round_costs_its_own_upload(tmp_path: Path) -> None:
    town = town_of(tmp_path)
    handle = town.hosts[11]

    def away(message: bytes) -> bytes:
        if unframe(message)[0].get("turn") == 1:
            raise TimeoutError
        return handle(message)

    town.hosts[11] = away
    summary = town.server().run()
    about = summary["deployment"]
    assert about["lost"] == EACH
    assert about["missed"] == 1  # it says so itself when it is back
    assert [one["reason"] for one in town.told("refused")] == ["no reply within 600 s"]
    assert summary["rounds_run"] == 3


def changed(town: Town, node: int, change: Change, turn: int) -> None:
    """Let a node send something else in one turn."""
    handle = town.hosts[node]

    def tampered(message: bytes) -> bytes:
        reply = handle(message)
        return change(reply) if unframe(message)[0].get("turn") == turn else reply

    town.hosts[node] = tampered


REASONS = dict(
    zip(
        POISON,
        (
            "not finite",
            "huge numbers",
            "the shape",
            "float64",
            "are allowed",
            "a reply to turn 1",
            "another vocabulary",
            "not a deployment message",
            "announced sizes",
            "cannot be 1000",
            "it announced",
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("fault", POISON)
def test_a_bad_upload_is_refused_by_name_and_never_averaged_in(fault: str, tmp_path: Path) -> None:
    """The run ends as if that node had sent nothing in that turn."""
    town, without = town_of(tmp_path / "poisoned"), town_of(tmp_path / "without")
    changed(town, 10, POISON[fault], AT)

    def silent(message: bytes) -> bytes:
        raise TimeoutError

    changed(without, 10, silent, AT)
    found, wanted = town.server().run(), without.server().run()
    (refused,) = town.told("refused")
    assert REASONS[fault] in refused["reason"]
    assert sum(found["deployment"]["rejected"].values()) == 1
    assert found["test"] == wanted["test"]


def test_a_second_reply_in_a_turn_is_refused(tmp_path: Path) -> None:
    town = town_of(tmp_path)
    server = town.server()
    exchange = server.registry.link.exchange

    def twice(nodes: Any, make: Any, deadline: float) -> Any:
        for node, reply in exchange(nodes, make, deadline):
            yield node, reply
            if isinstance(reply, bytes) and unframe(reply)[0].get("turn") == 1 and node == 10:
                yield node, reply

    server.registry.link.exchange = twice  # type: ignore[method-assign]
    found = server.run()
    assert [one["reason"] for one in town.told("refused")] == ["a second reply in the same turn"]
    assert found["test"] == untouched(tmp_path)["test"]


def test_a_corrupt_state_file_costs_one_turn(tmp_path: Path) -> None:
    town = town_of(tmp_path)
    state = StateFolder(town.states[0])
    handle = town.hosts[10]

    def damaging(message: bytes) -> bytes:
        if unframe(message)[0].get("turn") == 2:
            path = state.file(TURN, 1)
            path.write_bytes(path.read_bytes()[:-3] + b"abc")
        return handle(message)

    town.hosts[10] = damaging
    found = town.server().run()
    assert found["deployment"]["missed"] == 1
    assert "is damaged" in town.told("note")[0]["note"]
    assert not town.told("refused")


def test_a_full_disk_is_said_and_costs_that_nodes_rounds_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = town_of(tmp_path)
    save, state = StateFolder.save, town.states[1]

    def full(self: StateFolder, turn: int, *rest: Any) -> None:
        if self.path == state and turn == 1:
            raise OSError(28, "No space left on device", str(self.file(TURN, turn)))
        save(self, turn, *rest)

    monkeypatch.setattr(StateFolder, "save", full)
    found = town.server().run()
    assert "No space left on device" in town.told("refused")[0]["reason"]
    assert found["deployment"]["lost"] == EACH
    assert found["deployment"]["missed"] == 1


def test_too_few_nodes_and_the_round_is_said_again(tmp_path: Path) -> None:
    town = town_of(tmp_path / "thin", minimum=3)
    handle, once = town.hosts[11], [True]

    def shy(message: bytes) -> bytes:
        if unframe(message)[0].get("turn") == 1 and once:
            once.clear()
            raise TimeoutError
        return handle(message)

    town.hosts[11] = shy
    found = town.server().run()
    assert town.told("repeated") == [{"turn": 1, "nodes": 2, "minimum": 3}]
    assert found["test"] == untouched(tmp_path)["test"]  # nothing of the first try counts


def test_late_joiners_come_in_while_numbers_last(tmp_path: Path) -> None:
    town = town_of(tmp_path, first=2)
    late = {12: town.hosts.pop(12)}
    handle = town.hosts[10]

    def opening(message: bytes) -> bytes:
        if unframe(message)[0].get("turn") == 1:
            town.hosts |= late
        return handle(message)

    town.hosts[10] = opening
    found = town.server().run()
    assert found["deployment"]["nodes"] == 3
    assert found["deployment"]["lost"] == 0  # numbers that wait for somebody are no lost uploads
    assert len(town.told("joined")) == 3


def real_node(town: Town, folder: Path, rows: str, **more: Any) -> NodeHost:
    """A node with a file of its own, and a secret of its own."""
    folder.mkdir()
    (folder / "mine.csv").write_text(rows, encoding="utf-8")
    return NodeHost(folder / "state", Settings(NodeData(folder / "mine.csv"), consent=Consent.to_anything(), **more))


ROWS = "user,item,timestamp\n" + "".join(
    f"{name},{item},{item}\n" for name in ("ann", "bob") for item in range(len(name), 25)
)


def real_town(tmp_path: Path, clients: int = 4) -> Town:
    from dataclasses import replace

    town = town_of(tmp_path / "real", 2, first=2)
    terms = replace(town.rehearsal.terms, clients=clients, seeded=False, text_users=True)
    town.rehearsal = replace(town.rehearsal, terms=terms)
    town.hosts = {k: real_node(town, tmp_path / f"n{k}", ROWS).handle for k in (1, 2)}
    return town


def test_nodes_with_their_own_files_and_secrets(tmp_path: Path) -> None:
    """They get numbers from the server, never send an id, and make lists by themselves."""
    town = real_town(tmp_path)
    messages: list[bytes] = []
    for number, handle in list(town.hosts.items()):
        town.hosts[number] = lambda message, handle=handle: (messages.append(handle(message)), messages[-1])[1]  # type: ignore[misc]
    found = town.server().run()
    assert found["deployment"]["clients"] == 4
    assert not [message for message in messages if b"ann" in message or b"bob" in message]
    lists = [recommend_of(tmp_path / f"n{k}" / "state", tmp_path / f"n{k}" / "mine.csv") for k in (1, 2)]
    assert all(len(one) == 5 for one in lists)
    assert not {int(rec.item) for rec in lists[0]} & set(range(3, 25))  # nothing that ann has met
    secrets = {(tmp_path / f"n{k}" / "state" / "secret").read_bytes() for k in (1, 2)}
    assert len(secrets) == 2
    assert lists[0][0].score != lists[1][0].score  # the same data, other draws


def recommend_of(state: Path, data: Path) -> Any:
    Settings(NodeData(data), consent=Consent.to_anything()).write(state)
    return recommend(state, "ann", 5)


def test_no_room_for_more_clients_than_were_reserved(tmp_path: Path) -> None:
    town = real_town(tmp_path, clients=3)
    town.limits = type(town.limits)(**{**vars(town.limits), "first": 1})
    town.server().run()
    assert "no room for 2 more clients: 3 numbers were reserved and 2 are taken" in town.told("refused")[0]["reason"]


def test_unknown_items_are_reported_and_left_out(tmp_path: Path) -> None:
    town = real_town(tmp_path, clients=9)
    town.hosts = {3: real_node(town, tmp_path / "n3", ROWS + "ann,strange,99\n").handle}
    town.limits = type(town.limits)(**{**vars(town.limits), "first": 1})
    found = town.server().run()
    assert town.told("joined")[0]["unknown"] == {"rows": 1, "items": 1}
    assert found["deployment"]["unknown_rows"] == 1


def test_a_node_keeps_to_the_vocabulary_that_was_agreed_on(tmp_path: Path) -> None:
    town = real_town(tmp_path)
    agreed = tmp_path / "agreed.csv"
    agreed.write_text("item\n" + "".join(f"{k}\n" for k in range(79)), encoding="utf-8")
    town.hosts[3] = real_node(town, tmp_path / "n3", ROWS, items=agreed).handle
    town.server().run()
    assert "is not the one that was agreed on" in town.told("refused")[0]["reason"]


def test_a_copied_state_folder_is_refused(tmp_path: Path) -> None:
    town = real_town(tmp_path, clients=9)
    town.server().run()
    shutil.copytree(tmp_path / "n1", tmp_path / "n3")
    copied = Settings(NodeData(tmp_path / "n3" / "mine.csv"), consent=Consent.to_anything())
    town.hosts[3] = NodeHost(tmp_path / "n3" / "state", copied).handle
    (town.run_folder.path / "summary.json").unlink()
    town.server().run()
    assert "in use by another connected node" in town.told("refused")[0]["reason"]


def test_a_node_refuses_a_rehearsal_unless_it_is_one(tmp_path: Path) -> None:
    town = town_of(tmp_path / "r", first=1)
    town.hosts = {1: real_node(town, tmp_path / "n1", ROWS).handle}
    with pytest.raises(FedrecError, match="0 of at least 1 nodes"):
        town.server().run()
    assert "reproducible random draws" in town.told("refused")[0]["reason"]


def test_two_processes_cannot_share_a_state_folder(tmp_path: Path) -> None:
    town = town_of(tmp_path)
    with StateFolder(town.states[0]).lock(), pytest.raises(FedrecError, match="2 of at least 3"):
        town.server().run()
    assert "in use by another process" in town.told("refused")[0]["reason"]


def test_an_update_in_the_clear_is_neither_sent_nor_taken(tmp_path: Path) -> None:
    """Where masks were agreed on, a server that asks without them gets nothing."""
    town = Town(settings("fedmf"), tmp_path, secure=True, minimum=2)

    def curious(message: bytes) -> bytes:
        header, parts = unframe(message)
        if header["kind"] == "turn" and header["masked"]:
            message = frame({**header, "masked": 0, "next": 0}, parts[:1])
        return handle(message)

    handle = town.hosts[10]
    town.hosts[10] = curious
    town.server().run()
    assert "an unmasked update" in town.told("refused")[0]["reason"]


def test_a_node_that_drops_out_of_a_secure_sum_costs_its_own_upload(tmp_path: Path) -> None:
    masked, plain = (
        Town(settings("fedmf"), tmp_path / name, secure=name == "masked", minimum=2) for name in ("masked", "plain")
    )
    for town in (masked, plain):
        handle = town.hosts[11]

        def away(message: bytes, handle: Any = handle) -> bytes:
            if unframe(message)[0].get("turn") == 1:
                raise TimeoutError
            return handle(message)

        town.hosts[11] = away
    found, wanted = masked.server().run(), plain.server().run()
    assert found["deployment"]["lost"] == wanted["deployment"]["lost"] == EACH
    np.testing.assert_allclose(list(found["test"].values()), list(wanted["test"].values()), rtol=1e-5)


def test_a_file_that_changes_does_not_disturb_a_federation(tmp_path: Path) -> None:
    town = real_town(tmp_path)
    handle = town.hosts[1]

    def losing(message: bytes) -> bytes:
        if unframe(message)[0].get("turn") == 1:
            (tmp_path / "n1" / "mine.csv").write_text("user,item\neve,1\n", encoding="utf-8")
        return handle(message)

    town.hosts[1] = losing
    found = town.server().run()
    assert not town.told("refused")
    assert found["deployment"]["lost"] == 0


def test_every_fault_ends_with_a_tested_run_and_is_said() -> None:
    """As `fedrec deploy faults --quick` brings them about."""
    for outcome in in_process():
        assert outcome.happened.startswith("4 of 4 rounds, tested"), outcome
        assert outcome.said != "-", outcome
        assert "/tmp" not in outcome.said


def test_a_server_that_comes_back_waits_for_the_nodes_that_it_knew(tmp_path: Path) -> None:
    town = town_of(tmp_path / "torn", wait=GENEROUS)
    killed_at(town, 1)
    away = town.hosts.pop(11)
    handle = town.hosts[10]

    def hello(message: bytes) -> bytes:
        town.hosts[11] = away  # it is back a little later than the others
        return handle(message)

    town.hosts[10] = hello
    found = town.server().run()
    assert found["deployment"]["lost"] == 0
    assert found["test"] == pytest.approx(untouched(tmp_path)["test"], rel=1e-12)
