"""What can go wrong in a federation, brought about on purpose: what happens then, what is lost, and how it is said.

Those that concern messages and files happen in one process; those that concern processes, keys and certificates need
Flower's own, on this machine.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedrec.deploy.demo import told
from fedrec.deploy.flower import Certificates, SuperLink, free_port, reason_in, start_node
from fedrec.deploy.frames import frame, unframe
from fedrec.deploy.job import EVENTS, write_job
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.deploy.local import Handle, LocalLink
from fedrec.deploy.node import NodeHost
from fedrec.deploy.processes import Processes, descendants
from fedrec.deploy.rehearsal import rehearse
from fedrec.deploy.server import Limits, Server
from fedrec.deploy.state import TURN, StateFolder
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.folder import RunFolder
from fedrec.federation.exchange import Reply

CONFIG = RunConfig("fedmf", "synthetic@users=60+items=80+seed=1", rounds=4)
NODES = 3
STRANGER = "stranger"
RESTARTS, SETTLED = 12, 15.0  # tries of a node, and seconds after which one that still runs has been let in
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


# -- messages and files, in one process --


def _table(change: Callable[[Any], Any]) -> Change:
    def apply(message: bytes) -> bytes:
        header, parts = unframe(message)
        reply = Reply.decode(parts[0], torch.device("cpu"))
        reply.update.totals["item"] = change(reply.update.totals["item"])
        return frame(header, [reply.encode()])

    return apply


def _told(**values: Any) -> Change:
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
    "stale upload": _told(turn=AT - 1),
    "upload of another vocabulary": _told(vocabulary="0" * 64),
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
    minimum: int = 1
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rehearsal = rehearse(CONFIG)
        self.states = self.rehearsal.deal(self.folder, NODES)
        self.hosts: dict[int, Handle] = {k: NodeHost(state).handle for k, state in enumerate(self.states)}
        self.run_folder = RunFolder.create(self.folder / "run", CONFIG.to_dict())

    def run(self) -> dict[str, Any]:
        limits = Limits(60, self.minimum, NODES, 1.0, 0.01)
        return Server(self.rehearsal.terms, self.run_folder, LocalLink(self.hosts), limits, self.tell).run()

    def tell(self, what: str, particulars: Mapping[str, Any]) -> None:
        self.events.append((what, dict(particulars)))

    def said(self) -> str:
        words = [str(one.get("reason") or one.get("note")) for what, one in self.events if what in ("refused", "note")]
        return words[0][:140] if words else "-"

    def at(self, node: int, turn: int, instead: Callable[[Handle, bytes], bytes]) -> None:
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


def in_process() -> Iterator[Outcome]:
    """Every fault of messages and files; each ends with a finished run, or it is an error."""
    with tempfile.TemporaryDirectory(prefix="fedrec-faults-") as place:
        calm = Case(Path(place) / "calm").run()
        planned = calm["deployment"]["clients"] * calm["rounds_run"]

        def ended(name: str, case: Case, summary: Mapping[str, Any]) -> Outcome:
            about = summary["deployment"]
            rounds = f"{summary['rounds_run']} of {CONFIG.rounds} rounds, tested"
            unharmed = summary["test"] == calm["test"] and not about["lost"]
            equal = ", as if nothing had happened" if unharmed else ""
            lost = f"{about['lost']} of {planned} uploads" if about["lost"] else "nothing"
            return Outcome(name, rounds + equal, lost, case.said())

        for name, change in POISON.items():
            case = Case(Path(place) / name.replace(" ", "-"))
            case.at(0, AT, lambda handle, message, change=change: change(handle(message)))  # type: ignore[misc]
            yield ended(name, case, case.run())
        for name, instead in (("node absent in a round", _dead), ("full disk on a node", _on_a_full_disk)):
            case = Case(Path(place) / name.replace(" ", "-"))
            case.at(0, AT, instead)
            yield ended(name, case, case.run())
        case = Case(Path(place) / "corrupt")
        case.at(0, AT, _damaging(case))
        yield ended("corrupt state file on a node", case, case.run())
        case = Case(Path(place) / "killed")
        yield ended("server killed in a round, resumed", case, _killed_and_resumed(case))


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


# -- processes, keys and certificates, with Flower --


class Cluster:
    """A deployment on this machine to which things can be done while it runs."""

    def __init__(self, folder: Path, processes: Processes, deadline: float = 40.0) -> None:
        self.folder, self.processes = folder, processes
        self.rehearsal = rehearse(CONFIG)
        self.limits = Limits(deadline, 1, NODES, 240.0)
        self.out = folder / "run"
        write_job(self.out, self.rehearsal.terms, self.limits, None)
        self.states = self.rehearsal.deal(folder, NODES)
        self.keys = folder / "keys"
        make_server_keys(self.keys, ["127.0.0.1"])
        self.port = free_port()
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.events: list[dict[str, Any]] = []
        self.public = [make_node_key(self.keys / state.name) for state in self.states]

    def start_link(self) -> None:
        self.link = SuperLink(
            self.folder / "superlink", Certificates(self.keys), "127.0.0.1", self.port, self.processes
        )
        self.link.start()
        for key in self.public:
            self.link.register(key)

    def start_node(self, k: int) -> None:
        self.nodes[k] = self._started(self.states[k], self.keys / "ca.crt", self.keys / self.states[k].name)

    def restart_node(self, k: int) -> None:
        """As `fedrec deploy node` does: until the SuperLink lets it in, which may think that it never left."""
        for _ in range(RESTARTS):
            self.start_node(k)
            with suppress(subprocess.TimeoutExpired):
                self.nodes[k].wait(SETTLED)
            if self.nodes[k].poll() is None:
                return
            time.sleep(SETTLED)
        raise FedrecError(f"node {k} was not readmitted: {reason_in(self.states[k] / 'node.log')}")

    def start_stranger(self, ca: Path) -> None:
        """One more node, with a key that nobody has let in."""
        folder = self.folder / STRANGER
        make_node_key(self.keys / STRANGER)
        self._started(folder, ca, self.keys / STRANGER)

    def _started(self, folder: Path, ca: Path, key: Path) -> subprocess.Popen[bytes]:
        threads = {"OMP_NUM_THREADS": "1"}
        return start_node(folder, self.link.address, ca, key, free_port(), self.processes, threads)

    def start(self) -> None:
        self.start_link()
        for k in range(NODES):
            self.start_node(k)
        self.link.run(self.out)

    def until(self, what: str, round: int | None = None, seconds: float = 300.0) -> None:
        """Follow what the server tells until something is told."""
        self.events = []
        for event in told(self.out / EVENTS, seconds):
            self.events.append(event)
            if event["event"] == "failed":
                raise FedrecError(event["reason"])
            if event["event"] == what and (round is None or event.get("round") == round):
                return
        raise FedrecError(f"no '{what}' within {seconds:g} s")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text(encoding="utf-8"))
        return found

    def last_round(self) -> int:
        """Nodes that took part in it."""
        return next((int(event["nodes"]) for event in reversed(self.events) if event["event"] == "round"), 0)

    def said(self) -> str:
        words = [str(event["reason"]) for event in self.events if event["event"] == "refused"]
        return words[0][:140] if words else "-"


def kill_tree(pid: int) -> None:
    """A process and all below it, at once."""
    for one in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _node_killed(cluster: Cluster) -> str:
    cluster.start()
    cluster.until("round", 0)
    kill_tree(cluster.nodes[0].pid)
    cluster.until("round", 1)
    cluster.restart_node(0)
    cluster.until("finished")
    return "rounds ended without it; it was restarted"


def _link_killed(cluster: Cluster) -> str:
    cluster.start()
    cluster.until("round", 1)
    kill_tree(cluster.link.process.pid)
    time.sleep(1)
    cluster.start_link()
    cluster.link.run(cluster.out)
    cluster.until("finished")
    return "continued as a new Flower run from the last round"


def _both_restarted(cluster: Cluster) -> str:
    cluster.start()
    cluster.until("round", 1)
    for pid in (cluster.link.process.pid, *(node.pid for node in cluster.nodes.values())):
        kill_tree(pid)
    time.sleep(1)
    cluster.start_link()
    for k in range(NODES):
        cluster.restart_node(k)
    cluster.link.run(cluster.out)
    cluster.until("finished")
    return "continued from the last round with the nodes' own state"


def _paused(cluster: Cluster) -> str:
    cluster.start()
    cluster.until("round", 0)
    frozen = [cluster.nodes[0].pid, *descendants(cluster.nodes[0].pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(90, _woken, (frozen,)).start()
    cluster.until("finished", seconds=420)
    return "rounds ended at the deadline without it"


def _woken(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _stranger(cluster: Cluster) -> str:
    cluster.start()
    cluster.start_stranger(cluster.keys / "ca.crt")
    cluster.until("finished")
    return "was not admitted; the run was not disturbed"


def _wrong_certificate(cluster: Cluster) -> str:
    make_server_keys(cluster.folder / "other", ["127.0.0.1"])
    cluster.start()
    cluster.start_stranger(cluster.folder / "other" / "ca.crt")
    cluster.until("finished")
    return "refused to connect to the server; the run was not disturbed"


REAL: Mapping[str, Callable[[Cluster], str]] = {
    "SIGKILL of a node in a round": _node_killed,
    "SIGKILL of the SuperLink": _link_killed,
    "SIGKILL of everything, restarted": _both_restarted,
    "paused node (SIGSTOP)": _paused,
    "unregistered key": _stranger,
    "wrong certificate": _wrong_certificate,
}


def with_processes(only: str | None = None) -> Iterator[Outcome]:
    """Every fault of processes, keys and certificates, one after the other."""
    for name, fault in REAL.items():
        if only is not None and only not in name:
            continue
        place = tempfile.TemporaryDirectory(prefix="fedrec-faults-", ignore_cleanup_errors=True)
        with place as folder, Processes() as processes:
            cluster = Cluster(Path(folder), processes)
            try:
                happened = fault(cluster)
                about, last = cluster.summary()["deployment"], cluster.last_round()
                happened += f"; {last} of {NODES} nodes in the last round, {about['tested_users']} users tested"
                lost = about["lost"]
                yield Outcome(name, happened, f"{lost} uploads" if lost else "nothing", _words(name, cluster))
            except FedrecError as error:
                yield Outcome(name, f"FAILED: {error}", "-", cluster.said())


def _words(name: str, cluster: Cluster) -> str:
    if name in ("unregistered key", "wrong certificate"):
        return reason_in(cluster.folder / STRANGER / "node.log")[:140]
    return cluster.said()
