"""The process of a node that stays between messages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.town import Town, settings
from fedrec.deploy.framing import frame, unframe
from fedrec.deploy.resident_process import ADDRESS, Unexpected, ask, staying
from waiting import GENEROUS


def test_messages_are_answered_by_the_process_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole deployment by it gives what nodes without it give; processor time of the way there is counted."""
    town, plain = (Town(settings("fedmf", rounds=2), tmp_path / name, nodes=1) for name in ("warm", "plain"))
    with staying(town.states[0]) as env:
        monkeypatch.setenv(ADDRESS, env[ADDRESS])
        replies = []

        def handed_over(message: bytes) -> bytes:
            reply = ask(message)
            assert reply is not None
            replies.append(unframe(reply)[0]["cpu"])
            return reply

        town.hosts[10] = handed_over
        assert town.server().run()["test"] == plain.server().run()["test"]
    assert len(replies) == 1 + 2 + 2
    assert min(replies) > 0
    assert ask(b"") is None  # it is gone
    monkeypatch.delenv(ADDRESS)
    assert ask(b"") is None  # there never was one


def test_what_goes_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(settings("fedmf", rounds=2), tmp_path, nodes=1)
    with staying(town.states[0]) as env:
        monkeypatch.setenv(ADDRESS, env[ADDRESS])
        assert "nodes do not know this message" in unframe(ask(frame({"kind": "?"})) or b"")[0]["error"]
        with pytest.raises(Unexpected, match="KeyError"):
            ask(frame({"kind": "turn"}))
        reply = ask(frame({"kind": "hello"}, [town.rehearsal.terms.encode()]))  # and it goes on
        assert unframe(reply or b"")[0]["clients"] > 0


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="Flower is not installed")
def test_what_flower_starts_for_a_message_loads_no_torch() -> None:
    script = (
        "import sys, fedrec.deploy.flower_app; print(sorted({'torch', 'numba', 'polars', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=GENEROUS)
    assert done.stdout.strip() == "[]", done.stderr
