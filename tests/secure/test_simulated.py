"""Secure sums in a simulation: the same numbers to fixed point, lost uploads recovered, all messages counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrec
from fedrec.errors import FedrecError
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import parse_stages
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.reference.local import Local
from fedrec.methods.reference.popularity import Popularity
from fedrec.secure.simulated import SimulatedSums, simulated_sums
from fedrec.testing import assert_close, run, tiny_world

FEDMF = FedMF(dim=4, lr=1.0, batch=16)


def blind(method: str = "fedmf", lost: float = 0.0, bits: int | None = None) -> Any:
    return simulated_sums(method, lost, torch.device("cpu"), bits)


def world(clients: int = 30, **options: Any) -> ClientData:
    return tiny_world(per_user=[3 + k % 5 for k in range(clients)], **options)


def test_lost_uploads_are_recovered() -> None:
    data, lossy = world(), {"lost_uploads": 0.15}
    clear = run(FEDMF, data, 3, **lossy)
    assert_close(run(FEDMF, data, 3, blind=blind(lost=0.15), **lossy), clear, 1e-7, "with secure sums")
    assert not torch.equal(clear["server.item"], run(FEDMF, data, 3)["server.item"]), "some were lost"


def test_a_round_with_too_few_uploads_is_given_up_and_changes_nothing() -> None:
    simulator = Simulator(FEDMF, world(), lost_uploads=0.9, blind=blind(lost=0.2))
    before = simulator.server["item"].clone()
    log = simulator.round(0)
    assert torch.equal(simulator.server["item"], before)
    assert log.lost == 30


@pytest.mark.parametrize("stages", ["clip=0.5,gaussian=0.1", "clip=1,quantise=8", "laplace=0.05"])
def test_noise_and_other_stages_come_before_fixed_point(stages: str) -> None:
    data, how = world(), {"stages": parse_stages(stages)}
    assert_close(run(FEDMF, data, 2, blind=blind(), **how), run(FEDMF, data, 2, **how), 1e-7, stages)


def test_noise_on_the_sum_is_every_clients_share() -> None:
    """Each client adds its own: together it has the deviation that was asked for."""
    data = world(40, items=400)
    how = {"stages": parse_stages("clip=3,sum-gaussian=2"), "blind": blind("popularity")}
    without = run(Popularity(), data, 1, stages=parse_stages("clip=3"))["server.popularity"]
    noise = run(Popularity(), data, 1, **how)["server.popularity"] - without
    assert abs(float(noise.std()) - 2) < 0.25
    assert abs(float(noise.mean())) < 0.4


def test_every_message_is_counted() -> None:
    data = world(items=400)
    simulator, clear = Simulator(FEDMF, data, blind=blind()), Simulator(FEDMF, data)
    logs = simulator.round(0), clear.round(0)
    entries = 400 * 4 + 1
    assert logs[0].bytes_up > 30 * 8 * entries
    per_client = simulator.wire.ledger.per_client_round()
    assert 8 * entries < per_client["largest_up"] < 8 * entries + 1024, "the masked upload"
    assert per_client["up_per_client_round"] > 8 * entries + 1000, "keys and shares beside it"
    assert logs[0].bytes_down > logs[1].bytes_down
    assert list(simulator.wire.ledger.uploads) == list(clear.wire.ledger.uploads)


def test_a_method_that_sends_nothing_makes_no_sum() -> None:
    simulator = Simulator(Local(dim=4, lr=1.0, batch=16), world(), blind=blind("local"))
    log = simulator.round(0)
    assert log.bytes_up == 0
    assert log.lost == 0


def test_few_clients_are_refused() -> None:
    sums = Simulator(FEDMF, tiny_world(), blind=blind()).blind
    assert isinstance(sums, SimulatedSums)
    with pytest.raises(FedrecError, match="2 clients upload in round 1, but a secure sum hides nobody"):
        sums.begin(np.arange(2), 0)


def test_numbers_beyond_the_range_end_the_run_with_what_to_change() -> None:
    with pytest.raises(FedrecError, match=r"'item' holds .* lower --secure-bits"):
        run(FEDMF, world(), 1, blind=blind(bits=52), stages=parse_stages("gaussian=1000"))


# -- the command --

SMALL = ("--data", "synthetic", "--rounds", "2", "--set", "dim=4", "-q")


def test_the_command_gives_the_same_metrics(cli: Callable[..., Any], tmp_path: Path) -> None:
    found = []
    for flags in ((), ("--secure-sums",)):
        out = tmp_path / f"run{len(flags)}"
        assert cli("run", "fedmf", *SMALL, *flags, "--out", str(out)).code == 0
        found.append(json.loads((out / "summary.json").read_text()))
    assert found[0]["test"] == pytest.approx(found[1]["test"], abs=1e-6)
    assert any("secure sums" in note for note in found[1]["notes"])
    assert not any("secure sums" in note for note in found[0]["notes"])


def test_what_cannot_be_blind_is_refused_by_name(cli: Callable[..., Any]) -> None:
    for words, message in (
        (("fedca",), "fedca needs each client's own upload, which secure sums hide; use one of popularity, "),
        (("mf",), "mf is centralised"),
        (("fedmf", "--secure-bits", "60"), "secure-bits 60 is not in 1 to 52"),
        (("fedmf", "--lost-uploads", "0.6"), "cannot be planned for 60% lost uploads"),
    ):
        ended = cli("run", *words, *SMALL, "--secure-sums")
        assert ended.code == 2
        assert message in ended.err
        assert ended.err.count("\n") == 1
    assert "--secure-bits also needs --secure-sums" in cli("run", "fedmf", *SMALL, "--secure-bits", "30").err


def test_the_list_of_methods_says_who_can_be_blind(cli: Callable[..., Any]) -> None:
    shown = cli("methods").out
    assert "blind server" in shown
    by_name = {line.split()[0]: line.split()[-1] for line in shown.splitlines() if line.split()}
    assert [by_name[name] for name in ("fedmf", "fedca", "fedgram", "popularity")] == ["yes", "no", "needed", "needed"]
    assert "blind server: yes, with --secure-sums" in cli("methods", "fedmf").out
    assert "blind server: no" in cli("methods", "fedca").out
    assert "blind server: needed" in cli("methods", "popularity").out


def test_a_method_that_needs_secure_sums_says_so(tmp_path: Path) -> None:
    small = {"config": {"secure_sums": True}}
    plain, secure = (fedrec.run("popularity", "synthetic", **options) for options in ({}, small))
    assert any("needs secure sums, which are assumed here" in note for note in plain.summary["notes"])
    assert plain.test == pytest.approx(secure.test)
