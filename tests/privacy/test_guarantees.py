"""What a run that prints an epsilon really gives away: every byte that leaves, in every round, of every client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedrec
from conftest import Cli
from fedrec.commands.progress import Pace, Plain
from fedrec.errors import FedrecError
from fedrec.experiment import observers
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.observers import Observer
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import (
    Cohort,
    Down,
    Gather,
    Mean,
    Method,
    MethodInfo,
    Plan,
    Reduction,
    State,
    Sum,
    Tensors,
    World,
)
from fedrec.federation.loop import Progress, Rules
from fedrec.federation.schema import preview_names
from fedrec.federation.simulator import RoundLog, Simulator
from fedrec.federation.stages import parse_stages
from fedrec.methods import FedMF, FedRKG, methods
from fedrec.privacy.accountant import NOT_COVERED, delta_of, epsilon_of, epsilon_of_rho
from fedrec.privacy.own_noise import sentence
from fedrec.testing import tiny_world

SMALL = "synthetic@users=60+items=100+interactions=1200+seed=1"
BUDGET = ("--privacy", "clip=1", "--epsilon", 4, "--delta", 1e-5)
NOISE = parse_stages("clip=1,gaussian=1")


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


# -- what no noise reaches --


@pytest.mark.parametrize(
    ("settings", "part", "remedy"),
    [
        (("shares=equal", "complementarity=left-local"), "the lengths of 'picture'", "complementarity=right-greedy"),
        (("shares=equal", "complementarity=left-global"), "'picture_items'", "complementarity=right-greedy"),
        (("complementarity=right-greedy",), "'samples'", "shares=equal"),
    ],
)
def test_a_budget_refuses_what_no_noise_reaches(
    cli: Cli, tmp_path: Path, settings: Sequence[str], part: str, remedy: str
) -> None:
    """The lengths of FedCA's left vectors are the exact numbers of items of every client."""
    words = [word for setting in ("dim=4", "epochs=1", *settings) for word in ("--set", setting)]
    outcome = cli("run", "fedca", "--data", SMALL, "--rounds", 2, *words, *BUDGET, "--out", "run")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), outcome
    assert part in outcome.err
    assert f"so no epsilon holds; add --set {remedy}" in outcome.err
    assert not (tmp_path / "run").exists()


def test_without_a_budget_it_is_counted_and_said(cli: Cli, tmp_path: Path) -> None:
    words = ("--set", "shares=equal", "--set", "complementarity=left-local", "--set", "dim=4", "--set", "epochs=1")
    outcome = cli(
        "run",
        "fedca",
        "--data",
        SMALL,
        "--rounds",
        2,
        *words,
        "--privacy",
        "clip=1,gaussian=9",
        "--quiet",
        "--out",
        "run",
    )
    assert outcome.code == 0, outcome
    privacy = summary(tmp_path / "run")["privacy"]
    assert privacy["epsilon"] is None
    uploads = 2 * int(0.6 * summary(tmp_path / "run")["clients"])
    assert privacy["unprotected_bytes"] == {"the lengths of 'picture'": 8 * uploads}
    assert "no noise reaches the lengths of 'picture'" in outcome.out
    assert f"without noise, over all clients and rounds: the lengths of 'picture' {8 * uploads:,}" in outcome.out
    assert cli("report", "run").code == 0
    assert (
        "without noise, over all clients and rounds: the lengths of &#39;picture&#39;"
        in (tmp_path / "run" / "report.html").read_text()
    )


@dataclass(frozen=True)
class Late(FedMF):
    """Sends how many items a client has, from the second round on."""

    info: ClassVar[MethodInfo] = MethodInfo("late")

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        state, payload = super().local(state, down, chunk, round)
        return state, payload | ({"items": Gather(chunk.tensor(chunk.positives))} if round else {})


