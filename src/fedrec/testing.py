"""The tests that every method must pass, for use with pytest: subclass, name the method, done.

    class TestFedMF(MethodTests):
        method = FedMF(dim=4, lr=1.0, batch=16)

        def reference(self, data, rounds):  # optional: the same by a plain loop over clients
            return {"server.item": ..., "scores": ...}

Importing this module needs no test framework: the checks are plain asserts, and a check that does not apply raises
`unittest.SkipTest`, which pytest reports as skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast
from unittest import SkipTest

import numpy as np
import torch
from torch import Tensor

from fedrec.federation.basket import Basket
from fedrec.federation.clients import Chunk, ClientData, Forbidden, concatenated_ranges
from fedrec.federation.contract import Down, Each, Folded, Mean, Method, Plan, Reduction, Rows, State, Tensors, World
from fedrec.federation.samples import negatives
from fedrec.federation.simulator import Simulator, _Home

ITEMS_PER_USER = (3, 15, 1, 7, 2, 9, 4, 5, 1, 6, 2, 8)
WHOLE = 8 << 30  # a memory budget under which all clients share a chunk
SINGLE = 2  # one under which every client is alone in its chunk


def tiny_world(
    items: int = 40,
    *,
    per_user: Sequence[int] = ITEMS_PER_USER,
    silos: Sequence[int] | None = None,
    empty: bool = False,
    seed: int = 0,
    negatives: int = 4,
    forbidden: Forbidden | None = None,
    **world: Any,
) -> ClientData:
    """Twelve users in float64: one with 75 samples, two with a single item, with `empty` one with none.

    `silos` are the numbers of users of each client (default: one each). A user's index in the data set is not its
    place, nor are items in time order ascending, so that taking one for the other shows. `world`: fields of `World`.
    """
    counts = [*per_user[:-1], 0] if empty else list(per_user)
    rng = np.random.default_rng(7)
    users = rng.permutation(len(counts))
    user = np.repeat(users, counts)
    item = np.concatenate([rng.choice(items, count, replace=False) for count in counts])
    time = rng.permutation(len(user))
    sizes = [1] * len(counts) if silos is None else list(silos)
    assert sum(sizes) == len(counts), f"the silos must hold {len(counts)} users together"
    world = {"dtype": torch.float64} | world
    facts = World(items=items, clients=len(sizes), seed=seed, **world)
    client_ptr = np.concatenate([[0], np.cumsum(sizes)])
    return ClientData.build(facts, user[time], item[time], users=users, client_ptr=client_ptr, negatives=negatives,
                            forbidden=forbidden)  # fmt: skip


LAYOUTS: Mapping[str, Sequence[int] | None] = {"devices": None, "silos": (5, 4, 3), "central": (12,)}
PARTICIPATION = {"devices": 0.5, "silos": 1.0, "central": 1.0}


def outcome(simulator: Simulator, round: int) -> Tensors:
    """Everything a run ends with, by name: `server.*`, `client.*`, `user.*` (of clients in order) and `scores`."""
    found = {f"server.{name}": value for name, value in simulator.server.items()}
    for home in simulator.homes:
        mark = f"@{home.cohort.name}" if len(simulator.homes) > 1 else ""
        found |= {f"client.{name}{mark}": value for name, value in home.state.per_client.items()}
        found |= {f"user.{name}{mark}": value for name, value in home.state.per_user.items()}
    found["scores"] = all_scores(simulator, round)
    return {name: value.detach().clone() for name, value in found.items()}


def all_scores(simulator: Simulator, round: int) -> Tensor:
    """[users, items], users by their index in the data set."""
    parts = list(simulator.scores(round))
    users = np.concatenate([users for users, _ in parts])
    return torch.cat([scores for _, scores in parts])[torch.from_numpy(np.argsort(users))]


def run(method: Method, data: ClientData, rounds: int, **options: Any) -> Tensors:
    """The outcome of a simulation; `options` are those of `Simulator`."""
    simulator = Simulator(method, data, **options)
    for number in range(rounds):
        simulator.round(number)
    return outcome(simulator, rounds)


def assert_close(left: Mapping[str, Tensor], right: Mapping[str, Tensor], tolerance: float, what: str) -> None:
    """The same names, and the same values within `tolerance` (relative and absolute; 0: to the last bit)."""
    assert left.keys() == right.keys(), f"{what}: {sorted(left)} against {sorted(right)}"
    for name, value in left.items():
        assert value.shape == right[name].shape, f"{what}: {name} is {value.shape} against {right[name].shape}"
        same = torch.equal(value, right[name]) if tolerance == 0 else _near(value, right[name], tolerance)
        assert same, f"{what}: {name} differs by up to {_gap(value, right[name]):.3g}"


def _near(left: Tensor, right: Tensor, tolerance: float) -> bool:
    return torch.allclose(left.double(), right.double(), rtol=tolerance, atol=tolerance)


def _gap(left: Tensor, right: Tensor) -> float:
    return float((left.double() - right.double()).abs().max()) if left.numel() else 0.0


@dataclass(frozen=True)
class Trip:
    """One call of `local`: who, what came down, what went up, what the clients hold now."""

    round: int
    chunk: Chunk
    payload: dict[str, Reduction]
    state: State


class Watched:
    """A method that keeps a note of everything that passes between it and the simulator."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.plans: dict[int, Plan] = {}
        self.downs: list[tuple[np.ndarray, Down]] = []
        self.trips: list[Trip] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    @property
    def as_method(self) -> Method:
        return cast(Method, self)

    def plan(self, world: World, server: Tensors, round: int) -> Plan:
        self.plans[round] = self._method.plan(world, server, round)
        return self.plans[round]

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        down = self._method.broadcast(server, clients, round)
        self.downs.append((clients, down))
        return down

    def answer(self, server: Tensors, clients: np.ndarray, round: int) -> Down | None:
        down = self._method.answer(server, clients, round)
        if down is not None:
            self.downs.append((clients, down))
        return down

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        new, payload = self._method.local(state, down, chunk, round)
        self.trips.append(Trip(round, chunk, payload, new))
        return new, payload


