"""A federation as its server has written it down: who came and went, what was refused and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.board.federation_view import read_audits, view_federation


def write_events(folder: Path, *events: dict[str, Any]) -> None:
    lines = [json.dumps({"time": 1000.0 + number, **event}) for number, event in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_nodes(folder: Path, *names: str) -> None:
    nodes = [{"name": name, "start": 0, "clients": 3, "users": 3, "interactions": 9, "given": 3} for name in names]
    (folder / "nodes.json").write_text(json.dumps(nodes), encoding="utf-8")


def joined(name: str) -> dict[str, Any]:
    return {"event": "joined", "node": name, "clients": 3, "users": 3}


def ended(number: int, nodes: int) -> dict[str, Any]:
    return {"event": "round", "round": number, "rounds": 9, "nodes": nodes, "lost": 3 - nodes, "seconds": 1.0}


def test_a_simulation_is_none(tmp_path: Path) -> None:
    assert view_federation(tmp_path, True) is None


def test_one_of_three_nodes_is_killed_and_comes_back(tmp_path: Path) -> None:
    write_nodes(tmp_path, "a", "b", "c")
    gone = [*map(joined, "abc"), ended(0, 3), {"event": "left", "node": "b"}, ended(1, 2)]
    write_events(tmp_path, *gone)
    found = view_federation(tmp_path, True)
    assert found is not None
    assert {node.name: node.present for node in found["nodes"]} == {"a": True, "b": False, "c": True}
    facts = dict(found["facts"])
    assert (facts["answered in the last round"], facts["health"]) == ("2 of 3", "1 of 3 nodes are away")
    assert facts["uploads lost"] == 1
    write_events(tmp_path, *gone, joined("b"), ended(2, 3))
    found = view_federation(tmp_path, True)
    assert found is not None
    assert (found["present"], dict(found["facts"])["health"]) == (3, "all nodes are there")
    (node,) = (node for node in found["nodes"] if node.name == "b")
    assert (node.joined, node.left, node.clients) == (2, 1, 3)
    assert [event["event"] for event in found["events"]][:2] == ["joined", "left"]


def test_refusals_are_counted_by_reason_and_node(tmp_path: Path) -> None:
    write_nodes(tmp_path, "a")
    refused = {"event": "refused", "node": "a", "reason": "item: not finite"}
    write_events(tmp_path, joined("a"), refused, refused, {"event": "refused", "node": "node 7", "reason": "late"})
    found = view_federation(tmp_path, True)
    assert found is not None
    assert found["reasons"] == [("item: not finite", 2), ("late", 1)]
    assert found["nodes"][0].refused == 2


@pytest.mark.parametrize("text", ["", "nonsense\n", '{"event": 3}\n', '{"time": 1, "event": "round"}\n', "\x00" * 100])
def test_a_damaged_log_is_passed_over(tmp_path: Path, text: str) -> None:
    write_nodes(tmp_path, "a")
    (tmp_path / "events.jsonl").write_text(text, encoding="utf-8")
    found = view_federation(tmp_path, False)
    assert found is not None
    assert dict(found["facts"])["health"] == "stopped"


def test_damaged_nodes_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text('[{"name": 3}]', encoding="utf-8")
    found = view_federation(tmp_path, True)
    assert found is not None
    assert "damaged" in found["note"]


def test_the_end_of_a_failed_federation_is_its_health(tmp_path: Path) -> None:
    write_nodes(tmp_path, "a")
    write_events(tmp_path, joined("a"), ended(0, 1), {"event": "failed", "reason": "no nodes"})
    found = view_federation(tmp_path, False)
    assert found is not None
    assert dict(found["facts"])["health"] == "failed"
    assert found["events"][0]["text"] == "reason no nodes"


def test_audit_logs_of_a_rehearsal_are_counted(tmp_path: Path) -> None:
    node = tmp_path / "run-nodes" / "node-0"
    node.mkdir(parents=True)
    lines = [{"time": 1.0, "received": 10, "sent": 20}, {"time": 2.0, "received": 5, "sent": 1, "refused": "why"}]
    (node / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"tim', encoding="utf-8")
    assert read_audits(tmp_path / "run") == [
        {"node": "node-0", "messages": 2, "received": 15, "sent": 21, "refused": 1, "last": 2.0}
    ]