def test_what_comes_up_later_is_stopped_at_the_door(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": SMALL, "rounds": 3, "dim": 4}
    with pytest.raises(FedrecError, match=r"late sends 'items' without noise \(round 2\), so no epsilon holds"):
        fedrec.run(Late, **options, privacy="clip=1", epsilon=4.0, delta=1e-5)
    by_hand = fedrec.run(Late, **options, privacy="clip=1,gaussian=9").summary
    assert by_hand["privacy"]["epsilon"] is None
    assert by_hand["privacy"]["unprotected_bytes"] == {"'items'": 2 * 8 * by_hand["clients"]}


@dataclass(frozen=True)
class TwoKinds(FedMF):
    """A second cohort weighs its tables."""

    info: ClassVar[MethodInfo] = MethodInfo("two-kinds")

    def cohorts(self, world: World) -> Sequence[Cohort]:
        first, second = np.array_split(np.arange(world.clients), 2)
        return [Cohort("plain", first), Cohort("weighing", second)]

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        state, payload = super().local(state, down, chunk, round)
        weight = chunk.tensor(chunk.positives) if chunk.cohort == "weighing" else None
        return state, {name: Mean(sent.value, weight) for name, sent in payload.items()}


def test_every_cohort_is_looked_at_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulator, "begin", lambda *_: pytest.fail("it trained"))
    with pytest.raises(FedrecError, match="two-kinds sends the weights of 'item' without noise"):
        fedrec.run(TwoKinds, SMALL, rounds=2, dim=4, privacy="clip=1", epsilon=4.0, delta=1e-5)


FEDERATED = [method for method in methods().values() if not method.info.centralised]


@pytest.mark.parametrize("method", FEDERATED, ids=lambda method: method.info.name)
def test_a_method_that_knows_how_to_cover_everything_is_right(method: type[Method]) -> None:
    """With the settings of `covered_with` noise reaches all that is sent."""
    attributes = torch.eye(40, 6).double()
    simulator = Simulator(method(**method().disclosure.covered_with), tiny_world(), NOISE, attributes=attributes)
    sent, unprotected = preview_names(simulator.server_side, simulator.client_setup())
    assert bool(unprotected) == (method.info.name == "pfedgraph"), (sent, unprotected)  # which has no such setting


def neighbours() -> list[ClientData]:
    """The same twelve clients, but for the items of one of them."""
    return [tiny_world(per_user=(3, n, 1, 7, 2, 9, 4, 5, 1, 6, 2, 8)) for n in (15, 5)]


@pytest.mark.parametrize("method", [FedMF(dim=4, lr=1.0), methods()["fedca"](dim=4, shares="equal", epochs=1)])
def test_two_data_sets_of_a_client_are_as_hard_to_tell_apart_as_printed(method: Method) -> None:
    """All that the server gets of client 1, in sums or alone, against the same broadcasts: squared distance by noise
    adds up over rounds, and at the printed epsilon leaves no more than delta."""
    clip, std, rounds, delta = 0.5, 0.8, 3, 1e-5
    both = [Simulator(method, data, parse_stages(f"clip={clip}")) for data in neighbours()]
    square = 0.0
    for number in range(rounds):
        sent = []
        for simulator in both:
            chunk = simulator.data.chunk(np.array([1]))
            members = simulator.cohorts[0]
            down = method.broadcast(simulator.server, chunk.clients, number)
            _, payload = method.local(simulator.client_side._take(members, np.array([1])), down, chunk, number)
            staged = simulator.wire._apply_stages(
                payload, simulator.wire.stages, down, chunk.clients, slice(0, 1), number
            )
            sent.append({name: up.value for name, up in staged.items()})
        square += sum(
            float((one - other).square().sum())
            for one, other in zip(*([_dense(v) for v in up.values()] for up in sent), strict=True)
        )
    assert 0 < square <= rounds * (2 * clip) ** 2
    epsilon = epsilon_of(std / (2 * clip), rounds, delta)
    assert delta_of(std / square**0.5, epsilon) <= delta


