"""A federation: its nodes, who answered, what was refused, how it went, from what its server writes down.

A server writes what happens into `events.jsonl`, and whom it let in into `nodes.json`. Of a rehearsal on one machine
the nodes' own audit logs lie beside it, and are counted.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedrec.errors import visible_line
from fedrec.report import charts
from fedrec.report.charts import Line
from fedrec.schema import COUNT, NUMBER, TEXT, Shape, check, is_number, json_line

NODES: list[Shape] = [{"name": TEXT, "start": COUNT, "clients": COUNT, "users": COUNT, "interactions": COUNT}]
EVENT: Shape = {"time": NUMBER, "event": TEXT}
ASKED: Shape = {"time": NUMBER}
SHOWN = 60  # events of the log that the page shows, the latest first
LONGEST = 32 << 20  # bytes of a log that are read, its end
NOTED = ("joined", "left", "refused", "repeated", "given up", "failed", "resumed", "finished", "note")
"""Events worth a line of their own; rounds and scores are in the curves."""


@dataclass
class Node:
    """A node as the server knows it. `present`: whether it has joined and not left since."""

    name: str
    clients: int = 0
    users: int = 0
    interactions: int = 0
    present: bool = False
    joined: int = 0
    left: int = 0
    refused: int = 0
    since: float | None = None
    """When it came or went last."""


@dataclass
class Federation:
    """What the log of a server says."""

    nodes: dict[str, Node] = field(default_factory=dict)
    rounds: int | None = None
    answered: list[tuple[int, int]] = field(default_factory=list)
    """Of each round, how many nodes answered."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Refusals by their reason."""
    repeated: int = 0
    lost: int = 0
    # A deque with a limit drops the oldest by itself.
    noted: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=SHOWN))
    health: str = ""

    def take(self, event: Mapping[str, Any]) -> None:
        """Take in one event, the oldest first."""
        what, when = event["event"], float(event["time"])
        if what in NOTED:
            self.noted.appendleft({"time": when, "event": what, "text": _in_words(event)})
        if what in ("joined", "left"):
            self._move(str(event.get("node")), what == "joined", when)
        elif what == "refused":
            # Reasons come from strangers' machines, so control characters go and the length is limited.
            self.reasons[visible_line(str(event.get("reason", "no reason")))[:300]] += 1
            if (node := self.nodes.get(str(event.get("node")))) is not None:
                node.refused += 1
        elif what == "round" and is_number(event.get("round")) and is_number(event.get("nodes")):
            self.answered.append((int(event["round"]) + 1, int(event["nodes"])))
            self.lost += int(event["lost"]) if is_number(event.get("lost")) else 0
            self.rounds = int(event["rounds"]) if is_number(event.get("rounds")) else self.rounds
        self.repeated += what == "repeated"
        self.health = {"failed": "failed", "finished": "finished", "round": ""}.get(what, self.health)

    def _move(self, name: str, present: bool, when: float) -> None:
        node = self.nodes.setdefault(name, Node(name))
        node.present, node.since = present, when
        node.joined += present
        node.left += not present


def view_federation(folder: Path, at_work: bool) -> dict[str, Any] | None:
    """Describe the federation of a run folder; None where the folder is that of a simulation."""
    if not (folder / "nodes.json").is_file() and not (folder / "events.jsonl").is_file():
        return None
    found = Federation()
    for event in read_lines(folder / "events.jsonl", EVENT):
        found.take(event)
    note = _take_nodes(found, folder / "nodes.json")
    asked = max((nodes for _, nodes in found.answered), default=0)
    return {
        "nodes": sorted(found.nodes.values(), key=lambda node: node.name),
        "note": note,
        "present": sum(node.present for node in found.nodes.values()) if at_work else 0,
        "at_work": at_work,
        "rounds": found.rounds,
        "reasons": found.reasons.most_common(),
        "facts": [
            ("nodes let in", len(found.nodes)),
            ("answered in the last round", f"{found.answered[-1][1]} of {len(found.nodes)}" if found.answered else "–"),
            ("refused", sum(found.reasons.values())),
            ("uploads lost", found.lost),
            ("turns repeated", found.repeated),
            ("health", _judge(found, at_work)),
        ],
        "chart": _chart(found) if len(found.answered) > 1 and asked else "",
        "events": list(found.noted),
        "audits": read_audits(folder),
    }


def read_lines(path: Path, shape: Shape) -> Iterable[dict[str, Any]]:
    """Give the lines of a log that are what they should be; of a very long one those at its end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            # Into the middle of a line, perhaps: the first one is then no JSON and is passed over.
            file.seek(max(0, size - LONGEST))
            for line in file:
                record = json_line(line.decode(errors="replace"), shape)
                if record is not None:
                    yield record
    except OSError:
        return


def read_audits(folder: Path) -> list[dict[str, Any]]:
    """Count what the nodes of a rehearsal have written into their own audit logs; nothing where they are elsewhere."""
    beside = folder.with_name(f"{folder.name}-nodes")
    audits = []
    for path in sorted(beside.glob("*/audit.jsonl")):
        lines = list(read_lines(path, ASKED))
        if lines:
            audits.append(
                {
                    "node": path.parent.name,
                    "messages": len(lines),
                    "received": sum(line["received"] for line in lines if is_number(line.get("received"))),
                    "sent": sum(line["sent"] for line in lines if is_number(line.get("sent"))),
                    "refused": sum("refused" in line for line in lines),
                    "last": lines[-1]["time"],
                }
            )
    return audits


def _take_nodes(found: Federation, path: Path) -> str:
    """Add what is known of each node; returns what a reader should know where that cannot be read."""
    try:
        nodes = json.loads(path.read_text(encoding="utf-8"))
        check("nodes", nodes, NODES)
    # Missing, private and damaged are different to whoever has to mend it.
    except FileNotFoundError:
        return "No node has been let in yet."
    except PermissionError:
        return "nodes.json can be read by its owner only."
    except (OSError, ValueError, RecursionError):
        return "nodes.json is damaged, or being written."
    for told in nodes:
        node = found.nodes.setdefault(told["name"], Node(told["name"]))
        node.clients, node.users, node.interactions = told["clients"], told["users"], told["interactions"]
    return ""


def _judge(found: Federation, at_work: bool) -> str:
    """Say in a word how it stands."""
    if found.health:
        return found.health
    if not at_work:
        return "stopped"
    gone = sum(not node.present for node in found.nodes.values())
    return f"{gone} of {len(found.nodes)} nodes are away" if gone else "all nodes are there"


def _in_words(event: Mapping[str, Any]) -> str:
    """Particulars of an event in one line: figures of users and rounds are elsewhere on the page."""
    parts = []
    for name, value in event.items():
        if name not in ("time", "event", "unknown", "test", "users") and not isinstance(value, dict | list):
            parts.append(f"{name} {value}")
    return visible_line(", ".join(parts))[:400]


def _chart(found: Federation) -> Markup:
    rounds, nodes = zip(*found.answered, strict=True)
    line = Line("", rounds, nodes, style="s0", stairs=True)
    return Markup(
        charts.line_chart([line], title="Nodes that answered per round", x_label="round", y_label="nodes", y_zero=True)
    )
