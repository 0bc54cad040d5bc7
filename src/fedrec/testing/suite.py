"""The checks themselves, one method of `MethodTests` each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.client_side import CohortState
from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import Method, State, Tensors, cohorts_of
from fedrec.federation.simulator import Simulator
from fedrec.testing.coupling import measure_distances
from fedrec.testing.grid import Grid
from fedrec.testing.messages import Watched, dense_uploads, down_bytes, encode_upload, parts, real, upload_bytes
from fedrec.testing.worlds import (
    LAYOUTS,
    PARTICIPATION,
    SINGLE,
    WHOLE,
    add_one_item,
    all_scores,
    assert_close,
    list_nonempty_cohorts,
    lost_in,
    name_tensors,
    outcome,
    run,
    state_of,
    tiny_world,
)
from fedrec.training.samples import negatives


def _by_client(state: State, chunk: Chunk) -> dict[int, Tensors]:
    """What each client holds, under its number."""
    ends = chunk.client_ptr
    return {
        int(client): {f"client.{name}": value[k] for name, value in state.per_client.items()}
        | {f"user.{name}": value[ends[k] : ends[k + 1]] for name, value in state.per_user.items()}
        for k, client in enumerate(chunk.clients)
    }


def _private(method: Method, state: State) -> Tensors:
    """The private tensors of a state."""
    held, private = state.per_client | state.per_user, method.disclosure.private
    missing = set(private) - set(held)
    assert not missing, f"{method.info.name} calls {sorted(missing)} private, but its state holds {sorted(held)}"
    return {name: held[name] for name in private}


def _perturb(value: Tensor) -> None:
    # A boolean has no sum, so it is turned round; either way every entry changes.
    value.copy_(~value if value.dtype == torch.bool else value + 1)


def _find_refusal(make: Callable[[], object]) -> str:
    """Why something cannot be made; empty where it can."""
    try:
        make()
    except FedrecError as error:
        return str(error)
    return ""


class MethodTests:
    """Subclass it with a name that starts with `Test`, and set `method`: small, with a batch of at most 40 samples."""

    method: ClassVar[Method]
    rounds: ClassVar[int] = 3
    tolerance: ClassVar[float] = 1e-9  # between ways of computing the same, in float64
    random: ClassVar[bool] = True  # the result depends on the seed
    sampled_rows_only: ClassVar[bool] = True  # a row of the server's `item` moves only when a client drew it
    still: ClassVar[tuple[str, ...]] = ()  # names of `reference` that cannot move (a bias that a pairwise loss cancels)
    layouts: ClassVar[tuple[str, ...]] = ("devices", "silos")
    rotates: ClassVar[tuple[str, ...]] = ()  # tables whose columns are a basis: only the space they span is compared

    def reference(self, data: ClientData, rounds: int) -> Mapping[str, Tensor]:
        """Some or all of what `outcome` names, computed one client at a time. Nothing: no reference."""
        return {}

    def data(self, layout: str = "", **options: Any) -> ClientData:
        layout = layout or self._layouts()[0]
        return tiny_world(silos=LAYOUTS[layout], **{"empty": layout != "central"} | options)

    def _layouts(self) -> tuple[str, ...]:
        return ("central",) if self.method.info.centralised else self.layouts

    def worlds(self, **options: Any) -> Iterator[ClientData]:
        """Half of the devices a round, all of the silos."""
        for layout in self._layouts():
            yield self.data(layout, **{"participation": PARTICIPATION[layout]} | options)

    def test_the_world_is_hard_enough(self) -> None:
        batch = getattr(self.method, "batch", 40)
        # With larger batches each client would have one, and mistakes between batches would stay unseen.
        assert batch <= 40, f"choose a batch of at most 40 samples (not {batch}), so that a client has two batches"

    def test_scores_are_finite_and_for_all(self) -> None:
        for data in self.worlds():
            scores = run(self.method, data, self.rounds)["scores"]
            assert scores.shape == (len(data.users), data.world.items)
            assert bool(scores.isfinite().all()), "scores must be finite, also of a client without items"

    def test_a_longer_history_is_its_own_users_alone(self) -> None:
        """Scoring from a history that has grown since training: no state changes, and nobody else's scores do."""
        for data in self.worlds():
            simulator = Simulator(self.method, data)
            for round in range(self.rounds):
                simulator.round(round)
            before = outcome(simulator, self.rounds)
            # Some users only, and the last one, whose place is where an off-by-one would show.
            grown = [1, 3, len(data.users) - 1]
            known, _ = add_one_item(data, grown)
            longer = all_scores(simulator, self.rounds, known)
            assert_close(outcome(simulator, self.rounds), before, 0, "after a look at longer histories")
            others = torch.from_numpy(np.delete(data.users, grown))
            assert_close({"scores": longer[others]}, {"scores": before["scores"][others]}, self.tolerance, "others")

    def test_reference_gives_the_same(self) -> None:
        checked = False
        # The first world has everybody in every round, where a reference is simplest and failures are easiest to read.
        for data in (self.data(), *self.worlds()):
            expected = self.reference(data, self.rounds)
            start = run(self.method, data, 0)
            for memory in (
                (WHOLE, SINGLE) if data.world.participation < 1 or self.method.info.centralised else (1 << 15,)
            ):
                found = run(self.method, data, self.rounds, memory=memory)
                found = {name: found[name] for name in expected}
                assert_close(found, expected, self.tolerance, f"against the reference, {data.world}")
                still = {name for name, value in found.items() if torch.equal(value, start[name])}
                # A tensor that never moved equals its reference whatever the method does.
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

    def test_groups_do_not_matter(self) -> None:
        """Clients apart from the server, in groups of any size that it reaches by messages: as in one simulation."""
        if self.method.info.centralised:
            raise SkipTest("all data is centralised")
        for data in self.worlds():
            whole = self.comparable(run(self.method, data, self.rounds))
            everyone = np.arange(data.world.clients)
            # Ragged groups, one of them with a single client, since equal halves hide mistakes about positions.
            ragged = [part for part in (everyone[::2], everyone[1:2], everyone[3::2]) if len(part)]
            for groups in ([everyone], ragged, np.split(everyone, len(everyone))):
                grid = Grid(self.method, data, groups)
                for number in range(self.rounds):
                    grid.round(number)
                # Looser than bit for bit, because sums over groups add up in another order than in one chunk.
                found, tolerance = self.comparable(grid.outcome(self.rounds)), max(1e-10, 0.1 * self.tolerance)
                assert_close(found, whole, tolerance, f"{len(groups)} groups against one simulation")

    def comparable(self, found: Tensors) -> Tensors:
        """What an outcome is compared by: bases by the space that they span."""
        return {name: value @ value.mT if name in self.rotates else value for name, value in found.items()}

    def test_lost_uploads_harm_nobody_else(self) -> None:
        """As if those whose uploads are lost had not been asked; they themselves keep what they trained."""
        for data in self.worlds(participation=1.0):
            if self.method.info.centralised:
                raise SkipTest("nothing is uploaded")
            lossy = Simulator(self.method, data, lost_uploads=0.4)
            shapes = {name: value.shape for name, value in lossy.server.items()}
            absent = Watched(self.method)
            absent.away = lost_in(lossy, 0)
            asked = Simulator(absent.as_method, data)
            for simulator in (lossy, asked):
                simulator.round(0)
            # Those whose uploads were lost have trained in one world and not in the other, so they may differ.
            here = np.setdiff1d(data.clients, absent.away)
            assert_close(lossy.server, asked.server, self.tolerance, "the server, with uploads lost")
            for left, right in zip(list_nonempty_cohorts(lossy), list_nonempty_cohorts(asked), strict=True):
                some, _ = left.positions(here)
                found, wanted = (name_tensors(state_of(*pair, some)) for pair in ((lossy, left), (asked, right)))
                assert_close(found, wanted, self.tolerance, "clients that were heard")
            for number in (1, 2, 3):
                lossy.round(number)
            assert shapes == {name: value.shape for name, value in lossy.server.items()}, "a server's shapes must stay"
            assert bool(all_scores(lossy, 4).isfinite().all()), "scores must be finite after lost uploads"

    def test_a_round_without_uploads_changes_no_server(self) -> None:
        for data in self.worlds():
            simulator = Simulator(self.method, data, lost_uploads=1.0)
            before = {name: value.clone() for name, value in simulator.server.items()}
            for number in range(self.rounds):
                simulator.round(number)
                # A round that planned no upload may still change the server by the method's own schedule.
                if len(simulator.server_side.plan(number).uploads()):
                    assert_close(simulator.server, before, 0, "the server without uploads")
                before = {name: value.clone() for name, value in simulator.server.items()}
            assert bool(all_scores(simulator, self.rounds).isfinite().all()), "scores must be finite without uploads"

    def test_a_client_that_was_away_comes_back(self) -> None:
        """Its state rests while it is away, and the round in which it returns is as good as any."""
        for data in self.worlds(participation=1.0):
            if len(data.clients) < 3:
                # One client is away, and those that stay must be more than one.
                raise SkipTest("there is one client")
            watched = Watched(self.method)
            watched.away = data.clients[1:2]
            simulator = Simulator(watched.as_method, data)
            simulator.round(0)
            simulator.round(1)
            watched.away = data.clients[:0]
            simulator.round(2)
            assert bool(all_scores(simulator, 3).isfinite().all()), "scores must be finite when a client comes back"

    def test_company_does_not_matter(self) -> None:
        """A client's new state and upload are the same alone, among all, and in any order."""
        for data in self.worlds():
            simulator = Simulator(self.method, data)
            simulator.round(0)
            for members in list_nonempty_cohorts(simulator):
                everyone = members.cohort.clients
                expected = self._alone(simulator, members, everyone)
                # Another order, since code that relies on ascending clients passes with any sorted group.
                shuffled = np.random.default_rng(1).permutation(everyone)
                for company in ([c] for c in everyone):
                    self._same(self._alone(simulator, members, np.array(company)), expected)
                for group in (shuffled, shuffled[::2]):
                    self._same(self._alone(simulator, members, group), expected)

    def _alone(self, simulator: Simulator, members: CohortState, clients: np.ndarray) -> dict[int, Tensors]:
        chunk = simulator.data.chunk(clients, members.cohort.name)
        down = self.method.broadcast(simulator.server, clients, 1)
        new, payload = self.method.local(state_of(simulator, members, clients), down, chunk, 1)
        uploads, held = dense_uploads(payload), _by_client(new, chunk)
        sent = {
            int(c): {f"up.{name}": real(payload.get(name), v[k], k) for name, v in uploads.items()}
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
            for members in list_nonempty_cohorts(simulator):
                results = []
                for foldable in (True, False):
                    clients = members.cohort.clients
                    chunk = data.chunk(clients, members.cohort.name, foldable)
                    down = self.method.broadcast(simulator.server, clients, 1)
                    _, payload = self.method.local(state_of(simulator, members, clients), down, chunk, 1)
                    accumulator = Accumulator()
                    accumulator.add(payload, clients, members.cohort.name)
                    results.append(accumulator.update().ups(data.world.dtype).reduced)
                assert_close(results[0], results[1], self.tolerance, "folded against single uploads")

    def test_compiled_is_the_same(self) -> None:
        for compiled, plain in zip(self.worlds(compiled=True), self.worlds(compiled=False), strict=True):
            left, right = (run(self.method, data, self.rounds) for data in (compiled, plain))
            assert_close(left, right, self.tolerance, "compiled against torch")

    def test_seed_decides_everything(self) -> None:
        for data in self.worlds():
            first = run(self.method, data, self.rounds)
            # Tolerance 0: a repetition has no excuse for a different rounding.
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
            # Cloned, or training on would change what both share.
            resumed.server = {name: value.clone() for name, value in stopped.server.items()}
            for members, old in zip(resumed.cohorts, stopped.cohorts, strict=True):
                members.state = state_of(stopped, old, old.cohort.clients)
            for number in (2, 3):
                resumed.round(number)
            assert_close(outcome(resumed, 4), whole, 0, "resumed after two rounds of four")

    def test_private_tensors_stay_private(self) -> None:
        """After `local`, no change of a private tensor reaches an upload, and none of its new values is in one."""
        for data in self.worlds(participation=1.0):
            simulator = Simulator(self.method, data)
            simulator.round(0)
            for foldable in (True, False):
                for members in list_nonempty_cohorts(simulator):
                    self._check_boundary(simulator, members, foldable)

    def _check_boundary(self, simulator: Simulator, members: CohortState, foldable: bool) -> None:
        clients = members.cohort.clients
        chunk = simulator.data.chunk(clients, members.cohort.name, foldable)
        old = state_of(simulator, members, clients)
        mine = state_of(simulator, members, clients)
        down = self.method.broadcast(simulator.server, clients, 1)
        new, payload = self.method.local(mine, down, chunk, 1)
        before = encode_upload(payload)
        # A zero to begin with, because a list of nothing cannot be joined.
        sent = torch.cat([torch.zeros(0), *(value.double().flatten() for _, _, value in parts(payload))])
        start = _private(self.method, old)
        for name, value in _private(self.method, new).items():
            # Values that did not change were public before, such as an initial zero, and prove nothing.
            fresh = value[value != start[name]].double()
            assert not torch.isin(fresh, sent).any(), f"values of the private '{name}' are in the upload"
            # The private tensor is changed afterwards: an upload that shares its memory would change along with it.
            _perturb(value)
            assert encode_upload(payload) == before, f"the private '{name}' reaches an upload after local training"
        for name, value in _private(self.method, mine).items():
            _perturb(value)
            assert encode_upload(payload) == before, f"the private '{name}' of the input state reaches an upload"

    def test_a_blind_server_ends_alike(self) -> None:
        """Secure sums change nothing beyond fixed point; a method that gathers says so and is refused by name."""
        if self.method.info.centralised:
            raise SkipTest("all data is centralised")
        try:
            from fedrec.secure.simulated import MINIMUM, simulated_sums
        except FedrecError as error:
            raise SkipTest(str(error)) from None
        for data in self.worlds():
            cohorts = cohorts_of(self.method, data.world)
            # More bits than usual, so that fixed point stays below the tolerance of the comparison.
            blind = simulated_sums(self.method.info.name, 0.0, torch.device("cpu"), bits=40, cohorts=cohorts)
            if self.method.disclosure.gathers:
                refused = _find_refusal(partial(Simulator, self.method, data, blind=blind))
                assert self.method.info.name in refused, "it says that it gathers, but its uploads are sums"
                continue
            uploads = Simulator(self.method, data).server_side.plan(0).uploads()
            if any(np.isin(uploads, cohort.clients).sum() < MINIMUM for cohort in cohorts):
                continue  # nobody could hide in so few
            clear, hidden = (run(self.method, data, self.rounds, **how) for how in ({}, {"blind": blind}))
            # Adam divides by the root of a tiny gradient, and so magnifies the rounding of fixed point.
            tolerance = max(1e-5, self.tolerance)
            assert_close(self.comparable(hidden), self.comparable(clear), tolerance, "with secure sums")

    def test_a_client_moves_what_leaves_by_no_more_than_is_declared(self) -> None:
        """Coupled: where an epsilon is printed, it stands on this bound."""
        method = replace(self.method, **self.method.disclosure.covered_with)  # type: ignore[arg-type]
        if method.info.centralised:
            raise SkipTest("nothing leaves")
        data = self.data(self._layouts()[0], empty=False)
        for place in (1, 5):
            distances = measure_distances(method, data, place)
            # A hair more than declared, for the distance itself is summed in floating point.
            bound = method.disclosure.sensitivity * (1 + 1e-9)
            assert all(distance <= bound for distance in distances), f"{distances} clipping norms, {bound} declared"

    def test_every_byte_is_counted(self) -> None:
        for data in self.worlds():
            watched = Watched(self.method)
            # A small memory makes several chunks, whose bytes must add up all the same.
            simulator = Simulator(watched.as_method, data, memory=1 << 14)
            for number in range(self.rounds):
                simulator.round(number)
            up, down = np.zeros(data.world.clients, np.int64), np.zeros(data.world.clients, np.int64)
            for clients, sent in watched.downs:
                down[clients] += down_bytes(sent, len(clients))
            for trip in watched.trips:
                size = upload_bytes(trip.payload, len(trip.chunk.clients), data.world.dtype.itemsize)
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
        # Many items, so that some are drawn by nobody.
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