def _dense(value: Any) -> torch.Tensor:
    found = value if isinstance(value, torch.Tensor) else value.dense()
    assert isinstance(found, torch.Tensor)
    return found


# -- which round counts --

EARLY_BEST = RunConfig("fedmf", data=SMALL, rounds=6, params={"dim": 8, "lr": 0.04, "optimiser": "adam"})
PRIVATE = replace(EARLY_BEST, privacy="clip=100", epsilon=1e6, delta=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        PRIVATE,
        replace(PRIVATE, patience=1),
        replace(EARLY_BEST, privacy="clip=100,gaussian=0.001", patience=1),
        replace(EARLY_BEST, protocol="honest,patience=1", privacy="clip=100,gaussian=0.001"),
    ],
)
def test_where_an_epsilon_is_printed_validation_decides_nothing(config: RunConfig, tmp_path: Path) -> None:
    """The same training without an epsilon stops early, and another round is the best."""
    plain = execute(replace(config, privacy="clip=100", epsilon=None, delta=None, patience=1)).summary
    assert plain["stopped_early"]
    assert plain["best_round"] < plain["rounds_run"] - 1
    found = execute(config, tmp_path / "run").summary
    assert (found["rounds_run"], found["best_round"], found["stopped_early"]) == (6, 5, False)
    assert found["privacy"]["epsilon"] is not None
    assert found["privacy"]["not_covered"] == NOT_COVERED
    assert any("the last round counts" in note for note in found["notes"])
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all("valid" in line for line in logged), "looking on is still possible"
    assert found["valid"]["ndcg@10"] == pytest.approx(logged[-1]["valid"]["ndcg@10"])


def test_no_best_round_is_spoken_of_where_none_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    line = Plain("fedmf")
    for progress, says in (
        (Progress(), "round 3 of 9\n"),
        (Progress(best_round=1, best_value=0.5), " 0.5000\n"),
    ):
        line.spoken, line.pace = -1e9, Pace(Rules(9))
        line.round(RoundLog(2, 1, 0.0, 0, 0), None, progress)
        assert capsys.readouterr().err.endswith(says)


def test_noise_that_claims_nothing_leaves_the_choice() -> None:
    config = replace(EARLY_BEST, method="fedavg", privacy="clip=100,gaussian=0.001")  # sends sample counts
    found = execute(config).summary
    assert found["privacy"]["epsilon"] is None
    assert found["best_round"] < 5
    assert not any("the last round counts" in note for note in found["notes"])


