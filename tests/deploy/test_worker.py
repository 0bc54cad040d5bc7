"""A node's worker ends with its SuperNode, whatever it was about to ask."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedrec.deploy.flower_worker import Worker
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
