"""One turn of a federation: messages to the nodes that are there, and what of their replies counts.

All of a reply is checked before anything of it counts; what is wrong is refused by name and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.deploy.framing import frame
from fedrec.deploy.link import Limits, Lost
from fedrec.deploy.node_registry import Counters, Member, NodeRegistry, Tell, open_reply
from fedrec.deploy.sums import SecureSum, SecureSums, close_or_drop
from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError
from fedrec.evaluation.partial import PartialEvaluation, bound_sums, merge_evaluations
from fedrec.federation.codec import BadMessage
from fedrec.federation.exchange import Coordinator, Figures, Task
from fedrec.federation.wire import LARGEST_WAYS, Ledger
from fedrec.secure import Aborted

TRIES = 3  # of a round that too few nodes took part in


class Turn:
    """What came back in one turn. `tasks`: how many each node had."""

    def __init__(self, tasks: int) -> None:
        self.tasks, self.cpu = tasks, 0.0
        self.whole = True  # whether what was to be summed up is
        self.groups: set[int] = set()
        self._figures: list[list[PartialEvaluation]] = [[] for _ in range(tasks)]

    @property
    def nodes(self) -> int:
        return len(self.groups)

    def take(self, group: int, figures: Sequence[PartialEvaluation]) -> None:
        self.groups.add(group)
        for found, one in zip(self._figures, figures, strict=True):
            found.append(one)

    def figures(self, task: int) -> PartialEvaluation:
        return merge_evaluations(self._figures[task]) if task < len(self._figures) else PartialEvaluation(0, {})


@dataclass(frozen=True)
class TurnRequest:
    """What a turn asks for. `restore`: nodes first return to round `best`. `trains`: it has updates."""

    number: int
    best: int
    tasks: Callable[[int], list[Task]]
    restore: bool = False
    trains: bool = True


class Turns:
    def __init__(
        self,
        terms: Terms,
        coordinator: Coordinator,
        registry: NodeRegistry,
        limits: Limits,
        tell: Tell,
        counters: Counters,
        rounds: int,
        folder: Path,
    ) -> None:
        """`folder`: where what has arrived of a secure sum is kept."""
        self.terms, self.coordinator, self.registry, self.limits, self.tell = terms, coordinator, registry, limits, tell
        self.counters, self.ledger = counters, Ledger(1)
        self.held = [0.0, 0.0]
        self._bounds = bound_sums(terms.protocol.ks)
        self.rounds = rounds
        self.sums = (
            SecureSums(coordinator, max(limits.minimum, terms.members), rounds, folder) if terms.secure else None
        )

    def run(self, wanted: TurnRequest) -> Turn:
        """Run a turn until enough nodes took part. Who answered it before gives the same reply again."""
        for _ in range(TRIES):
            # Nodes are greeted before every try, because those that were away may have come back meanwhile.
            self.registry.require(self.limits.minimum)
            if wanted.trains:
                self.coordinator.begin(wanted.number)
            turn = self._attempt(wanted)
            if turn.whole and turn.nodes >= self.limits.minimum:
                return turn
            self.counters.repeated += 1
            self.tell("repeated", {"turn": wanted.number, "nodes": turn.nodes, "minimum": self.limits.minimum})
        # Only after all tries: a round that is given up is lost for everybody.
        if self._may_give_up(wanted):
            self.tell("given up", {"round": wanted.number})
            self.coordinator.begin(wanted.number)
            return turn
        raise FedrecError(
            f"turn {wanted.number} had fewer than {self.limits.minimum} nodes {TRIES} times; check "
            "the nodes and continue with --resume"
        )

    def _may_give_up(self, wanted: TurnRequest) -> bool:
        """Whether to go on without a round: its updates are masked for members that are gone, and cannot be again."""
        begun = self.sums is not None and wanted.trains and self.sums.is_requested(wanted.number)
        # Not the last round, which has no later one to make up for it.
        return begun and wanted.number + 1 < self.rounds

    def _attempt(self, wanted: TurnRequest) -> Turn:
        asked = self.registry.present()
        turn = Turn(len(wanted.tasks(next(iter(asked.values())))) if asked else 0)
        try:
            if self.sums is None or not wanted.trains:
                self._exchange(turn, wanted, asked)
            else:
                self._run_secure_turn(turn, wanted, asked, self.sums)
        except (Aborted, BadMessage) as error:
            # Counted against nobody by name: what went wrong here belongs to the sum as a whole.
            self.registry.reject("all nodes", str(error))
            turn.whole = False
            if self.sums is not None and (sum := self.sums.find(wanted.number)) is not None:
                self._exclude_culprits(sum)
            if self.sums is not None:
                self.sums.retry(wanted.number)
        return turn

    def _run_secure_turn(self, turn: Turn, wanted: TurnRequest, asked: Mapping[int, int], sums: SecureSums) -> None:
        """Run a round of which the server learns the sum alone, and prepare the sum of the next round on the way.

        Each step is left out that a server which was stopped has taken before.
        """
        now = sums.sum_for(wanted.number, asked.values())
        # Phases that a stopped server had closed are not asked again, since nodes answer each of them only once.
        for phase in ("keys", "shares"):
            if now.phase == phase:
                self._phases(turn, {phase: now}, asked)
                now.close()
        after = sums.prepare_next(wanted.number, asked.values())
        # Noted on the disk before messages leave: after a crash the server must know that masks may be in use.
        now.request()
        self._exchange(turn, wanted, asked, now, after)
        if now.phase == "masked":
            now.close()
        # The next sum may fail without ending this one: its keys only ride along.
        close_or_drop(after, "keys")
        following = {"shares": after} if after is not None and after.phase == "shares" else {}
        self._phases(turn, {"unmask": now, **following}, asked)
        self.coordinator.fold_sum(now.result())
        self._exclude_culprits(now)
        close_or_drop(after, "shares")

    def _exclude_culprits(self, sum: SecureSum) -> None:
        """Name the nodes that sent what no honest one sends, and leave them out from now on."""
        for group, reason in sum.collector.culprits.items():
            self.registry.exclude(group, reason)

    def _exchange(
        self,
        turn: Turn,
        wanted: TurnRequest,
        asked: Mapping[int, int],
        now: SecureSum | None = None,
        after: SecureSum | None = None,
    ) -> None:
        def message(node: int) -> bytes:
            group = asked[node]
            tasks, riding = wanted.tasks(group), _riding(group, now, after)
            if now is not None and "masked" not in riding:
                # Its update would arrive unmasked.
                tasks = [replace(task, train=None) for task in tasks]
            header = {
                "kind": "turn",
                "turn": wanted.number,
                "best": wanted.best,
                "restore": wanted.restore,
                "terms": self.terms.identity,
                "start": self.registry.members[group].start,
                "member": group,
                "masked": int("masked" in riding),
                "next": int("keys" in riding),
            }
            rides = [sum.down[phase][group] for phase, sum in riding.items()]
            return frame(header, [*(task.encode() for task in tasks), *rides])

        for group, reply in self._replies(asked, message):
            with self._refusing(group):
                self._accept(turn, group, wanted.number, reply, now, after)

    def _phases(self, turn: Turn, phases: Mapping[str, SecureSum], asked: Mapping[int, int]) -> None:
        """Run phases of secure sums: each member of one that has not sent yet gets its message and sends one."""
        mine = {
            node: {name: sum for name, sum in phases.items() if sum.phase == name and sum.waits_for(group)}
            for node, group in asked.items()
        }
        taking = {node: group for node, group in asked.items() if mine[node]}

        def message(node: int) -> bytes:
            header = {"kind": "secure", "member": taking[node], "phases": list(mine[node])}
            return frame(header, [sum.down[name][taking[node]] for name, sum in mine[node].items()])

        nodes = {group: node for node, group in taking.items()}
        for group, reply in self._replies(taking, message):
            with self._refusing(group):
                header, parts = open_reply(reply)
                self._spend(turn, self.registry.members[group], header)
                sums = mine[nodes[group]]
                if len(parts) != len(sums):
                    raise BadMessage(f"{len(parts)} replies to {len(sums)} phases of a secure sum")
                for (name, sum), part in zip(sums.items(), parts, strict=True):
                    with self._refusing(group):
                        self._take_phase(sum, name, group, part, header.get("errors"))

    def _take_phase(self, sum: SecureSum, phase: str, group: int, part: bytes, errors: Any) -> None:
        if isinstance(errors, dict) and phase in errors:
            raise BadMessage(str(errors[phase])[:300])
        sum.take(phase, group, part)

    def _replies(self, asked: Mapping[int, int], message: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the replies that came; report the nodes that did not answer."""
        self.counters.exchanges += 1
        for node, reply in self.registry.link.exchange(list(asked), message, self.limits.deadline):
            # A node that is lost is reported and does not stop the loop: the replies of others are on their way.
            if isinstance(reply, Lost):
                self.registry.reject(self.registry.members[asked[node]].name, reply.reason)
            else:
                yield asked[node], reply

    @contextmanager
    def _refusing(self, group: int) -> Iterator[None]:
        """Report a bad message under the node's name; the replies of others still count."""
        try:
            yield
        except BadMessage as error:
            self.registry.reject(self.registry.members[group].name, str(error))

    # -- what a reply must be --

    def _accept(
        self, turn: Turn, group: int, number: int, message: bytes, now: SecureSum | None, after: SecureSum | None
    ) -> None:
        header, parts = open_reply(message)
        member = self.registry.members[group]
        # Counted once: the second copy of a reply would double its weight in the mean.
        if group in turn.groups:
            raise BadMessage("a second reply in the same turn")
        if header.get("turn") != number:
            raise BadMessage(f"a reply to turn {header.get('turn')} in turn {number}")
        if header.get("vocabulary") != self.terms.vocabulary or header.get("terms") != self.terms.identity:
            raise BadMessage("it uses another vocabulary or other settings")
        riding = _riding(group, now, after)
        if len(parts) != turn.tasks + len(riding):
            raise BadMessage(f"{len(parts)} replies to {turn.tasks + len(riding)} tasks")
        replies = [self.coordinator.check_reply(group, part) for part in parts[: turn.tasks]]
        if now is not None and any(len(reply.update.clients) for reply in replies):
            # The masked sum carries the updates; one beside it would count twice, and be seen alone.
            raise BadMessage("an unmasked update; only masked ones are accepted")
        figures = [_check_figures(reply.figures, member, self._bounds) for reply in replies]
        # All checks come before anything is added, so that a bad reply leaves no half of itself behind.
        self._count(header, member)
        for (phase, sum), part in zip(riding.items(), parts[turn.tasks :], strict=True):
            sum.take(phase, group, part)
        self._spend(turn, member, header)
        member.turns += 1
        turn.take(group, figures)
        for reply in replies:
            self.coordinator.add(reply)

    def _spend(self, turn: Turn, member: Member, header: Mapping[str, Any]) -> None:
        """Processor time, as the node says."""
        cpu = header.get("cpu")
        # A bound beyond any run, so that one announcement cannot spoil the report's totals.
        if not isinstance(cpu, int | float) or not 0 <= cpu < 1e9:
            raise BadMessage(f"it cannot have spent {cpu!s:.20} seconds")
        member.cpu += cpu
        turn.cpu += cpu

    def _count(self, header: Mapping[str, Any], member: Member) -> None:
        """Bytes and state, as the node says."""
        try:
            for number, entry in header["ledger"].items():
                self._add_bytes(int(number), {name: int(size) for name, size in entry.items()})
            kept, scoring = (float(size) for size in header["held"])
            notes, missed = [str(note) for note in header["notes"]], int(header["missed"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadMessage(f"its announcement cannot be read ({error})") from None
        # State is counted at a node's first turn alone: it is the same state later, not more.
        self.held = [self.held[0] + kept, self.held[1] + scoring] if not member.turns else self.held
        self.counters.missed += max(0, missed)
        for note in notes:
            self.tell("note", {"node": member.name, "note": note})

    def _add_bytes(self, number: int, entry: Mapping[str, int]) -> None:
        total = self.ledger.rounds.setdefault(number, {"up": 0, "down": 0, "trained": 0})
        for name in ("up", "down", "trained"):
            total[name] += entry.get(name, 0)
        for name in LARGEST_WAYS:
            total[name] = max(total.get(name, 0), entry.get(name, 0))


def _riding(group: int, now: SecureSum | None, after: SecureSum | None) -> dict[str, SecureSum]:
    """By phase, the secure sums whose messages travel with a turn to a group."""
    sums = {"masked": now, "keys": after}
    return {phase: sum for phase, sum in sums.items() if sum is not None and sum.has(phase, group)}


def _check_figures(figures: Figures | None, member: Member, bounds: Mapping[str, float]) -> PartialEvaluation:
    """Check figures of a node: sums over its users of numbers that a metric can have."""
    sums = {} if figures is None else dict(figures[0])
    users = sums.pop("users", 0)
    if not isinstance(users, int | float) or not 0 <= users <= member.users:
        raise BadMessage(f"metrics of {users} users; it announced {member.users}")
    for name, value in sums.items():
        # A little slack for sums of floats; beyond it somebody invents figures to steer which round is chosen.
        if not isinstance(value, int | float) or not -1e-6 <= value <= users * bounds.get(name, 1.0) * (1 + 1e-6):
            raise BadMessage(f"'{name[:40]}' of {users:g} users cannot be {value}")
    return PartialEvaluation(int(users), {name: float(value) for name, value in sums.items()})
