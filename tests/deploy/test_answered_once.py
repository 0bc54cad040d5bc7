"""A turn is answered once, whatever a server repeats and wherever a process is killed.

The attacks come first, against nodes that forget what they answered, as all did once; then against nodes as they are.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.town import Town, settings
from fedrec.data import atomic
from fedrec.deploy.answers import AnswerBook, Question
from fedrec.deploy.audit_log import AuditLog
from fedrec.deploy.consent import Consent
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.masks import Masks
from fedrec.deploy.node import NodeHost, Settings
from fedrec.deploy.server import SUMS, Server
from fedrec.deploy.turns import TurnRequest
from fedrec.experiment.folder import RunFolder
from fedrec.federation.exchange import Reply, Task
from fedrec.federation.secret import OwnSecret
from fedrec.federation.update import Update
from fedrec_studies.trials.secrecy import Overheard
from waiting import GENEROUS

SMALL = "synthetic@users=12+items=40+seed=1"


class Forgetful(AnswerBook):
    """The book of a node that starts a repeated turn where it started the first time, and answers it anew."""

    def recall(self, asked: Question) -> bytes | None:
        return None

    def record(self, asked: Question, reply: bytes, changes: Mapping[str, bytes]) -> None:
        for name, content in changes.items():
            self._write(name, content)


def forget(town: Town) -> dict[int, NodeHost]:
    hosts = {number: NodeHost(state) for number, state in zip(town.hosts, town.states, strict=True)}
    for host in hosts.values():
        host.answers = Forgetful(host.state.path)
    town.hosts = {number: host.handle for number, host in hosts.items()}
    return hosts


def first_turn(server: Server) -> Update:
    """Let a server do one turn and return the sum that it learns."""
    server.registry.require(server.limits.minimum)
    server.turns.run(TurnRequest(0, -1, lambda group: [server._task(group, None, train=True)]))
    return server.coordinator._update


# -- attack 2: the same turn without one member --


def subtract_member(town: Town) -> Update:
    """Kill a server after a turn, lose what it wrote of it, and start it again with one node blocked."""
    whole = first_turn(town.server())
    shutil.rmtree(town.run_folder.path / SUMS)
    town.hosts.pop(12)
    less = first_turn(town.server())
    tables = {name: whole.totals[name] - less.totals[name] for name in less.totals}
    return Update(tables, {}, frozenset(), {}, np.setdiff1d(whole.clients, less.clients))


def test_a_repeated_turn_unmasked_the_member_that_was_left_out(tmp_path: Path) -> None:
    town = Town(settings("fedmf"), tmp_path, secure=True, minimum=2)
    hosts, seen = forget(town), dict[tuple[int, int], Update]()
    hosts[12].masks = Overheard(hosts[12].state, node=2, found=seen)
    found = subtract_member(town)
    for name, table in seen[0, 2].totals.items():
        assert torch.allclose(found.totals[name], table.double(), atol=1e-6)
    assert np.array_equal(found.clients, seen[0, 2].clients)


def test_a_turn_is_not_repeated_for_other_members(tmp_path: Path) -> None:
    """The refusal stands in what the server is told and in the nodes' own logs."""
    town = Town(settings("fedmf"), tmp_path, secure=True, minimum=2)
    found = subtract_member(town)
    assert not found.totals  # the second sum was never made
    said = [one["reason"] for one in town.told("refused") if "answered already" in one["reason"]]
    assert said
    assert all("turn 0 was answered already, for the members 0, 1, 2, not 0, 1" in reason for reason in said)
    assert town.told("given up") == [{"round": 0}]
    for state in town.states[:2]:
        refused = [line for line in AuditLog(state).read() if "refused" in line]
        assert {line["turn"] for line in refused} == {0}
        assert all("for the members" in line["refused"] for line in refused)


# -- attack 3: the same turn after another broadcast --


def own_town(folder: Path) -> Town:
    """A federation whose nodes draw from secrets of their own, with noise on every upload."""
    town = Town(settings("fedmf", privacy="clip=1,gaussian=5", data=SMALL), folder, nodes=1)
    for state in town.states:
        known = Settings.read(state)
        own = replace(known.own, places=None)
        replace(known, seeded=False, own=own, consent=Consent.to_anything()).write(state)
    town.rehearsal = replace(town.rehearsal, terms=replace(town.rehearsal.terms, seeded=False))
    town.hosts = {10 + k: NodeHost(state).handle for k, state in enumerate(town.states)}
    return town


