"""One exchange between the server and a group of clients: a task goes down, a reply comes up, both as bytes.

A task may carry several steps, so that a round is one exchange: take the answer of the last round, score with it, train
the next one. What crosses is checked where it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.client_side import ClientSide, MakeDown
from fedrec.federation.clients import Histories
from fedrec.federation.codec import BadMessage, pack, unpack
from fedrec.federation.contract import Answer, Down, Plan, Tensors, cohorts_of
from fedrec.federation.schema import ClientSetup, Schema, schema_of
from fedrec.federation.server_side import ServerSide
from fedrec.federation.update import Update, merge_updates

Figures = tuple[dict[str, float], Tensors]
"""What a group tells of an evaluation: sums over its users."""
Evaluate = Callable[[Mapping[str, Any], Iterator[tuple[np.ndarray, Tensor]]], Figures]
"""By the options of a step (the `part`: valid or test, ...) and the scores of a group's users."""


@dataclass(frozen=True)
class Step:
    """What goes down for one purpose in one round: to some clients of each cohort, in order of their numbers."""

    round: int
    parts: Sequence[tuple[np.ndarray, Down]]
    options: Mapping[str, Any] = field(default_factory=dict)
    sending: np.ndarray | None = None
    items: np.ndarray | None = None

    @property
    def clients(self) -> np.ndarray:
        return np.sort(np.concatenate([clients for clients, _ in self.parts]))

    def select_down(self, clients: np.ndarray) -> Down:
        """For some clients of one cohort."""
        owners, down = next(part for part in self.parts if np.isin(clients[0], part[0]))
        # Ascending owners, so their rows are found by a search.
        at = torch.from_numpy(np.searchsorted(owners, clients))
        return Down(down.shared, {name: value[at] for name, value in down.own.items()})


@dataclass(frozen=True)
class Task:
    """Steps in the order in which a group takes them."""

    keep: bool = False
    """What was scored last is the best so far."""
    restore: bool = False
    """Go back to the best."""
    answer: Step | None = None
    score: Step | None = None
    train: Step | None = None

    def encode(self) -> bytes:
        header: dict[str, Any] = {"keep": self.keep, "restore": self.restore}
        tensors: Tensors = {}
        for name in STEPS:
            step: Step | None = getattr(self, name)
            if step is None:
                continue
            header[name] = {"round": step.round, "options": dict(step.options), "parts": len(step.parts)}
            for label in NUMBERS:
                if (numbers := getattr(step, label)) is not None:
                    # An array may be a view with gaps, which the format cannot hold.
                    tensors[f"{name}.{label}"] = torch.from_numpy(np.ascontiguousarray(numbers))
            for k, (clients, down) in enumerate(step.parts):
                tensors[f"{name}.{k}.clients"] = torch.from_numpy(np.ascontiguousarray(clients))
                tensors |= {f"{name}.{k}.shared.{key}": value for key, value in down.shared.items()}
                tensors |= {f"{name}.{k}.own.{key}": value for key, value in down.own.items()}
        return pack(header, tensors)

    @staticmethod
    def decode(message: bytes, device: torch.device) -> Task:
        header, tensors = unpack(message)
        try:
            steps = {name: _step(name, header[name], tensors, device) for name in STEPS if name in header}
            return Task(bool(header["keep"]), bool(header["restore"]), **steps)
        except (KeyError, TypeError, ValueError) as error:
            # Whatever a message lacks is the sender's mistake, and must not look like one of ours.
            raise BadMessage(f"this is not a fedrec task ({error})") from None


# in the order in which a client does them: it scores with what it has just received, before it trains on
STEPS = ("answer", "score", "train")
NUMBERS = ("sending", "items")


def _step(name: str, header: Mapping[str, Any], tensors: Tensors, device: torch.device) -> Step:
    parts = []
    for k in range(int(header["parts"])):
        shared, own = (_tensors_under(f"{name}.{k}.{kind}.", tensors, device) for kind in ("shared", "own"))
        parts.append((tensors[f"{name}.{k}.clients"].numpy(), Down(shared, own)))
    numbers = {label: tensors[f"{name}.{label}"].numpy() for label in NUMBERS if f"{name}.{label}" in tensors}
    return Step(int(header["round"]), parts, dict(header["options"]), **numbers)


def _tensors_under(start: str, tensors: Tensors, device: torch.device) -> Tensors:
    """Those whose names start so, under the rest of their names."""
    return {key.removeprefix(start): value.to(device) for key, value in tensors.items() if key.startswith(start)}


