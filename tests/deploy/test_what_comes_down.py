"""What a server sends a node, and a node a server: only what the terms allow gets anywhere. Both ways are fuzzed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as how
from hypothesis import strategies as st

from deploy.town import Town, settings
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.node import NodeHost
from fedrec.deploy.task_checks import TaskChecks
from fedrec.deploy.terms import Terms
from fedrec.federation.codec import BadMessage
from fedrec.federation.contract import Down
from fedrec.federation.exchange import Reply, Step, Task

CPU = torch.device("cpu")
DATA = "synthetic@users=12+items=40+seed=1"


@cache
def recorded() -> tuple[Town, list[bytes], list[bytes]]:
    """A finished federation of one node, and all messages to it and from it."""
    town = Town(settings("fedmf", rounds=2, data=DATA), Path(mkdtemp(prefix="fedrec-fuzz-")), nodes=1)
    handle, down, up = town.hosts[10], list[bytes](), list[bytes]()

    def listening(message: bytes) -> bytes:
        down.append(message)
        up.append(handle(message))
        return up[-1]

    town.hosts[10] = listening
    town.server().run()
    return town, down, up


def checks() -> TaskChecks:
    town, _, _ = recorded()
    return TaskChecks(town.rehearsal.terms, np.arange(12))


def tasks_of(turn: int) -> list[Task]:
    _, parts = next(found for message in recorded()[1] if (found := unframe(message))[0].get("turn") == turn)
    return [Task.decode(part, CPU) for part in parts]


def trained(change: Callable[[Step], Step]) -> Callable[[Task], Task]:
    return lambda task: replace(task, train=change(task.train)) if task.train else task


def scored(change: Callable[[Step], Step]) -> Callable[[Task], Task]:
    return lambda task: replace(task, score=change(task.score)) if task.score else task


def with_table(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Step], Step]:
    def change(step: Step) -> Step:
        parts = [(clients, Down({"item": make(down.shared["item"])}, down.own)) for clients, down in step.parts]
        return replace(step, parts=parts)

    return change


def with_clients(clients: Any) -> Callable[[Step], Step]:
    return lambda step: replace(step, parts=[(np.array(clients), down) for _, down in step.parts])


HOSTILE: dict[str, Callable[[Task], Task]] = {
    "a table of one row": trained(with_table(lambda table: table[:1])),
    "a narrow table": trained(with_table(lambda table: table[:, :1])),
    "a wide table": trained(with_table(lambda table: table.repeat(1, 2))),
    "a table in double precision": trained(with_table(lambda table: table.double())),
    "a table of NaN": trained(with_table(lambda table: table * float("nan"))),
    "no table": trained(lambda step: replace(step, parts=[(clients, Down({}, {})) for clients, _ in step.parts])),
    "another table too": trained(
        lambda step: replace(step, parts=[(c, Down({**d.shared, "x": torch.zeros(1)}, d.own)) for c, d in step.parts])
    ),
    "a client of 10^15": trained(with_clients([10**15])),
    "a client below zero": trained(with_clients([-1])),
    "a client twice": trained(with_clients([0, 0])),
    "somebody else's client": trained(with_clients([12])),
    "clients that are no numbers": trained(with_clients([0.5])),
    "nobody": trained(lambda step: replace(step, parts=[])),
    "another round": trained(lambda step: replace(step, round=step.round + 1)),
    "uploads of others": trained(lambda step: replace(step, sending=np.array([99]))),
    "an impossible plan": trained(lambda step: replace(step, options={"fewest": 10**15})),
    "a table to be scored of one row": scored(with_table(lambda table: table[:1])),
    "one item to be ranked": scored(lambda step: replace(step, items=np.array([3]))),
    "the test during training": scored(lambda step: replace(step, options={**step.options, "part": "test"})),
    "a metric that was not agreed on": scored(lambda step: replace(step, options={**step.options, "metrics": ["auc"]})),
    "a score of a round to come": scored(lambda step: replace(step, round=step.round + 5)),
    "state to be moved": lambda task: replace(task, restore=True),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_task_is_refused(name: str) -> None:
    """Unchecked, a table of one row lets a kernel read out of bounds, and a client of 10^15 asks for 7 PiB."""
    tasks = tasks_of(1)
    checks().require(1, tasks)  # as it was sent
    with pytest.raises(BadMessage):
        checks().require(1, [HOSTILE[name](task) for task in tasks])


def test_at_most_one_evaluation_a_turn() -> None:
    """Attack: any number of tables, one item at 100 and zero elsewhere, and the metrics say whether it is held out."""
    tasks = tasks_of(1)
    question = replace(tasks[0], train=None)
    with pytest.raises(BadMessage, match="2 tasks in one turn"):
        checks().require(1, [*tasks, question])
    with pytest.raises(BadMessage, match="3 tasks in one turn"):
        checks().require(3, [question] * 3)
    valid, test = tasks_of(3)
    assert valid.score is not None
    checks().require(3, [valid, test])
    with pytest.raises(BadMessage, match="scores of two models"):
        checks().require(3, [replace(valid, score=replace(valid.score, round=0)), test])


def test_a_place_beyond_the_reserved_numbers_is_refused() -> None:
    with pytest.raises(BadMessage, match="client numbers up to 1000000000000000 of"):
        TaskChecks(recorded()[0].rehearsal.terms, np.array([10**15])).require_place()


@pytest.mark.parametrize(("name", "value"), [("clients", 10**15), ("clients", 0), ("trained", -1), ("trained", 10**9)])
def test_impossible_terms_are_refused_before_anything_is_made_of_them(name: str, value: int, tmp_path: Path) -> None:
    town = Town(settings("fedmf", data=DATA), tmp_path, nodes=1)
    terms: Terms = replace(town.rehearsal.terms, **{name: value})  # type: ignore[arg-type]
    reply = unframe(town.hosts[10](frame({"kind": "hello"}, [terms.encode()])))[0]
    assert "possible" in reply["error"]


# -- fuzz --

FUZZ = how(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def damaged(draw: Any, message: bytes) -> bytes:
    """A message with bytes changed, cut off or put in."""
    kind = draw(st.sampled_from(["change", "cut", "insert"]))
    at = (
        draw(st.integers(0, len(message) - 1))
        if draw(st.booleans())
        else draw(st.integers(0, min(600, len(message) - 1)))
    )
    if kind == "cut":
        return message[:at]
    new = draw(st.binary(min_size=1, max_size=9))
    return message[:at] + new + message[at + (len(new) if kind == "change" else 0) :]


@FUZZ
@given(st.data())
def test_a_node_answers_any_bytes(data: st.DataObject) -> None:
    """With a reply or an error; and a turn that was answered stays as it was."""
    town, down, _ = recorded()
    message = data.draw(damaged(data.draw(st.sampled_from(down))))
    reply, parts = unframe(NodeHost(town.states[0]).handle(message))
    assert "error" in reply or "token" in reply or "errors" in reply or parts


@FUZZ
@given(st.data())
def test_a_server_takes_no_bytes_but_those_of_a_reply(data: st.DataObject) -> None:
    """What is refused is refused by name, and leaves no trace."""
    _, _, up = recorded()
    server = town_server()
    parts = [part for message in up for part in unframe(message)[1]]
    message = data.draw(damaged(data.draw(st.sampled_from(parts))))
    try:
        reply = server.coordinator.check_reply(0, message)
    except BadMessage:
        return
    server.coordinator.schema.check(reply.update, server.coordinator.groups[0])


@cache
def town_server() -> Any:
    town, _, _ = recorded()
    server = town.server()
    server.registry.require(1)
    server.coordinator.begin(0)
    return server


@FUZZ
@given(
    shape=st.lists(st.integers(0, 50), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8]),
    clients=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    round=st.integers(-(2**62), 2**62),
)
def test_no_kernel_sees_what_was_not_agreed_on(
    shape: list[int], dtype: torch.dtype, clients: list[int], round: int
) -> None:
    """Of random tasks those alone pass that are like the agreed one."""
    down = Down({"item": torch.zeros(shape, dtype=dtype)}, {})
    step = Step(round, [(np.array(clients, np.int64), down)], {"fewest": 1})
    wanted = tasks_of(1)[0].train
    assert wanted is not None
    table = wanted.parts[0][1].shared["item"]
    try:
        checks().require(1, [Task(train=step)])
    except BadMessage:
        return
    assert (tuple(shape), dtype, round) == (tuple(table.shape), table.dtype, 1)
    assert clients == sorted(set(clients))
    assert set(clients) <= set(range(12))


@FUZZ
@given(
    users=st.one_of(st.integers(-5, 10**9), st.floats(allow_nan=True), st.text(max_size=3), st.none()),
    value=st.one_of(st.floats(allow_nan=True), st.text(max_size=3), st.none()),
)
def test_figures_are_numbers_that_a_metric_can_have(users: Any, value: Any) -> None:
    from fedrec.deploy.turns import _check_figures

    member = town_server().registry.members[0]
    try:
        found = _check_figures(({"users": users, "recall@10": value}, {}), member, {})
    except BadMessage:
        return
    assert 0 <= found.users <= member.users
    assert -1e-6 <= found.sums["recall@10"] <= found.users * (1 + 1e-6) or isinstance(users, float)


def test_a_reply_is_checked_like_a_task() -> None:
    reply = Reply.decode(unframe(recorded()[2][1])[1][0], CPU)
    assert set(reply.update.totals) == {"item"}
