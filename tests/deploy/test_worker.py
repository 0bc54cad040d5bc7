"""A node's worker ends with its SuperNode, whatever it was about to ask."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from deploy.town import Town, settings
from fedrec.deploy.flower_worker import Worker
from fedrec.deploy.node import NodeHost
from fedrec.serve.web_server import listen


class Ending(subprocess.Popen[bytes]):
    """A SuperNode that ends while the worker asks it for work."""

    def __init__(self) -> None:
        self.codes: list[int | None] = [None]

    def poll(self) -> int | None:
        return self.codes.pop() if self.codes else 7

    def __del__(self, *_: Any) -> None:
        """There is no process to wait for."""


def test_it_sees_that_its_supernode_has_ended() -> None:
    with listen() as opened:
        address = f"127.0.0.1:{opened.getsockname()[1]}"
    worker = Worker(address, b"secret", ["hash"], lambda message, spent: message, lambda reason: None)
    assert worker.work(Ending()) == 7


def test_it_ends_when_the_federation_has() -> None:
    class Waiting(Ending):
        ended = False

        def poll(self) -> int | None:
            return None

        def terminate(self) -> None:
            self.ended = True

    with listen() as opened:
        address = f"127.0.0.1:{opened.getsockname()[1]}"
    worker = Worker(address, b"secret", ["hash"], lambda message, spent: message, lambda reason: None)
    node = Waiting()
    assert worker.work(node, lambda: True, patience=1) == 0
    assert node.ended


def test_a_node_says_how_far_it_is_and_knows_the_end(tmp_path: Path) -> None:
    town, lines = Town(settings("fedmf", rounds=2), tmp_path), list[str]()
    host = NodeHost(town.states[0], say=lines.append)
    town.hosts[10] = host.handle
    town.server().run()
    assert [line.partition(":")[0] for line in lines[:2]] == ["round 1 of 2", "round 2 of 2"]
    assert lines[2].startswith("the chosen round was tested here")
    assert (host.is_finished, len(lines)) == (True, 3)
