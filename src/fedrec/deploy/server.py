"""The server of a federation: it meets nodes, takes them through rounds, keeps what a server may have.

It knows nothing of how messages travel: a `Link` carries them, Flower or a test. One exchange is a turn: the answer of
the last round, its score and the training of the next one ride on one message. What a node sends is checked before it
counts; what is wrong is refused by name and counted. After every round all is on the disk: a new process can go on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrec.data.atomic import atomic_file
from fedrec.deploy.frames import frame, unframe
from fedrec.deploy.node import CHANCE
from fedrec.deploy.summary import summary_of
from fedrec.deploy.sums import SecureSum
from fedrec.deploy.terms import Terms
from fedrec.errors import DivergedError, FedrecError
from fedrec.evaluation.partial import PartialEvaluation, merged
from fedrec.experiment import checkpoint
from fedrec.experiment.config import FORMAT, require_same
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.observers import observer_of
from fedrec.federation.codec import BadMessage
from fedrec.federation.contract import Plan, Tensors
from fedrec.federation.exchange import Coordinator, Figures, Step, Task
from fedrec.federation.exposure import seen_by_server
from fedrec.federation.loop import Progress, Rules, Score
from fedrec.federation.schema import Like
from fedrec.federation.server_side import ServerSide
from fedrec.federation.wire import LARGEST_WAYS, Ledger
from fedrec.secure import Aborted

Tell = Callable[[str, Mapping[str, Any]], None]
"""What happened, and the particulars, for whoever watches."""
PAUSE = 300.0  # seconds until a node that was not let in is asked again
TRIES = 3  # of a round that too few nodes took part in


@dataclass(frozen=True)
class Lost:
    """Why no reply came."""

    reason: str


class Link(Protocol):
    """Carries messages to nodes that are there now."""

    def nodes(self) -> Sequence[int]: ...

    def exchange(self, nodes: Sequence[int], make: Callable[[int], bytes],
                 deadline: float) -> Iterable[tuple[int, bytes | Lost]]:  # fmt: skip
        """Send each its message; replies as they come, and `Lost` for those that did not in time (seconds)."""
        ...


@dataclass(frozen=True)
class Limits:
    """How long a turn may take, how many nodes it needs (the first one perhaps more), how long to wait for them."""

    deadline: float = 600.0
    minimum: int = 1
    first: int = 1
    wait: float = 600.0
    poll: float = 1.0


@dataclass
class Member:
    """A node that the server has met: by a hash of its token, with the client numbers that are its own."""

    name: str
    start: int
    clients: int
    users: int = 0
    interactions: int = 0
    cpu: list[float] = field(default_factory=list)

    @property
    def numbers(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.clients)


@dataclass
class Counters:
    """What the report says about the deployment itself."""

    rejected: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    missed: int = 0
    repeated: int = 0
    unknown_rows: int = 0


class Server:
    def __init__(self, terms: Terms, folder: RunFolder, link: Link, limits: Limits, tell: Tell,
                 attributes: Tensor | None = None) -> None:  # fmt: skip
        self.terms, self.folder, self.link, self.limits, self.tell = terms, folder, link, limits, tell
        method, rule = terms.method, terms.protocol
        side = ServerSide(method, terms.world(), attributes)
        like = Like(rule.negatives, rule.neg_unique, terms.stages)  # type: ignore[arg-type]
        self.coordinator = Coordinator(side, [], like)
        patience = terms.config.patience if terms.config.patience is not None else rule.patience
        self.rules = Rules(method.rounds, terms.config.eval_every, patience, rule.select_last,
                           may_stop=observer_of(method).may_stop)  # fmt: skip
        self.progress, self.ledger, self.counters = Progress(), Ledger(1), Counters()
        self.members: list[Member] = self._read_members()
        self.coordinator.groups += [member.numbers for member in self.members]
        self._here: dict[int, int] = {}  # nodes of this link by number, and their group
        self._refused: dict[int, float] = {}  # nodes that were not let in, and when they may try again
        self._pending: dict[str, Any] | None = None  # the record of the last round, which waits for its score
        self.held = [0.0, 0.0]
        self._best: Tensors | None = None

    # -- the whole --

    def run(self) -> dict[str, Any]:
        """From the first round, or from where a process before has stopped, to summary.json."""
        self.tell("expects", self._expected())
        self._resume()
        self._await(max(self.limits.minimum, 0 if self.progress.next_round else self.limits.first))
        while self.progress.next_round < self.rules.rounds and not self.progress.stopped_early:
            self._round(self.progress.next_round)
        chosen = self._end()
        summary = self._finish(chosen)
        self.folder.write_summary(summary)
        self.tell("finished", {"round": chosen, "test": summary["test"]})
        return summary

    def _expected(self) -> dict[str, Any]:
        """What a round holds at the server: sums are folded into one, gathered uploads stay side by side."""
        sums = each = 0
        for kinds in self.coordinator.schema.fields.values():
            for kind in kinds:
                size = math.prod(kind.shape) * (kind.dtype.itemsize if kind.gathered else 8)
                sums, each = sums + size * (not kind.gathered), each + size * kind.gathered
        taking = max(1, int(self.terms.clients * self.terms.config.participation))
        seen = "" if self.terms.secure else seen_by_server(self.terms.method)
        return {"sums": sums, "gathered": each * taking, "seen": seen}

    def _round(self, number: int) -> None:
        started = time.perf_counter()
        due = number - 1 if number and self.rules.due(number - 1) else None
        turn = self._sufficient(number, lambda group: [self._task(group, due, train=True)])
        if due is not None and self._judge(due, turn.figures(0)):
            return  # it ended with the round before; what was trained since is dropped
        coordinator = self.coordinator
        plan, arrived = coordinator.plan, coordinator.arrived
        try:
            coordinator.end()
        except DivergedError as error:
            if self.progress.best_round < 0:
                raise
            self.progress.diverged, self.progress.stopped_early = str(error), True
            return
        seconds = time.perf_counter() - started
        self.progress.seconds_train += seconds
        self.progress.next_round = number + 1
        taken = np.concatenate([member.numbers for member in self.members])
        lost = len(np.intersect1d(plan.uploads(), taken)) - len(arrived)  # numbers that wait for late joiners are not
        self.counters.lost += lost
        entry = self.ledger.rounds.get(number, {})
        self._flush()
        self._pending = {"round": number, "clients": len(plan.train), "seconds": round(seconds, 6),
                         "bytes_up": entry.get("up", 0), "bytes_down": entry.get("down", 0),
                         **({"lost": lost} if lost else {}), "nodes": turn.nodes,
                         "cpu": round(turn.cpu, 3)}  # fmt: skip
        self._save(plan, arrived, number)
        self.tell("round", {"round": number, "rounds": self.rules.rounds, "nodes": turn.nodes, "lost": lost,
                            "seconds": seconds, "best": self.progress.best_value if self._best else None})  # fmt: skip

    def _end(self) -> int:
        """Tell the last answer, score the last round; returns the chosen one."""
        last = self.progress.next_round - 1
        if not self.progress.stopped_early:
            turn = self._sufficient(last + 1, lambda group: [self._task(group, last, train=False)], begin=False)
            self._judge(last, turn.figures(0))
        self.coordinator.answered()
        self._flush()
        if self._best is None:
            return last
        self.coordinator.server.tensors = self._best
        return self.progress.best_round

    def _finish(self, chosen: int) -> dict[str, Any]:
        """The nodes go back to the chosen round and are tested."""
        started = time.perf_counter()
        checkpoint.save(self.folder.best, self._tensors(), {"round": chosen, **self._about()})
        asked = {"metrics": list(self.terms.metrics)}
        turn = self._sufficient(self.progress.next_round + 1, lambda group: [
            Task(score=self._score(group, chosen, {"part": "valid", **asked})),
            Task(score=self._score(group, chosen, {"part": "test", "chance": True, **asked})),
        ], restore=chosen == self.progress.best_round, begin=False)  # fmt: skip
        self.progress.seconds_evaluate += time.perf_counter() - started
        valid, test = turn.figures(0), turn.figures(1)
        luck = {name.removeprefix(CHANCE): value for name, value in test.mean().items() if name.startswith(CHANCE)}
        for k in self.terms.protocol.ks:  # the one figure that is no mean over users
            both = luck.get(f"precision@{k}", 0.0), luck.get(f"recall@{k}", 0.0)
            luck[f"f1_of_means@{k}"] = 2 * both[0] * both[1] / sum(both) if sum(both) else 0.0
        tested = {name: value for name, value in test.mean().items() if not name.startswith(CHANCE)}
        if not test.users:
            raise FedrecError("no node could test the chosen round; see the nodes' messages above")
        return summary_of(self, chosen, tested, valid.mean() if valid.users else {}, luck, test.users)

    # -- turns --

    def _task(self, group: int, scored: int | None, train: bool) -> Task:
        part = "test" if self.terms.protocol.select_on == "test" else "valid"
        options = {"part": part, "metrics": list(self.terms.protocol.selecting)}
        score = None if scored is None else self._score(group, scored, options)
        return replace(self.coordinator.task(group, train=train), score=score)

    def _score(self, group: int, round: int, options: Mapping[str, Any]) -> Step:
        catalogues = self.terms.catalogues
        items = None if catalogues is None else catalogues[options["part"] == "test"]
        return self.coordinator.score(group, round, options, items)

    def _sufficient(self, number: int, tasks: Callable[[int], list[Task]], restore: bool = False,
                    begin: bool = True) -> Turn:  # fmt: skip
        """A turn that enough nodes took part in; otherwise it is said again, and nothing of it counts."""
        for _ in range(TRIES):
            self._await(self.limits.minimum)
            if begin:
                self.coordinator.begin(number)
            turn = self._turn(number, tasks, restore, masked=begin and self.terms.secure)
            if turn.nodes >= self.limits.minimum:
                return turn
            self.counters.repeated += 1
            self.tell("repeated", {"turn": number, "nodes": turn.nodes, "minimum": self.limits.minimum})
        raise FedrecError(f"turn {number} had fewer than {self.limits.minimum} nodes {TRIES} times; check the "
                          "nodes and continue with --resume")  # fmt: skip

    def _turn(self, number: int, tasks: Callable[[int], list[Task]], restore: bool, masked: bool) -> Turn:
        best, present = self.progress.best_round, set(self.link.nodes())
        asked = {node: group for node, group in self._here.items() if node in present}
        turn = Turn(len(tasks(next(iter(asked.values())))) if asked else 0)
        sums = SecureSum(self.coordinator, number, asked.values(), self.limits.minimum) if masked else None

        def message(node: int) -> bytes:
            group = asked[node]
            header = {"kind": "turn", "turn": number, "best": best, "restore": restore, "terms": self.terms.identity,
                      "start": self.members[group].start}  # fmt: skip
            mask = [] if sums is None or group not in sums.down else [sums.down[group]]
            return frame({**header, "masked": len(mask)}, [*(task.encode() for task in tasks(group)), *mask])

        try:
            if sums is not None:
                for phase in sums.before:
                    self._phase(sums, phase, asked)
            for group, reply in self._replies(asked, message):
                with self._refusing(group):
                    self._accept(turn, group, number, reply, sums)
            if sums is not None:
                sums.close()
                self._phase(sums, "unmask", asked)
                self.coordinator.fold_sum(sums.result())
        except (Aborted, BadMessage) as error:
            self._reject("all nodes", str(error))
            return Turn(0)
        return turn

    def _phase(self, sums: SecureSum, phase: str, asked: Mapping[int, int]) -> None:
        """One phase of a secure sum: each node that is in it gets its message and sends one."""
        taking = {node: group for node, group in asked.items() if group in sums.down}
        said = {"kind": "secure", "phase": phase}
        for group, reply in self._replies(taking, lambda node: frame(
            {**said, "member": taking[node]}, [sums.down[taking[node]]]
        )):  # fmt: skip
            with self._refusing(group):
                _, parts = _without_error(reply)
                sums.take(phase, group, parts[0] if parts else b"")
        sums.advance(phase)

    def _replies(self, asked: Mapping[int, int], message: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
        """Those that came; of the others is told why."""
        for node, reply in self.link.exchange(list(asked), message, self.limits.deadline):
            if isinstance(reply, Lost):
                self._reject(self.members[asked[node]].name, reply.reason)
            else:
                yield asked[node], reply

    @contextmanager
    def _refusing(self, group: int) -> Iterator[None]:
        """What is wrong with one node's message concerns that message alone."""
        try:
            yield
        except BadMessage as error:
            self._reject(self.members[group].name, str(error))

    def _accept(self, turn: Turn, group: int, number: int, message: bytes, sums: SecureSum | None) -> None:
        """All of a reply is checked before anything of it counts."""
        header, parts = _without_error(message)
        if group in turn.groups:
            raise BadMessage("a second reply in the same turn")
        if header.get("turn") != number:
            raise BadMessage(f"a reply to turn {header.get('turn')} in turn {number}")
        if header.get("vocabulary") != self.terms.vocabulary or header.get("terms") != self.terms.identity:
            raise BadMessage("it uses another vocabulary or other settings")
        masked = sums is not None and group in sums.down
        if len(parts) != turn.tasks + masked:
            raise BadMessage(f"{len(parts)} replies to {turn.tasks + masked} tasks")
        replies = [self.coordinator.checked(group, part) for part in parts[: turn.tasks]]
        if sums is not None and any(len(reply.update.clients) for reply in replies):
            raise BadMessage("an unmasked update; only masked ones are accepted")
        figures = [self._checked_figures(reply.figures, self.members[group]) for reply in replies]
        self._count(header, self.members[group])
        if sums is not None and masked:
            sums.take("masked", group, parts[-1])
        turn.take(group, float(header["cpu"]), figures)
        for reply in replies:
            self.coordinator.add(reply)

    def _checked_figures(self, figures: Figures | None, member: Member) -> PartialEvaluation:
        """Sums over users of figures between 0 and 1."""
        sums = {} if figures is None else dict(figures[0])
        users = sums.pop("users", 0)
        if not isinstance(users, int | float) or not 0 <= users <= member.users:
            raise BadMessage(f"metrics of {users} users; it announced {member.users}")
        for name, value in sums.items():
            if not isinstance(value, int | float) or not -1e-6 <= value <= users * (1 + 1e-6):
                raise BadMessage(f"'{name[:40]}' of {users:g} users cannot be {value}")
        return PartialEvaluation(int(users), {name: float(value) for name, value in sums.items()})

    def _count(self, header: Mapping[str, Any], member: Member) -> None:
        """Bytes, state and processor time, as the node says."""
        try:
            for number, entry in header["ledger"].items():
                self._add_bytes(int(number), {name: int(size) for name, size in entry.items()})
            kept, scoring = (float(size) for size in header["held"])
            notes, missed, cpu = [str(note) for note in header["notes"]], int(header["missed"]), float(header["cpu"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadMessage(f"its announcement cannot be read ({error})") from None
        self.held = [self.held[0] + kept, self.held[1] + scoring] if member.cpu == [] else self.held
        self.counters.missed += max(0, missed)
        member.cpu.append(cpu)
        for note in notes:
            self.tell("note", {"node": member.name, "note": note})

    def _add_bytes(self, number: int, entry: Mapping[str, int]) -> None:
        total = self.ledger.rounds.setdefault(number, {"up": 0, "down": 0, "trained": 0})
        for name in ("up", "down", "trained"):
            total[name] += entry.get(name, 0)
        for name in LARGEST_WAYS:
            total[name] = max(total.get(name, 0), entry.get(name, 0))

    def _reject(self, name: str, reason: str) -> None:
        self.counters.rejected[reason] = self.counters.rejected.get(reason, 0) + 1
        self.tell("refused", {"node": name, "reason": reason})

    def _judge(self, round: int, figures: PartialEvaluation) -> bool:
        """Take the score of a round; whether the run ends with it."""
        if not figures.users:
            return False
        means = figures.mean()
        if self._pending is not None:
            self._pending["valid"] = means
        score = Score(self.terms.protocol.selection_value(means), means, 0.0)
        if self.progress.judge(self.rules, round, score):
            self._best = {name: value.clone() for name, value in self.coordinator.server.tensors.items()}
        self.tell("score", {"round": round, "valid": means, "best": self.progress.best_round == round})
        return self.progress.stopped_early

    # -- nodes --

    def _await(self, enough: int) -> None:
        """Meet who is there, and wait until they are enough."""
        until = time.monotonic() + self.limits.wait
        while True:
            present = list(self.link.nodes())
            gone = [node for node in self._here if node not in present]
            for node in gone:
                self.tell("left", {"node": self.members[self._here.pop(node)].name})
            now = time.monotonic()
            new = [node for node in present if node not in self._here and self._refused.get(node, now) <= now]
            if new:
                self._meet(new)
            if len(self._here) >= enough:
                return
            if time.monotonic() > until:
                raise FedrecError(f"{len(self._here)} of at least {enough} nodes have joined after "
                                  f"{self.limits.wait:g} s; start more nodes and continue with --resume")  # fmt: skip
            time.sleep(self.limits.poll)

    def _meet(self, nodes: Sequence[int]) -> None:
        hello = frame({"kind": "hello"}, [self.terms.encode()])
        for node, reply in self.link.exchange(nodes, lambda _: hello, self.limits.deadline):
            try:
                if isinstance(reply, Lost):
                    raise BadMessage(reply.reason)
                header, _ = _without_error(reply)
                self._here[node] = self._member(header)
            except BadMessage as error:
                if not isinstance(reply, Lost):
                    self._refused[node] = time.monotonic() + PAUSE
                self._reject(f"node {node}", str(error))

    def _member(self, header: Mapping[str, Any]) -> int:
        """The group of a node, old or new."""
        try:
            name = hashlib.sha256(str(header["token"]).encode()).hexdigest()[:12]
            clients, users, rows = (int(header[key]) for key in ("clients", "users", "interactions"))
            places, unknown = header["places"], int(header["unknown"]["rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadMessage(f"its announcement cannot be read ({error})") from None
        if header.get("vocabulary") != self.terms.vocabulary:
            raise BadMessage("it has another vocabulary")
        group = next((k for k, member in enumerate(self.members) if member.name == name), None)
        if group is None:
            group = self._admit(Member(name, self._place(clients, places), clients, users, rows))
        if group in self._here.values():
            raise BadMessage("its state folder is in use by another connected node")
        if self.members[group].clients != clients:
            raise BadMessage(f"it has {clients} clients now and had {self.members[group].clients}: its data has "
                             "changed; start it over with another --state-dir")  # fmt: skip
        self.counters.unknown_rows += unknown
        self.tell("joined", {"node": name, "clients": clients, "users": users, "unknown": header["unknown"]})
        return group

    def _place(self, clients: int, places: Sequence[int] | None) -> int:
        """The first of the numbers that a new node gets; in a rehearsal it brings its own."""
        taken = sorted((member.start, member.start + member.clients) for member in self.members)
        start = max((stop for _, stop in taken), default=0)
        if self.terms.seeded and places is not None:
            start = int(places[0])
        overlap = any(start < stop and first < start + clients for first, stop in taken)
        if clients < 1 or start < 0 or overlap or start + clients > self.terms.clients:
            raise BadMessage(f"no room for {clients} more clients: {self.terms.clients} numbers were reserved and "
                             f"{sum(member.clients for member in self.members)} are taken")  # fmt: skip
        return start

    def _admit(self, member: Member) -> int:
        self.members.append(member)
        self.coordinator.groups.append(member.numbers)
        kept = [{"name": one.name, "start": one.start, "clients": one.clients, "users": one.users,
                 "interactions": one.interactions} for one in self.members]  # fmt: skip
        with atomic_file(self.folder.path / "nodes.json", private=True) as temporary:
            temporary.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return len(self.members) - 1

    def _read_members(self) -> list[Member]:
        path = self.folder.path / "nodes.json"
        return [Member(**one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []

    # -- on the disk --

    def _tensors(self) -> Tensors:
        return {f"server.{name}": value for name, value in self.coordinator.server.tensors.items()}

    def _about(self) -> dict[str, Any]:
        return {"format": FORMAT, "config": self.terms.config.to_dict(), "terms": self.terms.identity}

    def _flush(self) -> None:
        """Write the record of the round before the last; it is whole now."""
        if self._pending is not None:
            self.folder.log(self._pending)
            self._pending = None

    def _save(self, plan: Plan, arrived: np.ndarray, round: int) -> None:
        """All that the next process needs, at the end of a round."""
        tensors = self._tensors() | {"plan.train": torch.tensor(plan.train), "arrived": torch.tensor(arrived)}
        tensors |= {f"best.{name}": value for name, value in (self._best or {}).items()}
        if plan.upload is not None:
            tensors["plan.upload"] = torch.tensor(plan.upload)
        about = {"round": round, "progress": dataclasses.asdict(self.progress), "pending": self._pending,
                 "ledger": self.ledger.rounds, "counters": dataclasses.asdict(self.counters), "held": self.held,
                 "cpu": [member.cpu for member in self.members], **self._about()}  # fmt: skip
        self.folder.sync_log()
        checkpoint.save(self.folder.last, tensors, about)

    def _resume(self) -> None:
        self.folder.sweep()
        if not self.folder.last.exists():
            self.folder.forget_after(0)
            return
        tensors, about = checkpoint.load(self.folder.last)
        require_same(about["config"], self.terms.config.to_dict(), self.folder.path)
        if about["terms"] != self.terms.identity:
            raise FedrecError(f"{self.folder.path} was started with other items or clients; use another --out")
        self.progress, self._pending = Progress(**about["progress"]), about["pending"]
        self.ledger.rounds = {int(number): entry for number, entry in about["ledger"].items()}
        self.counters, self.held = Counters(**about["counters"]), about["held"]
        for member, cpu in zip(self.members, about["cpu"], strict=False):
            member.cpu = cpu
        self.coordinator.server.tensors = _under("server.", tensors)
        self._best = _under("best.", tensors) or None
        upload = tensors.get("plan.upload")
        plan = Plan(tensors["plan.train"].numpy(), None if upload is None else upload.numpy())
        self.coordinator.go_on(int(about["round"]), plan, tensors["arrived"].numpy())
        self.folder.forget_after(int(about["round"]))
        self.tell("resumed", {"round": self.progress.next_round})


class Turn:
    """What came back in one turn."""

    def __init__(self, tasks: int) -> None:
        self.tasks, self.cpu = tasks, 0.0
        self.groups: set[int] = set()
        self._figures: list[list[PartialEvaluation]] = [[] for _ in range(tasks)]

    @property
    def nodes(self) -> int:
        return len(self.groups)

    def take(self, group: int, cpu: float, figures: Sequence[PartialEvaluation]) -> None:
        self.groups.add(group)
        self.cpu += cpu
        for found, one in zip(self._figures, figures, strict=True):
            found.append(one)

    def figures(self, task: int) -> PartialEvaluation:
        return merged(self._figures[task]) if task < len(self._figures) else PartialEvaluation(0, {})


def _without_error(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Header and parts, unless the node says that something went wrong there."""
    header, parts = unframe(message)
    if "error" in header:
        raise BadMessage(str(header["error"])[:300])
    return header, parts


def _under(start: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
