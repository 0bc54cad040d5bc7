"""One toy method per feature of the contract; each fails if the feature breaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Answer,
    Cohort,
    Down,
    Gather,
    Mean,
    Method,
    PartialSum,
    Plan,
    Reduction,
    State,
    Sum,
    Tensors,
    Ups,
    World,
    participants,
)
from fedrec.federation.simulator import Simulator
from fedrec.federation.wire import Wire
from fedrec.methods import FedAvg
from fedrec.testing import SINGLE, WHOLE, MethodTests, all_scores, run, tiny_world

BUDGETS = pytest.mark.parametrize("memory", [WHOLE, SINGLE])
CLIENTS = 12


def numbers(chunk: Chunk) -> Tensor:
    """Each client's own number: a stand-in for what it has learnt."""
    return chunk.tensor(chunk.clients).double()


def simulate(method: Method, rounds: int = 1, memory: int = WHOLE, **options) -> Simulator:
    simulator = Simulator(method, tiny_world(**options), memory=memory)
    for number in range(rounds):
        simulator.round(number)
    return simulator


@dataclass(frozen=True)
class Mailbox(Method):
    """Server tells each client its own number; clients keep what they got."""

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"greeting": torch.tensor([100.0]).double()}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return State(per_client={"got": torch.zeros(len(chunk.clients), 2).double()})

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(server, {"number": torch.from_numpy(clients).double()[:, None]})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        common = down.shared["greeting"].expand(len(chunk.clients), 1)
        return State({"got": torch.cat([common, down.own["number"]], 1)}), {}


@BUDGETS
def test_per_client_broadcast_reaches_its_client(memory):
    simulator = simulate(Mailbox(), memory=memory, participation=0.5)
    got = simulator.cohorts[0].state.per_client["got"]
    here = participants(simulator.world, 0, 0.5)
    assert got[here].tolist() == [[100.0, float(c)] for c in here]
    away = np.setdiff1d(np.arange(CLIENTS), here)
    assert not got[away].any()
    assert simulator.wire.ledger.down[here].tolist() == [16] * 6
    assert simulator.wire.ledger.down[away].tolist() == [0] * 6


@dataclass(frozen=True)
class Counting(Method):
    """Every client counts its rounds and sends its number; the server keeps what came. `silent`: who may upload."""

    silent: str = "none"  # none: all upload | all: nobody | odd: even numbers only
    order: str = "ascending"

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"sum": torch.zeros(1).double(), "mean": torch.zeros(1).double(), "who": torch.zeros(CLIENTS).double()}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return State({"rounds": torch.zeros(len(chunk.clients)).double(), "seen": -torch.ones(len(chunk.clients))})

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        train = np.arange(CLIENTS)
        if self.order == "mixed":  # first and last stand where they would in order
            train = np.array([0, *np.random.default_rng(0).permutation(np.arange(1, CLIENTS - 1)), CLIENTS - 1])
        upload = {"none": None, "all": train[:0], "odd": train[train % 2 == 0]}[self.silent]
        return Plan(train, upload)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        number = numbers(chunk)
        assert bool(((state.per_client["seen"] == number) | (state.per_client["seen"] < 0)).all()), "another's state"
        payload: dict[str, Reduction] = {
            "sum": Sum(number[:, None]),
            "mean": Mean(number[:, None], 1 + number),
            "who": Sum(torch.nn.functional.one_hot(chunk.tensor(chunk.clients), CLIENTS).double()),
        }
        return State({"rounds": state.per_client["rounds"] + 1, "seen": number.float()}), payload

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return {name: ups.reduced.get(name, value) for name, value in server.items()}


@BUDGETS
def test_sums_and_weighted_means(memory):
    server = simulate(Counting(), memory=memory).server
    who = np.arange(CLIENTS)
    assert server["sum"].item() == who.sum()
    assert server["mean"].item() == pytest.approx((who * (1 + who)).sum() / (1 + who).sum())


@BUDGETS
def test_silent_round_trains_everybody_and_sends_nothing(memory):
    simulator = simulate(Counting(silent="all"), 2, memory)
    assert simulator.cohorts[0].state.per_client["rounds"].tolist() == [2] * CLIENTS
    assert simulator.server["sum"].item() == 0
    assert not simulator.wire.ledger.up.any()
    assert [entry["trained"] for entry in simulator.wire.ledger.rounds.values()] == [CLIENTS] * 2


