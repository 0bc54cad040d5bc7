"""What can go wrong with processes, keys and certificates, brought about on purpose with Flower on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrec.deploy import (
    EVENTS,
    LOG,
    Certificates,
    Joining,
    Limits,
    Processes,
    Rehearsal,
    Settings,
    SuperLink,
    descendants,
    follow_events,
    free_port,
    make_key_for_node,
    make_node_key,
    make_server_keys,
    reason_in,
    rehearse,
    start_node,
    write_job,
)
from fedrec.errors import FedrecError
from fedrec_studies.trials.faults import CONFIG, NODES, Case, Outcome

SHORT, LONG = 4, 10  # rounds; so many that a node which was away is back before the end
STRANGER = "stranger"
RECEIVING = "Receiving:"  # what a SuperNode writes when a message has come
RESTARTS, SETTLED = 12, 15.0  # tries of a node, and seconds after which one that still runs has been let in
DEADLINE, ASLEEP = 60.0, 90.0  # seconds of a round, and of a node that is paused


class Cluster:
    """A deployment on this machine to which things can be done while it runs."""

    def __init__(
        self, folder: Path, processes: Processes, rehearsal: Rehearsal, limits: Limits, received: bool = False
    ) -> None:
        self.folder, self.processes = folder, processes
        self.out = folder / "run"
        write_job(self.out, rehearsal.terms, limits, rehearsal.attributes, received=received)
        self.states = rehearsal.deal(folder, NODES)
        self.keys = folder / "keys"
        make_server_keys(self.keys, ["127.0.0.1"])
        self.port = free_port()
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.events: list[dict[str, Any]] = []
        self.public = [make_key_for_node(state, self.keys) for state in self.states]

    def start_link(self) -> None:
        self.link = SuperLink(
            self.folder / "superlink", Certificates(self.keys), "127.0.0.1", self.port, self.keys, self.processes
        )
        self.link.start()
        for key in self.public:
            self.link.register(key)

    def start_node(self, k: int) -> None:
        self.nodes[k] = self._start(self.states[k], self.keys / "ca.crt", self.keys / self.states[k].name)

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
        folder.mkdir()
        make_node_key(folder / STRANGER)
        Settings.read(self.states[0]).write(folder)
        self._start(folder, ca, folder / STRANGER)

    def _start(self, folder: Path, ca: Path, key: Path) -> subprocess.Popen[bytes]:
        threads = {"OMP_NUM_THREADS": "1"}
        joining = Joining(self.link.address, ca, key, free_port())
        return start_node(folder, joining, self.processes, threads)

    def start(self) -> None:
        self.start_link()
        for k in range(NODES):
            self.start_node(k)
        self.link.run(self.out)

    def until(self, what: str, round: int | None = None, seconds: float = 400.0) -> None:
        """Follow what the server tells until something is told."""
        self.events = []
        for event in follow_events(self.out / EVENTS, seconds):
            self.events.append(event)
            if event["event"] == "failed":
                raise FedrecError(event["reason"])
            if event["event"] == what and (round is None or event.get("round") == round):
                return
        raise FedrecError(f"no '{what}' within {seconds:g} s")

    def until_at_work(self, k: int, seconds: float = 60.0) -> None:
        """Until a node has a message of the server to answer."""
        log, until = self.states[k] / LOG, time.monotonic() + seconds
        before = log.read_text(errors="replace").count(RECEIVING)
        while log.read_text(errors="replace").count(RECEIVING) == before:
            if time.monotonic() > until:
                raise FedrecError(f"node {k} was given nothing to do within {seconds:g} s")
            time.sleep(0.05)

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text(encoding="utf-8"))
        return found

    def last_round(self) -> int:
        """Nodes that took part in it."""
        return next((int(event["nodes"]) for event in reversed(self.events) if event["event"] == "round"), 0)

    def describe(self) -> str:
        words = [str(event["reason"]) for event in self.events if event["event"] == "refused"]
        words += [f"going on from round {event['round'] + 1}" for event in self.events if event["event"] == "resumed"]
        return words[0][:140] if words else "-"


def kill_tree(pid: int) -> None:
    """A process and all below it, at once."""
    for one in [pid, *descendants(pid)]:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def _node_killed(cluster: Cluster) -> str:
    cluster.start()
    cluster.until("round", 0)
    cluster.until_at_work(0)
    kill_tree(cluster.nodes[0].pid)
    cluster.until("round", 1)
    cluster.restart_node(0)
    cluster.until("finished")
    return "rounds ended without it; it was restarted and came back"


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


def _pause_node(cluster: Cluster) -> str:
    cluster.start()
    cluster.until("round", 0)
    cluster.until_at_work(0)
    frozen = [cluster.nodes[0].pid, *descendants(cluster.nodes[0].pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    threading.Timer(ASLEEP, _wake, (frozen,)).start()
    cluster.until("finished", seconds=500)
    return "rounds ended at the deadline without it"


def _wake(pids: Sequence[int]) -> None:
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


REAL: Mapping[str, tuple[Callable[[Cluster], str], int]] = {
    "SIGKILL of a node in a round": (_node_killed, LONG),
    "SIGKILL of the SuperLink": (_link_killed, SHORT),
    "SIGKILL of everything, restarted": (_both_restarted, SHORT),
    "paused node (SIGSTOP)": (_pause_node, LONG),
    "unregistered key": (_stranger, SHORT),
    "wrong certificate": (_wrong_certificate, SHORT),
}
"""By name what is done, and the rounds of the run."""


def with_processes(only: str | None = None) -> Iterator[Outcome]:
    """Every fault of processes, keys and certificates, one after the other."""
    with tempfile.TemporaryDirectory(prefix="fedrec-faults-") as calm:
        Case(Path(calm)).run()  # kernels are compiled once, not by all nodes at the same time within a deadline
    for name, (fault, rounds) in REAL.items():
        if only is not None and only not in name:
            continue
        place = tempfile.TemporaryDirectory(prefix="fedrec-faults-", ignore_cleanup_errors=True)
        with place as folder, Processes() as processes:
            rehearsal = rehearse(replace(CONFIG, rounds=rounds))
            cluster = Cluster(Path(folder), processes, rehearsal, Limits(DEADLINE, 1, NODES, 240.0))
            try:
                happened = fault(cluster)
                about, last = cluster.summary()["deployment"], cluster.last_round()
                happened += f"; {last} of {NODES} nodes in the last round, {about['tested_users']} users tested"
                lost = about["lost"]
                yield Outcome(name, happened, f"{lost} uploads" if lost else "nothing", _message_of(name, cluster))
            except FedrecError as error:
                yield Outcome(name, f"FAILED: {error}", "-", cluster.describe())


def _message_of(name: str, cluster: Cluster) -> str:
    if name in ("unregistered key", "wrong certificate"):
        return reason_in(cluster.folder / STRANGER / LOG)[:140]
    return cluster.describe()