def encoded(payload: Mapping[str, Reduction]) -> dict[str, bytes]:
    """Every byte of an upload as it stands in memory."""
    return {f"{name}.{part}": value.contiguous().numpy().tobytes() for name, part, value in _parts(payload)}


def _parts(payload: Mapping[str, Reduction]) -> Iterator[tuple[str, str, Tensor]]:
    for name, reduction in payload.items():
        value = reduction.value
        if isinstance(value, Tensor):
            yield name, "value", value
        else:
            yield from ((name, part, tensor) for part, tensor in vars(value).items() if isinstance(tensor, Tensor))
        if isinstance(reduction, Mean) and reduction.weight is not None:
            yield name, "weight", reduction.weight


def dense_uploads(payload: Mapping[str, Reduction]) -> Tensors:
    """Every client's upload whole, with a leading client axis."""
    whole = {}
    for name, reduction in payload.items():
        assert not isinstance(reduction.value, Folded), f"{name} was folded although the chunk is not foldable"
        whole[name] = reduction.value.dense() if isinstance(reduction.value, Rows) else reduction.value
        if isinstance(reduction, Mean) and reduction.weight is not None:
            whole[name + " weight"] = reduction.weight
    return whole


def _upload_bytes(payload: Mapping[str, Reduction], clients: int, itemsize: int) -> np.ndarray:
    """Bytes of every client's upload in the dense encoding, a weight being one more number."""
    total = np.zeros(clients, np.int64)
    for reduction in payload.values():
        value = reduction.value
        if isinstance(value, Tensor):
            assert len(value) == clients, "an upload has a leading client axis"
        one = value[0] if isinstance(value, Tensor) else value.base
        if isinstance(reduction, Each) and reduction.lengths is not None:
            sent = reduction.lengths.numpy()
            total += sent * (one.numel() // max(1, one.shape[-1])) * one.element_size()
            continue
        total += one.numel() * one.element_size()
        total += itemsize if isinstance(reduction, Mean) and reduction.weight is not None else 0
    return total


def _real(reduction: Reduction | None, one: Tensor, client: int) -> Tensor:
    """One client's upload without padding."""
    if not isinstance(reduction, Each) or reduction.lengths is None:
        return one
    return one[..., : int(reduction.lengths[client])]


def _down_bytes(down: Down, clients: int) -> int:
    own = [value for value in down.own.values() if len(value) == clients]
    assert len(own) == len(down.own), "an own tensor has a leading client axis"
    return sum(value.numel() * value.element_size() for value in down.shared.values()) + sum(
        value[0].numel() * value.element_size() for value in own
    )


def _inhabited(simulator: Simulator) -> list[_Home]:
    return [home for home in simulator.homes if len(home.cohort.clients)]


def state_of(simulator: Simulator, home: _Home, clients: np.ndarray) -> State:
    """A copy of what some clients hold, in any order."""
    _, where = home.positions(clients)
    users = torch.from_numpy(concatenated_ranges(home.user_ptr[where], home.user_ptr[where + 1]))
    return State(
        {name: value[torch.from_numpy(where)].clone() for name, value in home.state.per_client.items()},
        {name: value[users].clone() for name, value in home.state.per_user.items()},
    )


def _by_client(state: State, chunk: Chunk) -> dict[int, Tensors]:
    """What each client holds, under its number."""
    ends = chunk.client_ptr
    return {
        int(client): {f"client.{name}": value[k] for name, value in state.per_client.items()}
        | {f"user.{name}": value[ends[k] : ends[k + 1]] for name, value in state.per_user.items()}
        for k, client in enumerate(chunk.clients)
    }


def _private(method: Method, state: State) -> Tensors:
    """The private tensors of a state; `dense` stands for all weights of the backbone."""
    held = state.per_client | state.per_user
    model = getattr(method, "model", None)
    weights = tuple(model.dense_shapes()) if model is not None and "dense" in method.private else ()
    missing = set(method.private) - set(held) - {"dense"}
    assert not missing, f"{method.name} calls {sorted(missing)} private, but its state holds {sorted(held)}"
    return {name: held[name] for name in (*method.private, *weights) if name in held}


def _disturb(value: Tensor) -> None:
    value.copy_(~value if value.dtype == torch.bool else value + 1)


class MethodTests:
    """Subclass it with a name that starts with `Test`, and set `method`: small, with a batch of at most 40 samples."""

    method: ClassVar[Method]
    rounds: ClassVar[int] = 3
    tolerance: ClassVar[float] = 1e-9  # between ways of computing the same, in float64
    random: ClassVar[bool] = True  # the result depends on the seed
    sampled_rows_only: ClassVar[bool] = True  # a row of the server's `item` moves only when a client drew it
    still: ClassVar[tuple[str, ...]] = ()  # names of `reference` that cannot move (a bias that a pairwise loss cancels)
    layouts: ClassVar[tuple[str, ...]] = ("devices", "silos")

    def reference(self, data: ClientData, rounds: int) -> Mapping[str, Tensor]:
        """Some or all of what `outcome` names, computed one client at a time. Nothing: no reference."""
        return {}

    def data(self, layout: str = "", **options: Any) -> ClientData:
        layout = layout or self._layouts()[0]
        return tiny_world(silos=LAYOUTS[layout], **{"empty": layout != "central"} | options)

    def _layouts(self) -> tuple[str, ...]:
        return ("central",) if self.method.centralised else self.layouts

    def worlds(self, **options: Any) -> Iterator[ClientData]:
        """Half of the devices a round, all of the silos."""
        for layout in self._layouts():
            yield self.data(layout, **{"participation": PARTICIPATION[layout]} | options)

    def test_the_world_is_hard_enough(self) -> None:
        batch = getattr(self.method, "batch", 40)
        assert batch <= 40, f"choose a batch of at most 40 samples (not {batch}), so that a client has two batches"

    def test_scores_are_finite_and_for_all(self) -> None:
        for data in self.worlds():
            scores = run(self.method, data, self.rounds)["scores"]
            assert scores.shape == (len(data.users), data.world.items)
            assert bool(scores.isfinite().all()), "scores must be finite, also of a client without items"

    def test_reference_gives_the_same(self) -> None:
        checked = False
        for data in (self.data(), *self.worlds()):
            expected = self.reference(data, self.rounds)
            start = run(self.method, data, 0)
            for memory in (WHOLE, SINGLE) if data.world.participation < 1 or self.method.centralised else (1 << 15,):
                found = run(self.method, data, self.rounds, memory=memory)
                found = {name: found[name] for name in expected}
                assert_close(found, expected, self.tolerance, f"against the reference, {data.world}")
                still = {name for name, value in found.items() if torch.equal(value, start[name])}
                assert still <= set(self.still), f"{still} never moved: the comparison says nothing"
            checked = checked or bool(expected)
        if not checked:
            raise SkipTest("no reference")

    def test_chunks_do_not_matter(self) -> None:
        for data in self.worlds():
            watched = Watched(self.method)
            whole = run(self.method, data, self.rounds)
            pieces = run(watched.as_method, data, self.rounds, memory=SINGLE)
            assert all(len(trip.chunk.clients) == 1 for trip in watched.trips)
            assert_close(pieces, whole, self.tolerance, "one client per chunk against all in one")

    def test_company_does_not_matter(self) -> None:
        """A client's new state and upload are the same alone, among all, and in any order."""
        for data in self.worlds():
            simulator = Simulator(self.method, data)
            simulator.round(0)
            for home in _inhabited(simulator):
                everyone = home.cohort.clients
                expected = self._alone(simulator, home, everyone)
                shuffled = np.random.default_rng(1).permutation(everyone)
                for company in ([c] for c in everyone):
                    self._same(self._alone(simulator, home, np.array(company)), expected)
                for group in (shuffled, shuffled[::2]):
                    self._same(self._alone(simulator, home, group), expected)

    def _alone(self, simulator: Simulator, home: _Home, clients: np.ndarray) -> dict[int, Tensors]:
        chunk = simulator.data.chunk(clients, home.cohort.name)
        down = self.method.broadcast(simulator.server, clients, 1)
        new, payload = self.method.local(state_of(simulator, home, clients), down, chunk, 1)
        uploads, held = dense_uploads(payload), _by_client(new, chunk)
        sent = {
            int(c): {f"up.{name}": _real(payload.get(name), v[k], k) for name, v in uploads.items()}
            for k, c in enumerate(clients)
        }
        return {client: held[client] | sent[client] for client in held}

    def _same(self, found: dict[int, Tensors], expected: dict[int, Tensors]) -> None:
        for client, tensors in found.items():
            assert_close(tensors, expected[client], self.tolerance, f"client {client} among {list(found)}")

    def test_folded_sums_are_the_sums(self) -> None:
        """What a chunk adds up by itself equals the sum of its clients' uploads."""
        for data in self.worlds(participation=1.0):
            simulator = Simulator(self.method, data)
            simulator.round(0)
            for home in _inhabited(simulator):
                results = []
                for foldable in (True, False):
                    clients = home.cohort.clients
                    chunk = data.chunk(clients, home.cohort.name, foldable)
                    down = self.method.broadcast(simulator.server, clients, 1)
                    _, payload = self.method.local(state_of(simulator, home, clients), down, chunk, 1)
                    basket = Basket()
                    basket.add(payload, clients, home.cohort.name)
                    results.append(basket.ups(data.world.dtype).reduced)
                assert_close(results[0], results[1], self.tolerance, "folded against single uploads")

    def test_compiled_is_the_same(self) -> None:
        for compiled, plain in zip(self.worlds(compiled=True), self.worlds(compiled=False), strict=True):
            left, right = (run(self.method, data, self.rounds) for data in (compiled, plain))
            assert_close(left, right, self.tolerance, "compiled against torch")

    def test_seed_decides_everything(self) -> None:
        for data in self.worlds():
            first = run(self.method, data, self.rounds)
            assert_close(run(self.method, data, self.rounds), first, 0, "the same seed again")
            other = run(self.method, replace(data, world=replace(data.world, seed=data.world.seed + 1)), self.rounds)
            if self.random:
                assert not torch.equal(other["scores"], first["scores"]), "another seed must give other scores"
            elif data.world.participation == 1.0:
                assert_close(other, first, 0, "a method without randomness, another seed")

    def test_resume_is_never_stopped(self) -> None:
        for data in self.worlds():
            whole = run(self.method, data, 4)
            stopped = Simulator(self.method, data)
            for number in (0, 1):
                stopped.round(number)
            resumed = Simulator(self.method, data)
            resumed.server = {name: value.clone() for name, value in stopped.server.items()}
            for home, old in zip(resumed.homes, stopped.homes, strict=True):
                home.state = state_of(stopped, old, old.cohort.clients)
            for number in (2, 3):
                resumed.round(number)
            assert_close(outcome(resumed, 4), whole, 0, "resumed after two rounds of four")

    def test_private_tensors_stay_private(self) -> None:
        """After `local`, no change of a private tensor reaches an upload, and none of its new values is in one."""
        for data in self.worlds(participation=1.0):
            simulator = Simulator(self.method, data)
            simulator.round(0)
            for foldable in (True, False):
                for home in _inhabited(simulator):
                    self._check_boundary(simulator, home, foldable)

    def _check_boundary(self, simulator: Simulator, home: _Home, foldable: bool) -> None:
        clients = home.cohort.clients
        chunk = simulator.data.chunk(clients, home.cohort.name, foldable)
        old = state_of(simulator, home, clients)
        mine = state_of(simulator, home, clients)
        down = self.method.broadcast(simulator.server, clients, 1)
        new, payload = self.method.local(mine, down, chunk, 1)
        before = encoded(payload)
        sent = torch.cat([torch.zeros(0), *(value.double().flatten() for _, _, value in _parts(payload))])
        start = _private(self.method, old)
        for name, value in _private(self.method, new).items():
            fresh = value[value != start[name]].double()
            assert not torch.isin(fresh, sent).any(), f"values of the private '{name}' are in the upload"
            _disturb(value)
            assert encoded(payload) == before, f"the private '{name}' reaches an upload after local training"
        for name, value in _private(self.method, mine).items():
            _disturb(value)
            assert encoded(payload) == before, f"the private '{name}' of the input state reaches an upload"

    def test_every_byte_is_counted(self) -> None:
        for data in self.worlds():
            watched = Watched(self.method)
            simulator = Simulator(watched.as_method, data, memory=1 << 14)
            for number in range(self.rounds):
                simulator.round(number)
            up, down = np.zeros(data.world.clients, np.int64), np.zeros(data.world.clients, np.int64)
            for clients, sent in watched.downs:
                down[clients] += _down_bytes(sent, len(clients))
            for trip in watched.trips:
                size = _upload_bytes(trip.payload, len(trip.chunk.clients), data.world.dtype.itemsize)
                sending = np.isin(trip.chunk.clients, watched.plans[trip.round].uploads())
                up[trip.chunk.clients[sending]] += size[sending]
            ledger = simulator.wire.ledger
            outcome(simulator, self.rounds)  # looking at the scores costs nothing
            assert np.array_equal(ledger.up, up), f"up: {ledger.up} in the ledger, {up} counted"
            assert np.array_equal(ledger.down, down), f"down: {ledger.down} in the ledger, {down} counted"
            assert sum(entry["up"] for entry in ledger.rounds.values()) == up.sum()
            assert sum(entry["down"] for entry in ledger.rounds.values()) == down.sum()

    def test_rows_nobody_drew_stay(self) -> None:
        if not self.sampled_rows_only or "item" not in self.method.init_server(self.data().world):
            raise SkipTest("the server has no item table, or its rows move without being drawn")
        for data in self.worlds(items=500):
            watched = Watched(self.method)
            simulator = Simulator(watched.as_method, data)
            start = simulator.server["item"].clone()
            for number in range(self.rounds):
                simulator.round(number)
            drawn = torch.zeros(data.world.items, dtype=torch.bool)
            for trip in watched.trips:
                drawn[trip.chunk.tensor(trip.chunk.items)] = True
                drawn[negatives(trip.chunk, trip.round).flatten()] = True
            end = simulator.server["item"]
            assert bool((~drawn).any()), "the world is too small for this check"
            assert_close({"item": end[~drawn]}, {"item": start[~drawn]}, 1e-12, "rows that no client drew")
            assert not torch.equal(end[drawn], start[drawn]), "no row moved"
