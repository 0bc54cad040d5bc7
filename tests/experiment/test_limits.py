"""A run that cannot be held in memory is refused before it begins, in one line that says what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment import limits, machine
from fedrec.experiment.limits import needs_of, require_room, require_room_for_uploads
from fedrec.federation.contract import Method
from fedrec.federation.simulator import Simulator
from fedrec.methods import built_in
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.mixture.fedca import FedCA
from fedrec.testing import tiny_world

from . import SMALL

CPU = torch.device("cpu")


def with_room(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(limits, "memory_of", lambda device: size)


@pytest.mark.parametrize("method", ["fedmf", "gpfedrec", "fedca", "pfedgraph"])
def test_what_no_machine_holds_is_refused_in_one_line(cli: Cli, tmp_path: Path, method: str) -> None:
    outcome = cli("run", method, "--set", "dim=100000000", "--data", SMALL, "--out", "run")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), outcome
    assert f"{method} needs at least" in outcome.err
    assert "lower dim (100000000)" in outcome.err, "also where the bytes are more than can be counted"
    assert not (tmp_path / "run").exists()


def test_the_line_names_the_setting_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch, 1 << 14)
    with pytest.raises(FedrecError, match=r"lower dim \(64\) or use data with fewer users or items"):
        require_room(FedMF(dim=64), tiny_world())


@pytest.mark.parametrize("kind", built_in(), ids=lambda kind: kind.info.name)
def test_what_is_counted_is_what_is_held(kind: type[Method]) -> None:
    """Without making any of it: the server and the clients of every method, byte by byte."""
    method = kind()
    data = tiny_world(silos=(12,) if method.info.centralised else None, dtype=torch.float32)
    attributes = None if method.disclosure.attributes == "none" else torch.rand(data.world.items, 8)
    held = needs_of(method, data, attributes).parts
    simulator = Simulator(method, data, attributes=attributes)
    assert held["the server"] == sum(value.numel() * value.element_size() for value in simulator.server.values())
    assert held["client state"] == simulator.client_side.state_bytes()[0]


def test_gathered_uploads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(FedCA(dim=8), tiny_world(dtype=torch.float32))
    server = sum(value.numel() * value.element_size() for value in simulator.server.values())
    held = server + simulator.client_side.state_bytes()[0]
    with_room(monkeypatch, held + 12 * 40 * 8 * 4 - 1)
    with pytest.raises(FedrecError, match=r"gathered uploads .*--participation"):
        require_room_for_uploads(simulator)
    with_room(monkeypatch, 2 * (held + 12 * 40 * 8 * 4))
    require_room_for_uploads(simulator)
    summing = Simulator(FedMF(dim=8), tiny_world(dtype=torch.float32))
    with_room(monkeypatch, server + held)
    require_room_for_uploads(summing)  # sums are folded in as they come


def test_processes_share_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    method, data = FedMF(dim=64), tiny_world(dtype=torch.float32)
    with_room(monkeypatch, int(1.5 * needs_of(method, data).total))
    require_room(method, data)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(FedrecError, match="fedmf needs"):
        require_room(method, data)


def test_small_runs_are_not_looked_at_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "needs_of", lambda *_: pytest.fail("it looked"))
    require_room(FedMF(dim=4), tiny_world())


def test_a_limit_on_the_process_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    physical = machine.memory_of(CPU)
    assert physical is None or physical > 1 << 28
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(machine, "CGROUPS", (tmp_path / "memory.max", tmp_path / "none"))
    assert machine.memory_of(CPU) == 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert (machine.memory_of(CPU) or 0) != 1 << 20


def test_one_clients_work_counts() -> None:
    """A client's samples, and the scores of one user: what no size of chunks can avoid."""
    data = tiny_world(dtype=torch.float32)
    method = replace(FedMF(dim=4), batch=16)
    footprint = method.footprint(data.world)
    assert needs_of(method, data).parts["working memory"] >= 15 * 5 * footprint.sample