@dataclass(frozen=True)
class Reply:
    """What a group sends back: its update, and sums of an evaluation where one was asked for."""

    update: Update
    figures: Figures | None = None

    def blind(self) -> Reply:
        """Without the update, which reaches the server in a secure sum alone."""
        return replace(self, update=Update())

    def encode(self) -> bytes:
        update, tensors = self.update, {"clients": torch.from_numpy(self.update.clients)}
        header: dict[str, Any] = {"weights": dict(update.weights), "means": sorted(update.means), "parts": {}}
        tensors |= {f"total.{key}": value for key, value in update.totals.items()}
        for name, parts in update.gathered.items():
            header["parts"][name] = len(parts)
            for k, (clients, value) in enumerate(parts):
                tensors[f"gathered.{k}.{name}"], tensors[f"owners.{k}.{name}"] = value, torch.from_numpy(clients)
        if self.figures is not None:
            header["figures"] = self.figures[0]
            tensors |= {f"figures.{name}": value for name, value in self.figures[1].items()}
        return pack(header, tensors)

    @staticmethod
    def decode(message: bytes, device: torch.device, limit: int | None = None) -> Reply:
        header, tensors = unpack(message, limit)
        try:
            totals, found = (
                _tensors_under("total.", tensors, device),
                _tensors_under("figures.", tensors, torch.device("cpu")),
            )
            gathered = {
                name: [
                    (tensors[f"owners.{k}.{name}"].numpy(), tensors[f"gathered.{k}.{name}"].to(device))
                    for k in range(int(count))
                ]
                for name, count in header["parts"].items()
            }
            weights = {str(key): float(value) for key, value in header["weights"].items()}
            clients = tensors["clients"].numpy()
            update = Update(totals, weights, frozenset(header["means"]), gathered, clients)
            return Reply(update, (dict(header["figures"]), found) if "figures" in header else None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadMessage(f"this is not a fedrec reply ({error})") from None


class Node:
    """A group of clients at the other end of a wire."""

    def __init__(
        self, side: ClientSide, evaluate: Evaluate | None = None, known: Mapping[str, Histories | None] | None = None
    ) -> None:
        """`known`: by part, the histories to answer from where they are longer than what was trained on."""
        self.side, self.evaluate, self.known = side, evaluate, known or {}
        self.scored: Tensors | None = None  # the state that was scored last
        self.best: Tensors | None = None

    def handle(self, message: bytes) -> bytes:
        return self.take(Task.decode(message, self.side.world.device)).encode()

    def take(self, task: Task) -> Reply:
        if task.keep:
            # What was scored becomes the best without a copy, since it is not needed as itself any more.
            self.best, self.scored = self.scored, None
        if task.restore and self.best is not None:
            self.side.restore(self.best)
        if task.answer is not None:
            hosted = self.side.data.select_hosted(task.answer.clients)
            self.side.receive(hosted, task.answer.round, task.answer.select_down)
        figures = None if task.score is None else self._score(task.score)
        return Reply(Update() if task.train is None else self._train(task.train), figures)

    def _score(self, step: Step) -> Figures:
        assert self.evaluate is not None, "this group has nothing to evaluate with"
        # A copy, for training goes on in the same tensors before anybody knows that this was the best.
        self.scored = {name: value.clone() for name, value in self.side.tensors().items()}
        items = np.arange(self.side.world.items) if step.items is None else step.items
        known = self.known.get(str(step.options["part"]))
        scores = self.side.scores(torch.from_numpy(items).to(self.side.world.device), step.select_down, known)
        return self.evaluate(step.options, scores)

    def _train(self, step: Step) -> Update:
        sending = step.clients if step.sending is None else step.sending
        fewest = float(step.options["fewest"])
        return self.side.train(step.clients, sending, step.round, step.select_down, fewest, will_be_read=True)[0]


@dataclass
class Rejection:
    """An update that was refused: whose, when and why."""

    group: int
    round: int
    reason: str


class Coordinator:
    """The server's end: makes tasks for groups of clients and folds their replies in as they come."""

    def __init__(self, server: ServerSide, groups: list[np.ndarray], setup: ClientSetup) -> None:
        """`groups`: the clients of each, ascending."""
        self.server, self.groups = server, groups
        self.schema: Schema = schema_of(server, setup)
        self.rejected: list[Rejection] = []
        self._answer: tuple[Answer, int] | None = None  # that rides on the next task
        self._plan, self._round, self._update = Plan(np.zeros(0, dtype=np.int64)), -1, Update()

    def begin(self, round: int) -> None:
        self._plan, self._round, self._update = self.server.plan(round), round, Update()

    def task(self, group: int, part: str | None = None, train: bool = True) -> Task:
        """For one group: the answer that is due, a score of it for a part, and the training of the round begun."""
        answer = self._step_answer(self.groups[group]) if self._answer is not None else None
        score = None if part is None else self.score(group, self._round, {"part": part})
        return Task(answer=answer, score=score, train=self._step_train(self.groups[group]) if train else None)

    def _step_answer(self, mine: np.ndarray) -> Step | None:
        assert self._answer is not None
        answer, round = self._answer
        clients = mine if answer.clients is None else np.intersect1d(mine, answer.clients)
        return self.step(round, clients, answer.make) if len(clients) else None

    def score(self, group: int, round: int, options: Mapping[str, Any], items: np.ndarray | None = None) -> Step:
        """For one group, to score with what the server holds after a round; `items`: default all of the world."""
        wanted = np.arange(self.server.world.items) if items is None else items
        offered = torch.from_numpy(wanted).to(self.server.world.device)
        step = self.step(round, self.groups[group], lambda some: self.server.offer(some, round, offered))
        return replace(step, options=options, items=items)

    def _step_train(self, mine: np.ndarray) -> Step | None:
        clients = np.intersect1d(mine, self._plan.train)
        if not len(clients):
            return None
        step = self.step(self._round, clients, lambda some: self.server.broadcast(some, self._round))
        sending = None if self._plan.upload is None else np.intersect1d(mine, self._plan.upload)
        # By the whole plan rather than this group, because noise on sums counts on all of them.
        return replace(step, options={"fewest": len(self._plan.uploads())}, sending=sending)

    def step(self, round: int, clients: np.ndarray, make: MakeDown) -> Step:
        """What some clients get, cohort by cohort."""
        cohorts = cohorts_of(self.server.method, self.server.world)
        groups = [np.intersect1d(clients, cohort.clients) for cohort in cohorts]
        parts = [(group, make(group)) for group in groups if len(group)]
        return Step(round, parts)

    def fold(self, group: int, message: bytes) -> Reply | None:
        """Take the reply of a group, or refuse it by name. None: refused."""
        try:
            reply = self.check_reply(group, message)
        except BadMessage as error:
            self.rejected.append(Rejection(group, self._round, str(error)))
            return None
        self.add(reply)
        return reply

    def fold_sum(self, update: Update) -> None:
        """Take the sum over all groups that a secure sum ended with; `fold` took blind replies."""
        self.schema.check(update, self._plan.uploads())
        self._update = merge_updates([self._update, update.to(self.server.world.device)])

    def list_expected_clients(self, group: int) -> np.ndarray:
        """Clients of a group whose uploads the round is to have."""
        return np.intersect1d(self.groups[group], self._plan.uploads())

    def check_reply(self, group: int, message: bytes) -> Reply:
        """The reply of a group, if it is what that group may send now."""
        mine = self.groups[group]
        # A limit before unpacking: a stranger's message may claim any size.
        reply = Reply.decode(message, self.server.world.device, self.schema.limit(len(mine)))
        # Checked against what this group may send now, not merely against the method.
        self.schema.check(reply.update, self.list_expected_clients(group))
        return reply

    def add(self, reply: Reply) -> None:
        self._update = merge_updates([self._update, reply.update])

    @property
    def senders(self) -> np.ndarray:
        """Whose uploads of the round are here."""
        return self._update.clients

    @property
    def plan(self) -> Plan:
        return self._plan

    def end(self) -> None:
        """Aggregate what arrived; who is answered hears it with the next task."""
        answer = self.server.aggregate(self._update, self._plan, self._round)
        self._answer = None if answer is None else (answer, self._round)

    def drop_answer(self) -> None:
        """The answer has gone out to everybody."""
        self._answer = None

    def resume_after(self, round: int, plan: Plan, arrived: np.ndarray) -> None:
        """After a restart, with the server's tensors of a round's end: its answer is still to be told."""
        # With uploads expected and none arrived there was no aggregation, so there is no answer to tell.
        told = len(arrived) or not len(plan.uploads())
        answer = self.server.method.answer(self.server.tensors, plan, arrived, round) if told else None
        self._answer = None if answer is None else (answer, round)