@BUDGETS
def test_only_the_uploading_part_is_seen_and_counted(memory):
    simulator = simulate(Counting(silent="odd"), 1, memory)
    even = np.arange(CLIENTS) % 2 == 0
    assert simulator.server["who"].tolist() == even.astype(float).tolist()
    assert (simulator.wire.ledger.up > 0).tolist() == even.tolist()
    assert simulator.cohorts[0].state.per_client["rounds"].tolist() == [1] * CLIENTS


@BUDGETS
def test_a_plan_in_any_order(memory):
    """`local` itself asserts that each client meets its own state again."""
    simulator = simulate(Counting(order="mixed"), 3, memory)
    assert simulator.cohorts[0].state.per_client["rounds"].tolist() == [3] * CLIENTS
    assert simulator.cohorts[0].state.per_client["seen"].tolist() == list(range(CLIENTS))


def _numbers(clients: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(clients).double()


@dataclass(frozen=True)
class Answering(Counting):
    """The server answers with the sum so far to the clients 1 and 4, which need not have trained."""

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        return Plan(np.array([0, 1, 2]))

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer:
        assert arrived.tolist() == [0, 1, 2]
        return Answer(np.array([1, 4]), lambda some: Down({"sum": server["sum"]}, {"twice": 2 * _numbers(some)}))

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        return State({"rounds": down.shared["sum"] * 100 + down.own["twice"]})


@BUDGETS
def test_answer_reaches_those_who_receive_after_the_aggregation(memory):
    simulator = simulate(Answering(), 1, memory)
    rounds = simulator.cohorts[0].state.per_client["rounds"]
    assert rounds.tolist() == [1, 302, 1, 0, 308, 0, 0, 0, 0, 0, 0, 0]
    assert simulator.wire.ledger.down.tolist() == [0, 16, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0]


@dataclass(frozen=True)
class Census(Method):
    """Each silo keeps a number per user and sends the mean over its users, weighted by how many they are."""

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return State(
            {"size": torch.zeros(len(chunk.clients)).double()}, {"index": chunk.tensor(chunk.users).double()[:, None]}
        )

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        index = state.per_user["index"]
        assert torch.equal(index[:, 0] - 100 * round, chunk.tensor(chunk.users).double())
        size = chunk.tensor(np.diff(chunk.client_ptr)).double()
        total = torch.zeros(len(chunk.clients), 1).double().index_add_(0, chunk.owner, index)
        return State({"size": size}, {"index": index + 100}), {"mean": Mean(total / size[:, None], size)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return {"mean": ups["mean"]}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return state.per_user["index"] + items


@BUDGETS
@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_ragged_silos_keep_their_users_together(memory, participation):
    simulator = simulate(Census(), 1, memory, silos=(5, 4, 3), participation=participation)
    data = simulator.data
    here = participants(data.world, 0, participation)
    assert len(here) == (3 if participation == 1.0 else 2)
    users = np.concatenate([data.users[data.client_ptr[c] : data.client_ptr[c + 1]] for c in here])
    assert simulator.server["mean"].item() == pytest.approx(users.mean())
    assert simulator.cohorts[0].state.per_client["size"][here].tolist() == np.array([5, 4, 3])[here].tolist()
    scores = all_scores(simulator, 1)
    assert scores[:, 0].tolist() == [k + 100 * (k in users) for k in range(12)]


@pytest.mark.parametrize("silos", [(5, 4, 3), (1, 10, 1)])
def test_fedavg_runs_on_ragged_silos(silos):
    """User vectors lie with their users: nothing is padded to the largest silo."""
    data = tiny_world(silos=silos)
    simulator = Simulator(FedAvg(dim=4, init_std=0.3, batch=16, lr=1.0), data)
    before = simulator.cohorts[0].state.per_user["user"].clone()
    simulator.round(0)
    after = simulator.cohorts[0].state.per_user["user"]
    assert after.shape == (12, 4)
    assert bool((after != before).any(1).all())


@dataclass(frozen=True)
class TwoWidths(Method):
    """Small clients hold vectors of width 2, the others of width 3; only equals can be added."""

    private = ()

    def cohorts(self, world: World) -> list[Cohort]:
        everyone = np.arange(world.clients)
        return [
            Cohort("nobody", everyone[:0]),
            Cohort("narrow", everyone[everyone % 3 == 0]),
            Cohort("wide", everyone[everyone % 3 != 0]),
        ]

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return {"narrow": torch.zeros(2).double(), "wide": torch.zeros(3).double(), "both": torch.zeros(1).double()}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        width = 2 if chunk.cohort == "narrow" else 3
        own = torch.arange(width) + 10 * chunk.tensor(chunk.users)[:, None]
        return State(per_user={"vector": own.double()})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        vector = state.per_user["vector"]
        return State(per_user={"vector": vector + 1}), {
            "vector": Sum(vector.clone(), by_cohort=True),
            "mean": Mean(vector.clone(), torch.ones(len(vector)).double(), by_cohort=True),
            "both": Sum(torch.ones(len(vector), 1).double()),
        }

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        if narrow := int((ups.clients % 3 == 0).sum()):
            assert torch.allclose(ups["vector@narrow"] / narrow, ups["mean@narrow"])
        sums = {name: ups[f"vector@{name}"] for name in ("narrow", "wide") if f"vector@{name}" in ups}
        return server | sums | {"both": ups["both"]}

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        return state.per_user["vector"].sum(1, keepdim=True) + items


@BUDGETS
def test_cohorts_of_different_shape_are_summed_apart(memory):
    simulator = simulate(TwoWidths(), 1, memory)
    users = simulator.data.users
    small = np.arange(CLIENTS) % 3 == 0
    assert simulator.server["narrow"].tolist() == [10 * users[small].sum() + 4 * k for k in range(2)]
    assert simulator.server["wide"].tolist() == [10 * users[~small].sum() + 8 * k for k in range(3)]
    assert simulator.server["both"].item() == CLIENTS
    widths = [members.state.per_user["vector"].shape for members in simulator.cohorts]
    assert widths[1:] == [(4, 2), (8, 3)]
    narrow = dict(zip(users, small, strict=True))
    expected = [2 * (10 * u + 1) + 1 if narrow[u] else 3 * (10 * u + 1) + 3 for u in range(12)]
    assert all_scores(simulator, 1)[:, 0].tolist() == expected


class TestTwoWidths(MethodTests):
    """The conformance suite itself copes with cohorts."""

    method = TwoWidths()
    random = False
    layouts = ("devices",)

    def data(self, layout: str = "", **options):
        return super().data(layout, **options | {"participation": 1.0})


@dataclass(frozen=True)
class Roll(Method):
    """The server sees every client's own upload, with its name on it."""

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        return state, {"square": Gather(numbers(chunk)[:, None] ** 2)}

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        assert "square" in ups
        ids, squares = ups.stacked("square")
        assert np.array_equal(ids, ups.clients)
        return {"ids": torch.from_numpy(ids), "squares": squares}


@BUDGETS
def test_each_upload_is_seen_by_itself(memory):
    simulator = simulate(Roll(), 1, memory, participation=0.5)
    here = participants(simulator.world, 0, 0.5)
    assert simulator.server["ids"].tolist() == here.tolist()
    assert simulator.server["squares"].tolist() == [[float(c**2)] for c in here]


@dataclass(frozen=True)
class Attributed(Method):
    """The server makes a score per item from attributes and sends only that."""

    attributes = "server"

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        assert attributes is not None
        return {"score": attributes.sum(1)}

    def init_clients(self, world: World, chunk: Chunk) -> State:
        return State(per_client={"got": torch.zeros(len(chunk.clients), world.items).double()})

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down({"score": server["score"]})

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        reachable = {**vars(chunk), **vars(chunk.data), **vars(chunk.world)}
        assert not any(isinstance(v, Tensor) and v.shape == (40, 3) for v in reachable.values())
        return State({"got": down.shared["score"].expand(len(chunk.clients), -1)}), {}


def test_attributes_stay_with_the_server():
    attributes = torch.arange(120).reshape(40, 3).double()
    simulator = Simulator(Attributed(), tiny_world(), attributes=attributes)
    simulator.round(0)
    assert torch.equal(simulator.cohorts[0].state.per_client["got"], attributes.sum(1).expand(12, -1))
    assert simulator.wire.ledger.down.tolist() == [40 * 8] * 12


@dataclass(frozen=True)
class LastItem(Method):
    """Scores by the user's own history: the neighbourhood of the newest item."""

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        last = chunk.tensor(chunk.history[chunk.user_ptr[1:] - 1])
        return -(items[None] - last[:, None]).abs().double()


@BUDGETS
@pytest.mark.parametrize("silos", [None, (5, 4, 3)])
def test_scoring_has_the_clients_own_data_in_time_order(memory, silos):
    simulator = simulate(LastItem(), 0, memory, silos=silos)
    data = simulator.data
    newest = {int(u): int(data.history[end - 1]) for u, end in zip(data.users, data.user_ptr[1:], strict=True)}
    assert all_scores(simulator, 0).argmax(1).tolist() == [newest[u] for u in range(12)]
    assert any(newest[int(u)] != data.items[e - 1] for u, e in zip(data.users, data.user_ptr[1:], strict=True))


def test_scores_of_some_items_only():
    simulator = simulate(LastItem(), 0)
    some = torch.tensor([5, 0, 39])
    whole = all_scores(simulator, 0)
    parts = list(simulator.scores(0, some))
    users = np.concatenate([u for u, _ in parts])
    assert torch.equal(torch.cat([s for _, s in parts]), whole[torch.from_numpy(users)][:, some])


class TestParticipants:
    @pytest.mark.parametrize(("fraction", "count"), [(1.0, 12), (0.5, 6), (0.25, 3), (0.3, 3), (0.01, 1)])
    def test_count_rounds_down_to_at_least_one(self, fraction, count):
        chosen = participants(World(items=1, clients=12), 0, fraction)
        assert len(chosen) == len(set(chosen.tolist())) == count
        assert chosen.tolist() == sorted(chosen.tolist())

    def test_everybody_comes_up_equally_often(self):
        world = World(items=1, clients=12)
        turns = np.zeros(12)
        for number in range(3000):
            turns[participants(world, number, 0.25)] += 1
        assert abs(turns / 3000 - 0.25).max() < 5 * (0.25 * 0.75 / 3000) ** 0.5

    def test_depends_on_round_and_seed_only(self):
        world = World(items=1, clients=12)
        draws = {tuple(participants(World(items=1, clients=12, seed=s), r, 0.5)) for s in range(5) for r in range(5)}
        assert len(draws) > 20
        assert participants(world, 3, 0.5).tolist() == participants(world, 3, 0.5).tolist()


def test_a_method_without_a_score_says_so():
    with pytest.raises(NotImplementedError, match="Roll does not score"):
        run(Roll(), tiny_world(), 0)


def test_a_parameter_hides_nothing_that_others_ask_for():
    with pytest.raises(TypeError, match="disclosure"):

        class Quiet(Method):
            disclosure: float = 0.1  # what the accountant asks


def test_uploads_that_are_read_or_wrapped_wrongly_get_a_sentence():
    ups = Ups({"item": torch.zeros(2)}, {"table": [(np.arange(2), torch.zeros(2, 3))]}, np.arange(2))
    with pytest.raises(FedrecError, match=r"'table' was gathered, one from each client; read it by ups.stacked"):
        _ = ups["table"]
    with pytest.raises(FedrecError, match=r"'item' is a sum or a mean; read it by ups\['item'\]"):
        ups.stacked("item")
    for read in (ups.__getitem__, ups.stacked):
        with pytest.raises(FedrecError, match="unknown upload 'items'; did you mean 'item'"):
            read("items")
    with pytest.raises(FedrecError, match=r"fit\(..., fold=False\)"):
        Gather(PartialSum(torch.zeros(2, 3), torch.zeros(2, 3), 4))
    wire = Wire(tiny_world().world)
    with pytest.raises(FedrecError, match="'item' has no reduction; return Sum, Mean or Gather"):
        wire.send_up({"item": torch.zeros(1, 2)}, Down(), np.arange(1), "all", 0, Accumulator())
