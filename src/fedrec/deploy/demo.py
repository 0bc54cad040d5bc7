"""A whole deployment on this machine, for the occasion: a SuperLink, some SuperNodes, certificates and keys."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedrec.data.atomic import make_private_folder
from fedrec.deploy.flower import LOG, Certificates, Joining, SuperLink, free_port, last_line
from fedrec.deploy.job import EVENTS, write_job
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.deploy.link import Limits
from fedrec.deploy.node import Settings
from fedrec.deploy.node_process import start_node
from fedrec.deploy.processes import Processes
from fedrec.deploy.rehearsal import Rehearsal
from fedrec.errors import FedrecError

Show = Callable[[dict[str, Any]], None]
HOST = "127.0.0.1"


def demo(rehearsal: Rehearsal, out: Path, nodes: int, limits: Limits, show: Show) -> None:
    """Run it to the end, or until it fails; either way no process is left."""
    beside = out.with_name(out.name + "-nodes")
    if beside.exists():
        raise FedrecError(f"{beside} contains the nodes of another demo; choose another --out, or remove it")
    write_job(out, rehearsal.terms, limits, rehearsal.attributes)
    make_private_folder(beside)
    states = rehearsal.deal(beside, nodes)
    keys = beside / "keys"
    make_server_keys(keys, [HOST, "localhost"])
    with Processes() as processes:
        link = SuperLink(beside / "superlink", Certificates(keys), HOST, free_port(), keys, processes)
        link.start()
        show({"event": "started", "address": link.address, "pid": link.process.pid})
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // nodes))}
        started: dict[str, subprocess.Popen[bytes]] = {}
        for state in states:
            link.register(make_key_for_node(state, keys))
        for state in states:
            joining = Joining(link.address, keys / "ca.crt", keys / state.name, free_port())
            started[state.name] = start_node(state, joining, processes, threads)
            show({"event": "node", "name": state.name, "pid": started[state.name].pid})
        link.run(out)
        for event in follow(out / EVENTS, link, started, beside):
            show(event)


def make_key_for_node(state: Path, keys: Path) -> Path:
    """Make a node's key, which also signs its secure sums, and return the public one; its peers' keys lie beside it."""
    public = make_node_key(keys / state.name)
    replace(Settings.read(state), key=keys / state.name, peers=keys).write(state)
    return public


def follow(
    events: Path,
    link: SuperLink,
    nodes: dict[str, subprocess.Popen[bytes]],
    folder: Path,
    begin: int = 0,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Yield what the server reports and which processes ended, until the work is done; raise where it fails."""
    gone = set[str]()
    while True:
        meanwhile()
        begin, lines = _new_lines(events, begin)
        for line in lines:
            event = json.loads(line)
            if event["event"] == "failed":
                raise FedrecError(event["reason"])
            yield event
            if event["event"] == "finished":
                return
        if link.process.poll() is not None:
            raise FedrecError(
                f"the SuperLink stopped (code {link.process.returncode}): {last_line(link.home / 'superlink.log')}"
            )
        for name, process in nodes.items():
            if process.poll() is not None and name not in gone:
                gone.add(name)
                log = folder / name / LOG
                yield {"event": "died", "node": name, "code": process.returncode, "log": last_line(log)}
        if nodes and len(gone) == len(nodes):
            raise FedrecError(f"all nodes have stopped; see {folder}/*/node.log")
        time.sleep(0.2)


def follow_events(path: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what a server reports, as it comes, for so many seconds."""
    begin, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        begin, lines = _new_lines(path, begin)
        yield from map(json.loads, lines)
        time.sleep(0.1)


def _new_lines(path: Path, begin: int) -> tuple[int, list[str]]:
    """Read whole lines written since; a line that is still being written is left for the next time."""
    if not path.exists():
        return begin, []
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return begin + len(whole), whole.decode("utf-8").splitlines()