def test_a_loss_that_settles_ends_no_run_that_prints_an_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training loss passes no noise either."""

    class Settled(Observer):
        settles = True

        def is_settled(self, round: int, before: Any, now: Any) -> bool:
            return round == 1

    monkeypatch.setitem(observers.OBSERVERS, FedMF, lambda method: Settled())
    plain = fedrec.run("fedmf", SMALL, rounds=4, dim=4, privacy="clip=1").summary
    private = fedrec.run("fedmf", SMALL, rounds=4, dim=4, privacy="clip=1", epsilon=4.0, delta=1e-5).summary
    assert (plain["rounds_run"], private["rounds_run"]) == (2, 4)


# -- how often a client uploaded --


def test_epsilon_is_that_of_the_client_with_the_most_uploads(cli: Cli, tmp_path: Path) -> None:
    words = ("run", "fedmf", "--data", SMALL, "--rounds", 20, "--set", "dim=4", "--participation", 0.1)
    outcome = cli(*words, *BUDGET, "--quiet", "--out", "run")
    assert outcome.code == 0, outcome
    run = Run(plan_run(RunConfig("fedmf", data=SMALL, rounds=20, participation=0.1, params={"dim": 4})))
    times = np.zeros(run.world.clients, int)
    for number in range(20):
        times[run.method.plan(run.world, run.simulator.server, number).uploads()] += 1
    privacy = summary(tmp_path / "run")["privacy"]
    assert privacy["uploads"] == times.max() < 20
    assert privacy["planned"]["uploads"] == 20
    assert privacy["planned"]["epsilon"] == pytest.approx(4, rel=1e-5)
    noise = float(privacy["stages"][1].split("scale=")[1].split(",")[0])
    assert privacy["epsilon"] == pytest.approx(epsilon_of_rho(int(times.max()) * 2 / noise**2, 1e-5))
    assert privacy["epsilon"] < privacy["planned"]["epsilon"] <= 4
    assert f"uploaded most often, {times.max()} times; with one upload in each of 20 rounds, epsilon 4" in outcome.out


@dataclass(frozen=True)
class Chosen(Method):
    """Who sent something large is asked again."""

    info: ClassVar[MethodInfo] = MethodInfo("chosen")

    rounds: int = 6

    def init_server(self, world: World, attributes: Any = None) -> Tensors:
        return {"next": torch.zeros(1, dtype=torch.int64), "x": torch.zeros(1)}

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return Plan(np.array([int(server["next"]) % world.clients]))

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return state, {"x": Sum(chunk.tensor(chunk.positives)[:, None].float())}

    def aggregate(self, server: Tensors, ups: Any, round: int) -> Tensors:
        return {"next": server["next"] + (ups["x"] < 0).long(), "x": ups["x"]}

    def score(self, state: State, down: Down, chunk: Chunk, items: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(chunk.users), len(items))


def test_where_uploads_decide_who_uploads_the_bound_of_all_rounds_holds() -> None:
    """How often one was asked is then itself an outcome of the noise: its count cannot stand in for the bound."""
    found = fedrec.run(Chosen, SMALL, privacy="clip=1", epsilon=4.0, delta=1e-5).summary["privacy"]
    assert found["uploads"] < 6
    assert found["epsilon"] == found["planned"]["epsilon"] == pytest.approx(4, rel=1e-5)


def test_a_count_survives_an_interruption(tmp_path: Path) -> None:
    config = RunConfig("fedmf", data=SMALL, rounds=4, participation=0.2, privacy="clip=1,gaussian=1", params={"dim": 4})
    whole = execute(config).summary["privacy"]
    execute(replace(config, rounds=2), tmp_path / "run")
    assert execute(config, tmp_path / "run", resume=True).summary["privacy"] == whole


# -- sums that must be blind --


def test_popularity_sends_the_history_and_so_needs_secure_sums(cli: Cli, tmp_path: Path) -> None:
    data = tiny_world()
    method, chunk = methods()["popularity"](), data.chunk(np.array([1]))
    _, payload = method.local(State(), Down(method.init_server(data.world)), chunk, 0)
    assert np.array_equal(np.flatnonzero(_dense(payload["count"].value)[0, :, 0]), chunk.items)
    assert methods()["popularity"]().disclosure.secure_aggregation
    outcome = cli("run", "popularity", "--data", SMALL, *BUDGET, "--quiet", "--out", "run")
    assert "epsilon 4, delta 1e-05 (of the sum: holds where secure aggregation" in outcome.out
    assert "blind server: needed" in cli("methods", "popularity").out


# -- FedRKG's own noise --

OFTEN: dict[str, Any] = {"dim": 4, "interval": 1, "lr": 1.0, "batch": 16, "rounds": 2, "dp": "gradient", "noise": 1e-9}


def moved_apart(method: FedRKG) -> float:
    """How far apart the second uploads of a client with two data sets of equal size are; noise is next to none."""
    sent = []
    for seed in (0, 1):
        data = tiny_world(per_user=(3, 15, 1, 7, 2, 9, 4, 5, 1, 6, 2, 8))
        if seed:  # client 1 has other items
            items = data.items.copy()
            mine = slice(data.user_ptr[1], data.user_ptr[2])
            items[mine] = (items[mine] + 17) % data.world.items
            items[mine].sort()
            data = replace(data, items=items, history=items.copy())
        simulator = Simulator(method, data)
        simulator.round(0)
        simulator.cohorts[0].state.per_client["item"][np.arange(12) != 1] = 0.5  # the others' share is not its own
        sent.append(_first_upload(simulator))
    return float((sent[0] - sent[1]).norm())


def _first_upload(simulator: Simulator) -> torch.Tensor:
    chunk = simulator.data.chunk(np.array([1]))
    down = simulator.method.broadcast(simulator.server, chunk.clients, 1)
    _, payload = simulator.method.local(
        simulator.client_side._take(simulator.cohorts[0], np.array([1])), down, chunk, 1
    )
    return _dense(payload["item"].value).clone()


def test_a_gate_carries_what_no_noise_covers() -> None:
    """Clipped steps move a table hardly at all; a gate that learns from the items moves it far beyond their bound."""
    small = OFTEN | {"clip": 1e-6, "lr_gate": 50.0, "init_std": 1.0, "beta": 0.5}
    bound = FedRKG(**small).update_sensitivity(2 * 5)
    assert moved_apart(FedRKG(**small, gate=False)) <= bound
    assert moved_apart(FedRKG(**small, gate_epochs=0)) <= bound
    assert moved_apart(FedRKG(**small)) > 1000 * bound


def test_no_epsilon_is_claimed_for_what_a_gate_carries() -> None:
    gated = fedrec.run("fedrkg", SMALL, rounds=2, dim=4, interval=1, dp="gradient", noise=1.0).summary
    assert not any("epsilon =" in note for note in gated["notes"])
    assert any("no epsilon" in note and "gate=false" in note for note in gated["notes"])
    plain = fedrec.run("fedrkg", SMALL, rounds=2, dim=4, interval=1, dp="gradient", noise=1.0, gate=False).summary
    assert any("epsilon =" in note and NOT_COVERED in note for note in plain["notes"])
    assert any("the last round counts" in note for note in plain["notes"])


def test_steps_are_those_of_the_client_with_the_most_batches() -> None:
    """75 samples in batches of 16 are five steps a round, not one."""
    method = FedRKG(**OFTEN | {"gate": False, "clip": 0.1, "noise": 1.0, "rounds": 10, "epochs": 2})
    data = tiny_world()
    assert method.batches(data) == 5
    spent = method.noise_spent(data)
    assert spent is not None
    promise = sentence(spent)
    assert "100 steps" in promise
    assert f"epsilon = {epsilon_of(1.0 / 0.2, 100, 1e-5):.4g}" in promise
    assert "as many batches" in promise


def test_clipped_steps_stay_within_what_is_said_of_them() -> None:
    """With five batches a table moves up to five times as far as one step can; two data sets at most twice that."""
    method = FedRKG(**OFTEN | {"gate": False, "clip": 1e-3, "rounds": 1})
    data = tiny_world()
    simulator = Simulator(method, data)
    start = simulator.cohorts[0].state.per_client["item"].clone()
    simulator.round(0)
    moved = (simulator.cohorts[0].state.per_client["item"] - start).flatten(1).norm(dim=1).max()
    one, most = method.update_sensitivity(), method.update_sensitivity(method.batches(data))
    assert one < 2 * float(moved) <= most


def test_steps_that_end_early_fit_no_count() -> None:
    with pytest.raises(FedrecError, match="early_exit"):
        FedRKG(dp="gradient", early_exit=0.1)


def test_own_noise_and_that_of_the_wire_are_independent() -> None:
    """FedRKG's noised uploads pass the wire under the name that their own noise was drawn for."""
    data = tiny_world(items=4000)
    method = FedRKG(dim=4, interval=1, gate=False, dp="output", clip=1e-9, noise=1.0)
    simulator = Simulator(method, data, parse_stages("gaussian=1"))
    simulator.round(0)
    noise = simulator.server["item"] - method.trainer.init_items(data.world)
    assert float(noise.std()) == pytest.approx((2 / 12) ** 0.5, rel=0.03)
