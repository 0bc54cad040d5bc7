"""What can go wrong with messages and files, brought about on purpose in one process: what happens then, what is lost,
and how it is said. What concerns processes, keys and certificates is in `real_faults`."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedrec.deploy import (
    TURN,
    Handle,
    Limits,
    LocalLink,
    NodeHost,
    Server,
    Settings,
    StateFolder,
    frame,
    rehearse,
    unframe,
)
from fedrec.errors import FedrecError
from fedrec.experiment import RunConfig, RunFolder
from fedrec.federation import Reply

CONFIG = RunConfig("fedmf", "synthetic@users=60+items=80+seed=1", rounds=4)
NODES = 3
AT = 2  # the turn in which it happens
Change = Callable[[bytes], bytes]


@dataclass
class Outcome:
    fault: str
    happened: str
    lost: str
    said: str

    def row(self) -> list[str]:
        return [self.fault, self.happened, self.lost, self.said]


def _table(change: Callable[[Any], Any]) -> Change:
    def apply(message: bytes) -> bytes:
        header, parts = unframe(message)
        reply = Reply.decode(parts[0], torch.device("cpu"))
        reply.update.totals["item"] = change(reply.update.totals["item"])
        return frame(header, [reply.encode()])

    return apply


def _with_header(**values: Any) -> Change:
    def apply(message: bytes) -> bytes:
        header, parts = unframe(message)
        return frame({**header, **values}, parts)

    return apply


def _figures(**values: float) -> Change:
    def apply(message: bytes) -> bytes:
        header, parts = unframe(message)
        reply = Reply.decode(parts[0], torch.device("cpu"))
        assert reply.figures is not None
        reply.figures[0].update(values)
        return frame(header, [reply.encode()])

    return apply


POISON: Mapping[str, Change] = {
    "upload of NaN": _table(lambda table: table * float("nan")),
    "upload of huge numbers": _table(lambda table: table + 1e30),
    "upload of a wrong shape": _table(lambda table: table[:-1]),
    "upload of a wrong type": _table(lambda table: table.float()),
    "oversized upload": _table(lambda table: torch.zeros(4000, 400, dtype=torch.float64)),
    "stale upload": _with_header(turn=AT - 1),
    "upload of another vocabulary": _with_header(vocabulary="0" * 64),
    "no message at all": lambda message: b"x" * 100,
    "a message cut short": lambda message: message[:-1],
    "impossible metrics": _figures(**{"recall@10": 1e9}),
    "metrics of users it does not have": _figures(users=1e6),
}
"""What a node may send instead of its reply."""


@dataclass
class Case:
    """A federation in one process, in a folder of its own."""

    folder: Path
    first: int = NODES
    secure: bool = False
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rehearsal = rehearse(CONFIG, secure=self.secure)
        self.states = self.rehearsal.deal(self.folder, NODES)
        self.hosts: dict[int, Handle] = {k: NodeHost(state).handle for k, state in enumerate(self.states)}
        self.run_folder = RunFolder.create(self.folder / "run", CONFIG.to_dict())

    def run(self) -> dict[str, Any]:
        limits = Limits(60, 1 + self.secure, self.first, 1.0, 0.01)
        return Server(self.rehearsal.terms, self.run_folder, LocalLink(self.hosts), limits, self.tell).run()

    def tell(self, what: str, particulars: Mapping[str, Any]) -> None:
        self.events.append((what, dict(particulars)))

    def describe(self) -> str:
        words = [str(one.get("reason") or one.get("note")) for what, one in self.events if what in ("refused", "note")]
        words += [f"going on from round {one['round'] + 1}" for what, one in self.events if what == "resumed"]
        return words[0].replace(f"{self.folder}/", "")[:140] if words else "-"

    def intercept(self, node: int, turn: int, instead: Callable[[Handle, bytes], bytes]) -> None:
        """Let something else happen when a node gets the message of a turn."""
        handle = self.hosts[node]
        self.hosts[node] = lambda message: (
            instead(handle, message) if unframe(message)[0].get("turn") == turn else handle(message)
        )


class _Killed(Exception):
    """As if the process were gone."""


def _dead(handle: Handle, message: bytes) -> bytes:
    raise TimeoutError


@contextmanager
def _full_disk() -> Iterator[None]:
    """No file may grow beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _on_a_full_disk(handle: Handle, message: bytes) -> bytes:
    with _full_disk():
        return handle(message)


def _damaging(case: Case) -> Callable[[Handle, bytes], bytes]:
    def instead(handle: Handle, message: bytes) -> bytes:
        path = StateFolder(case.states[0]).file(TURN, AT - 1)
        path.write_bytes(path.read_bytes()[:-3] + b"abc")
        return handle(message)

    return instead


def _agreed_on_others(case: Case) -> NodeHost:
    """A node that expects one item fewer."""
    items, state = case.folder / "items.csv", case.states[0]
    items.write_text("\n".join(["item", *map(str, case.rehearsal.terms.items[:-1])]), encoding="utf-8")
    return NodeHost(state, replace(Settings.read(state), items=items))


def in_process() -> Iterator[Outcome]:
    """Every fault of messages and files; each ends with a finished run, or it is an error."""
    with tempfile.TemporaryDirectory(prefix="fedrec-faults-") as place:
        calm = Case(Path(place) / "calm").run()
        planned = calm["deployment"]["clients"] * calm["rounds_run"]

        def outcome_of(name: str, case: Case, summary: Mapping[str, Any]) -> Outcome:
            about = summary["deployment"]
            rounds = f"{summary['rounds_run']} of {CONFIG.rounds} rounds, tested"
            unharmed = summary["test"] == calm["test"] and not about["lost"]
            equal = ", as if nothing had happened" if unharmed else ""
            lost = f"{about['lost']} of {planned} uploads" if about["lost"] else "nothing"
            return Outcome(name, rounds + equal, lost, case.describe())

        for name, change in POISON.items():
            case = Case(Path(place) / name.replace(" ", "-"))
            case.intercept(0, AT, lambda handle, message, change=change: change(handle(message)))  # type: ignore[misc]
            yield outcome_of(name, case, case.run())
        for name, instead in (("node absent in a round", _dead), ("full disk on a node", _on_a_full_disk)):
            case = Case(Path(place) / name.replace(" ", "-"))
            case.intercept(0, AT, instead)
            yield outcome_of(name, case, case.run())
        case = Case(Path(place) / "absent", secure=True)
        case.intercept(0, AT, _dead)
        yield outcome_of("node absent in a round, secure sums", case, case.run())
        case = Case(Path(place) / "vocabulary", first=NODES - 1)
        case.hosts[0] = _agreed_on_others(case).handle
        yield outcome_of("node with another vocabulary, which stays out", case, case.run())
        case = Case(Path(place) / "corrupt")
        case.intercept(0, AT, _damaging(case))
        yield outcome_of("corrupt state file on a node", case, case.run())
        case = Case(Path(place) / "killed")
        yield outcome_of("server killed in a round, resumed", case, _killed_and_resumed(case))


def _killed_and_resumed(case: Case) -> dict[str, Any]:
    handle = case.hosts[NODES - 1]

    def last(message: bytes) -> bytes:
        reply = handle(message)
        if unframe(message)[0].get("turn") == AT:
            raise _Killed
        return reply

    case.hosts[NODES - 1] = last
    try:
        case.run()
    except _Killed:
        case.hosts[NODES - 1] = handle
        return case.run()
    raise FedrecError("the server was not killed")