def upload_to(town: Town, shift: float) -> torch.Tensor | str:
    """Ask for the first turn with a broadcast that is shifted a little; the noised sum, or the words of a refusal."""
    server = town.server()
    server.registry.require(1)
    server.coordinator.begin(0)
    task = server._task(0, None, train=True)
    assert task.train is not None
    for _, down in task.train.parts:
        for value in down.shared.values():
            value += shift
    header = {
        "kind": "turn",
        "turn": 0,
        "best": -1,
        "restore": False,
        "terms": server.terms.identity,
        "start": 0,
        "member": 0,
        "masked": 0,
        "next": 0,
    }
    found, parts = unframe(town.hosts[10](frame(header, [task.encode()])))
    if "error" in found:
        return str(found["error"])
    return Reply.decode(parts[0], torch.device("cpu")).update.totals["item"]


class SameNoise(OwnSecret):
    """Noise that depends on the round alone, as it did once."""

    def for_task(self, task: str, counter: int) -> OwnSecret:
        return self


def difference(town: Town) -> float:
    one, other = upload_to(town, 0.0), upload_to(town, 1e-3)
    assert isinstance(one, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    return float((one - other).std())


def test_noise_cancelled_between_two_answers_to_one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = own_town(tmp_path)
    forget(town)
    with monkeypatch.context() as patch:
        patch.setattr("fedrec.deploy.node.OwnSecret", SameNoise)
        assert difference(town) < 0.1  # of noise with standard deviation 5 for each of twelve clients
    assert difference(town) > 15  # the noise belongs to the task


def test_a_turn_is_not_repeated_after_another_broadcast(tmp_path: Path) -> None:
    town = own_town(tmp_path)
    first = upload_to(town, 0.0)
    assert isinstance(first, torch.Tensor)
    assert upload_to(town, 1e-3) == "turn 0 was answered already, for another task; a node answers a turn once"
    again = upload_to(town, 0.0)
    assert isinstance(again, torch.Tensor)
    assert torch.equal(first, again)


# -- every repetition --


@pytest.mark.parametrize("secure", [False, True])
def test_every_pair_of_repetitions(secure: bool, tmp_path: Path) -> None:
    """After every message, each one before it again: the first reply, or a refusal. So with each message changed."""
    town = Town(settings("fedmf", rounds=2, data=SMALL), tmp_path, secure=secure, minimum=2)
    handle, past = town.hosts[10], list[tuple[bytes, bytes]]()
    tally = {"same": 0, "refused": 0}

    def repeating(message: bytes) -> bytes:
        reply = handle(message)
        past.append((message, reply))
        for before, answer in past:
            _require_once(handle(before), before, answer, tally)
            for changed in _variants(before):
                _require_refused(handle(changed), changed, tally)
        return reply

    town.hosts[10] = repeating
    found = town.server().run()
    assert not town.told("refused")
    assert found["rounds_run"] == 2
    assert tally["same"] > 8
    assert tally["refused"] > 10


def _require_once(again: bytes, message: bytes, answer: bytes, tally: dict[str, int]) -> None:
    if unframe(message)[0]["kind"] == "hello":
        return
    header, parts = unframe(again)
    refused = "error" in header or header.get("errors")
    tally["refused" if refused else "same"] += 1
    assert refused or (header.get("ledger"), parts) == (unframe(answer)[0].get("ledger"), unframe(answer)[1])


def _variants(message: bytes) -> Iterator[bytes]:
    header, parts = unframe(message)
    if header["kind"] != "turn":
        return
    yield frame({**header, "best": header["best"] + 1}, parts)
    yield frame({**header, "restore": not header["restore"]}, parts)
    yield frame({**header, "member": header["member"] + 1}, parts)
    task = Task.decode(parts[0], torch.device("cpu"))
    yield frame(header, [replace(task, keep=True).encode(), *parts[1:]])
    if header["masked"]:
        yield frame({**header, "masked": 0}, [part for k, part in enumerate(parts) if k != 1])


def _require_refused(reply: bytes, message: bytes, tally: dict[str, int]) -> None:
    assert "answered" in unframe(reply)[0]["error"], unframe(message)[0]
    tally["refused"] += 1


# -- killed between any two steps --


NEVER = 1 << 30


class Killed(BaseException):
    """The process is gone, at once."""


@contextmanager
def killed_at(step: int, folder: Path) -> Iterator[list[Path]]:
    """Count the files below a folder that are put in place; before or after the one of this number, it is over."""
    real, seen = os.replace, list[Path]()

    def replacing(source: Any, target: Any) -> None:
        if not Path(target).is_relative_to(folder):
            real(source, target)
            return
        seen.append(Path(target))
        if len(seen) == step // 2 + 1 and step % 2 == 0:
            raise Killed
        real(source, target)
        if len(seen) == step // 2 + 1 and step % 2 == 1:
            raise Killed

    atomic.os.replace = replacing  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        atomic.os.replace = real  # type: ignore[attr-defined]


def small_town(folder: Path, secure: bool) -> Town:
    """All nodes must take part, so that a turn which one of them missed is tried again."""
    return Town(settings("fedmf", rounds=2, data=SMALL), folder, nodes=2, secure=secure, minimum=2, wait=GENEROUS)


def outcome(town: Town) -> tuple[dict[str, float], int]:
    summary = json.loads((town.run_folder.path / "summary.json").read_text())
    return summary["test"], summary["deployment"]["lost"]


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_node_that_is_killed_between_any_two_steps(secure: bool, tmp_path: Path) -> None:
    """In all that happens between its first reply and that to the turn after the next."""
    calm = small_town(tmp_path / "calm", secure)
    with killed_at(NEVER, calm.states[0]) as seen:
        calm.server().run()
    first, last = ([path.name for path in seen].index(f"answer-{turn:06d}") for turn in (0, 2))
    for step in range(2 * first, 2 * last):
        town = small_town(tmp_path / str(step), secure)
        replies: dict[int, set[bytes]] = {}

        def handle(message: bytes, town: Town = town, replies: dict[int, set[bytes]] = replies) -> bytes:
            try:
                reply = NodeHost(town.states[0]).handle(message)  # a process for each message
            except Killed:
                raise TimeoutError from None
            header = unframe(message)[0]
            if header["kind"] == "turn":
                replies.setdefault(header["turn"], set()).add(reply)
            return reply

        town.hosts[10] = handle
        with killed_at(step, town.states[0]) as seen:
            town.server().run()
        assert outcome(town) == outcome(calm), seen
        assert all(len(different) == 1 for different in replies.values())
        shutil.rmtree(tmp_path / str(step))
    assert last > first + 5


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_server_that_is_killed_between_any_two_steps(secure: bool, tmp_path: Path) -> None:
    """Before and after each message and each file: the one that goes on ends as if it had never been stopped."""
    calm = small_town(tmp_path / "calm", secure)
    calm.server().run()
    for step in itertools.count():
        town = small_town(tmp_path / str(step), secure)
        count = itertools.count()
        for number, handle in list(town.hosts.items()):

            def killing(message: bytes, handle: Any = handle, step: int = step, count: Any = count) -> bytes:
                if next(count) == step:
                    raise Killed
                reply: bytes = handle(message)
                if next(count) == step:
                    raise Killed
                return reply

            town.hosts[number] = killing
        try:
            town.server().run()
            break
        except Killed:
            town.server().run()
        assert not town.told("refused"), (step, town.told("refused"))
        assert outcome(town) == outcome(calm)
        shutil.rmtree(tmp_path / str(step))
    assert step >= 20


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_server_that_is_killed_between_any_two_files(secure: bool, tmp_path: Path) -> None:
    calm = small_town(tmp_path / "calm", secure)
    calm.server().run()
    for step in itertools.count():
        town = small_town(tmp_path / str(step), secure)
        with killed_at(step, town.run_folder.path) as seen:
            try:
                town.server().run()
            except Killed:
                pass
            else:
                break
        Town.server(town).run()
        assert not town.told("refused"), (seen, town.told("refused"))
        assert outcome(town) == outcome(calm), seen
        shutil.rmtree(tmp_path / str(step))
    assert step > 4


def test_a_finished_member_keeps_no_secret(tmp_path: Path) -> None:
    town = small_town(tmp_path, True)
    town.server().run()
    sums = [path for state in town.states for path in state.glob("sum-*")]
    assert sums
    assert all(unframe(path.read_bytes())[1][0] == b"" for path in sums)
    assert RunFolder(town.run_folder.path).summary.exists()
    assert isinstance(NodeHost(town.states[0]).masks, Masks)
