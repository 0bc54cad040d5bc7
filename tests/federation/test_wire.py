"""The one door: bytes, stages, reductions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrec.errors import FedrecError
from fedrec.federation.accumulator import Accumulator
from fedrec.federation.contract import Down, Gather, Mean, PartialSum, Reduction, Rows, Sum, Tensors, World
from fedrec.federation.noise import Gaussian, Laplace, SumGaussian, UploadContext
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import Clip, Quantise, Stage, TopRows, parse_stages
from fedrec.federation.wire import Wire
from fedrec.methods import FedAvg, FedCA, FedMF, Popularity
from fedrec.testing import SINGLE, WHOLE, assert_close, run, tiny_world

MF = {"dim": 4, "init_std": 0.3, "batch": 16, "lr": 1.0}


def world(clients: int = 3, items: int = 6, dtype: torch.dtype = torch.float64) -> World:
    return World(items=items, clients=clients, dtype=dtype)


def generated(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sparse(clients: int = 3, items: int = 6, dim: int = 2, seed: int = 0) -> Rows:
    """Client k changed rows k and k + 2; nobody changed the others."""
    owner = torch.arange(clients).repeat_interleave(2)
    item = (owner + torch.tensor([0, 2]).repeat(clients)) % items
    return Rows(generated(items, dim), owner, item, generated(2 * clients, dim, seed=seed + 1), clients)


def staged(
    stages: list[Stage],
    payload: dict[str, Reduction],
    down: Down,
    clients: np.ndarray | None = None,
    memory: int = 1 << 30,
) -> Tensors:
    """What the server sees of every client's upload, by client."""
    here = np.arange(3) if clients is None else clients
    accumulator = Accumulator()
    wire = Wire(world(), stages, memory)
    wire.send_up({name: Gather(r.value) for name, r in payload.items()}, down, here, "all", 0, accumulator)
    ups = accumulator.update().ups(torch.float64)
    return {name: ups.stacked(name)[1] for name in payload}


class TestBytes:
    def test_fedmf_sends_the_table_both_ways(self):
        """m * d floats of four bytes, per client and round."""
        data = tiny_world(dtype=torch.float32, participation=0.5)
        simulator = Simulator(FedMF(**MF), data, memory=1 << 15)
        table = 40 * 4 * 4
        turns = np.zeros(12, int)
        for number in range(3):
            log = simulator.round(number)
            assert log.clients == 6
            assert log.bytes_up == log.bytes_down == 6 * table
            turns[FedMF(**MF).plan(data.world, {}, number).train] += 1
        ledger = simulator.wire.ledger
        assert ledger.up.tolist() == ledger.down.tolist() == (turns * table).tolist()
        ways = ("up_per_client_round", "down_per_client_round", "largest_up", "largest_down")
        assert ledger.per_client_round() == dict.fromkeys(ways, table)

    def test_a_weight_is_one_more_number(self):
        data = tiny_world(dtype=torch.float32)
        simulator = Simulator(FedAvg(**MF), data)
        log = simulator.round(0)
        assert log.bytes_down == 12 * 640
        assert log.bytes_up == 12 * (640 + 4)

    def test_ncf_adds_the_network(self):
        data = tiny_world(dtype=torch.float32)
        simulator = Simulator(FedAvg(backbone="ncf", **MF), data)
        network = (8 * 4 + 4) + (4 * 2 + 2) + (2 * 1 + 1)
        log = simulator.round(0)
        assert log.bytes_down == 12 * 4 * (160 + network)
        assert log.bytes_up == log.bytes_down + 12 * 4 * 7  # a weight beside each of seven tensors

    def test_popularity_sends_one_number_per_item(self):
        assert Simulator(Popularity(), tiny_world(dtype=torch.float32)).round(0).bytes_up == 12 * 40 * 4

    def test_per_client_tensors_are_counted_once_each(self):
        wire = Wire(world())
        down = Down({"a": torch.zeros(5)}, {"b": torch.zeros(2, 7, dtype=torch.float64)})
        wire.send_down(down, np.array([0, 2]), 4)
        assert wire.ledger.down.tolist() == [20 + 56, 0, 20 + 56]
        assert wire.ledger.rounds[4]["down"] == 152

    def test_quantised_rows_and_their_ranges(self):
        """3 bits an entry, rounded up to bytes, and two floats a row."""
        stages = [Quantise(3)]
        wire = Wire(world(), stages)
        payload: dict[str, Reduction] = {
            "item": Mean(sparse()),
            "vector": Sum(generated(3, 5)),
            "id": Gather(torch.arange(3)),
        }
        wire.send_up(payload, Down(), np.arange(3), "all", 0, Accumulator())
        assert wire.ledger.up.tolist() == [(12 * 3 + 7) // 8 + 8 * 6 + (5 * 3 + 7) // 8 + 8 + 8] * 3

    def test_noise_and_clip_do_not_change_the_size(self):
        plain, private = (
            Simulator(FedAvg(**MF), tiny_world(), stages=stages).round(0).bytes_up
            for stages in ([], [Clip(1.0), Gaussian(0.1)])
        )
        assert plain == private > 0


@st.composite
def uploads(draw):
    """A sparse table and a dense tensor of three clients, with what was broadcast."""
    seed, scale = draw(st.integers(0, 1000)), draw(st.floats(1e-3, 1e3))
    rows = sparse(seed=seed)
    rows = Rows(rows.base, rows.owner, rows.item, rows.base[rows.item] + scale * generated(6, 2, seed=seed), 3)
    network = generated(4, seed=9)
    return rows, network + scale * generated(3, 4, seed=seed + 5), Down({"item": rows.base, "network": network})


class TestClip:
    @settings(max_examples=60)
    @given(uploads(), st.floats(1e-3, 1e3))
    def test_bounds_the_joint_norm_and_nothing_else(self, upload, norm):
        rows, network, down = upload
        payload: dict[str, Reduction] = {"item": Mean(rows), "network": Mean(network)}
        found = staged([Clip(norm)], payload, down)
        before = torch.cat([(rows.dense() - rows.base).flatten(1), network - down.shared["network"]], 1)
        after = torch.cat([(found["item"] - rows.base).flatten(1), found["network"] - down.shared["network"]], 1)
        long = before.norm(dim=1)
        assert torch.allclose(after.norm(dim=1), long.clamp(max=norm), rtol=1e-6, atol=1e-9)
        # the same direction, by one factor for all of a client's tensors
        assert torch.allclose(after, before * (norm / long).clamp(max=1.0)[:, None], rtol=1e-6, atol=1e-9)

    @settings(max_examples=30)
    @given(uploads(), st.floats(1e-2, 1e2))
    def test_sparse_and_dense_tables_are_the_same(self, upload, norm):
        rows, network, down = upload
        left = staged([Clip(norm)], {"item": Mean(rows), "network": Mean(network)}, down)
        right = staged([Clip(norm)], {"item": Mean(rows.dense()), "network": Mean(network)}, down)
        assert_close(left, right, 1e-9, "sparse against dense")

    def test_measured_from_each_clients_own_broadcast(self):
        own = generated(3, 4)
        step = torch.tensor([[3.0, 4.0, 0.0, 0.0]], dtype=torch.float64)
        found = staged([Clip(1.0)], {"x": Sum(own + step)}, Down(own={"x": own}))
        assert torch.allclose(found["x"], own + step / 5)

    def test_without_a_broadcast_measured_from_zero(self):
        found = staged([Clip(1.0)], {"x": Sum(torch.tensor([[3.0, 4.0]] * 3, dtype=torch.float64))}, Down())
        assert torch.allclose(found["x"], torch.tensor([[0.6, 0.8]] * 3, dtype=torch.float64))

    def test_integers_pass(self):
        ids = torch.tensor([[100, 200], [300, 400], [500, 600]])
        found = staged([Clip(1.0)], {"ids": Sum(ids), "x": Sum(torch.full((3, 1), 0.5, dtype=torch.float64))}, Down())
        assert torch.equal(found["ids"], ids)
        assert torch.equal(found["x"], torch.full((3, 1), 0.5, dtype=torch.float64))

    def test_an_upload_without_change_stays(self):
        base = generated(4)
        assert torch.equal(
            staged([Clip(1.0)], {"x": Sum(base.repeat(3, 1))}, Down({"x": base}))["x"], base.repeat(3, 1)
        )


NOISE = [(Laplace, "laplace", 2**0.5), (Gaussian, "norm", 1.0)]


@pytest.mark.parametrize(("stage", "law", "spread"), NOISE)
class TestNoise:
    def drawn(self, stage, scale: float, clients: np.ndarray, entries: int = 20000) -> torch.Tensor:
        zeros = torch.zeros(len(clients), entries, dtype=torch.float64)
        return stage(scale).apply({"x": zeros}, UploadContext(world(), clients, 0, {}))["x"]

    def test_law_and_scale(self, stage, law, spread):
        noise = self.drawn(stage, 3.0, np.arange(2)).numpy()
        assert stats.kstest(noise[0] / 3.0, law).pvalue > 0.001
        assert abs(noise.mean()) < 0.1
        assert abs(noise.std() - 3.0 * spread) < 0.1
        assert abs(np.corrcoef(noise)[0, 1]) < 0.03, "two clients must not share their noise"

    def test_compiled_is_the_same_as_torch(self, stage, law, spread):
        zeros, clients = torch.zeros(3, 7, 5, dtype=torch.float64), np.array([4, 0, 2])
        found = [
            stage(0.5).apply({"x": zeros}, UploadContext(replace(world(), compiled=compiled), clients, 3, {}))["x"]
            for compiled in (True, False)
        ]
        assert bool((found[0] != 0).all())
        assert torch.allclose(*found, rtol=1e-12, atol=0)
        assert not bool(zeros.any()), "the client's own tensor stays as it was"

    def test_belongs_to_the_client_whoever_shares_the_chunk(self, stage, law, spread):
        together = self.drawn(stage, 1.0, np.arange(3), 50)
        assert torch.equal(self.drawn(stage, 1.0, np.array([2, 0]), 50), together[[2, 0]])

    def test_differs_by_tensor_round_and_seed(self, stage, law, spread):
        zeros = torch.zeros(1, 8, dtype=torch.float64)
        seen = []
        for seed in (0, 1):
            for number in (0, 1):
                place = UploadContext(
                    World(items=6, clients=3, seed=seed, dtype=torch.float64), np.array([1]), number, {}
                )
                seen += [tuple(v[0].tolist()) for v in stage(1.0).apply({"x": zeros, "y": zeros}, place).values()]
        assert len(set(seen)) == 8

    def test_reaches_rows_that_did_not_change(self, stage, law, spread):
        """Noise only where something changed would tell what changed."""
        rows = sparse()
        found = staged([stage(1.0)], {"item": Mean(rows)}, Down({"item": rows.base}))["item"]
        assert bool((found != rows.dense()).all())

    def test_sparse_and_dense_tables_are_the_same(self, stage, law, spread):
        rows = sparse()
        left, right = (staged([stage(1.0)], {"item": Mean(v)}, Down()) for v in (rows, rows.dense()))
        assert_close(left, right, 0, "sparse against dense")

    def test_blocks_of_clients_do_not_matter(self, stage, law, spread):
        payload: dict[str, Reduction] = {"item": Mean(sparse()), "x": Mean(generated(3, 4))}
        left, right = (staged([Clip(1.0), stage(1.0)], payload, Down(), memory=memory) for memory in (1, 1 << 30))
        assert_close(left, right, 0, "one client at a time")

    def test_weights_follow_their_clients_through_blocks(self, stage, law, spread):
        payload: dict[str, Reduction] = {"x": Mean(generated(3, 4), torch.tensor([1.0, 5.0, 2.0]).double())}
        means = []
        for memory in (1, 1 << 30):
            accumulator = Accumulator()
            Wire(world(), [stage(1.0)], memory).send_up(payload, Down(), np.arange(3), "all", 0, accumulator)
            means.append(accumulator.update().ups(torch.float64).reduced)
        assert_close(means[0], means[1], 1e-12, "one client at a time")

    def test_a_noisy_run_does_not_depend_on_chunks(self, stage, law, spread):
        stages = [Clip(0.5), stage(0.01)]
        left, right = (run(FedAvg(**MF), tiny_world(), 2, stages=stages, memory=memory) for memory in (WHOLE, SINGLE))
        assert_close(left, right, 1e-9, "one client a chunk")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("text", "spread"),
    [
        ("gaussian=1,gaussian=1", 2**0.5),
        ("gaussian:x=1,gaussian=1", 2**0.5),
        ("gaussian=1,laplace=1", 3**0.5),
        ("gaussian=1,gaussian=1,gaussian=1", 3**0.5),
    ],
)
def test_two_noise_stages_on_one_upload_are_independent(text, spread, late, monkeypatch):
    """Drawn from one stream they would add up: 2 in place of sqrt(2)."""
    if late:
        monkeypatch.setattr("fedrec.federation.wire.DRAWS", 0)
    wire, accumulator = Wire(world(items=4000), parse_stages(text)), Accumulator()
    wire.send_up({"x": Sum(torch.zeros(3, 4000, 2).double())}, Down(), np.arange(3), "all", 0, accumulator)
    assert float(wire.collect(accumulator, 0).ups(wire.world.dtype)["x"].std()) == pytest.approx(
        spread * 3**0.5, rel=0.03
    )


def test_one_noise_on_an_upload_draws_what_it_always_drew():
    """Whatever stands before it, and whatever noise other uploads get."""
    zeros = torch.zeros(3, 8, dtype=torch.float64)
    alone = Gaussian(1.0).apply({"x": zeros}, UploadContext(world(), np.arange(3), 0, {}))["x"]
    assert float(alone[1, 2]) == pytest.approx(0.7834182544062004, abs=1e-12)
    for text in ("gaussian=1", "clip=5,gaussian=1", "laplace:y=2,gaussian:x=1", "gaussian=1,quantise=32"):
        found = staged(list(parse_stages(text)), {"x": Sum(zeros), "y": Sum(zeros)}, Down())["x"]
        assert torch.allclose(found, alone, atol=1e-8), text


class TestQuantise:
    @settings(max_examples=60)
    @given(st.integers(1, 16), st.integers(0, 1000), st.floats(1e-3, 1e3))
    def test_error_is_half_a_step_of_the_rows_range(self, bits, seed, scale):
        rows = scale * generated(3, 5, 8, seed=seed)
        found = staged([Quantise(bits)], {"x": Gather(rows)}, Down())["x"]
        step = (rows.amax(-1, keepdim=True) - rows.amin(-1, keepdim=True)) / (2**bits - 1)
        assert bool(((found - rows).abs() <= step / 2 * (1 + 1e-9)).all())
        assert all(len(row.unique()) <= 2**bits for row in found.reshape(-1, 8))
        assert torch.allclose(found.amax(-1), rows.amax(-1))
        assert torch.allclose(found.amin(-1), rows.amin(-1))

    def test_a_constant_row_stays(self):
        rows = torch.full((3, 2, 4), 0.7, dtype=torch.float64)
        assert torch.equal(staged([Quantise(2)], {"x": Gather(rows)}, Down())["x"], rows)

    @pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 4), (3, 2, 4)])
    def test_clients_do_not_share_a_range(self, shape):
        value = generated(*shape)
        together = staged([Quantise(2)], {"x": Gather(value)}, Down())["x"]
        for k in range(3):
            alone = staged([Quantise(2)], {"x": Gather(value[k : k + 1])}, Down(), np.array([k]))["x"]
            assert torch.equal(alone[0], together[k])

    def test_one_upload_alone_or_all_of_a_prefix(self):
        value, stages = generated(3, 2, 4), list(parse_stages("quantise:change=2"))
        found = staged(stages, {name: Gather(value) for name in ("change.item", "change", "changes")}, Down())
        assert [torch.equal(part, value) for part in found.values()] == [False, False, True]
        wire = Wire(world(), stages)
        wire.send_up({"change.item": Gather(value), "gram": Sum(value)}, Down(), np.arange(3), "all", 0, Accumulator())
        assert wire.ledger.up.tolist() == [(8 * 2 + 7) // 8 + 8 * 2 + 8 * 8] * 3
        with pytest.raises(FedrecError, match="upload"):
            staged(stages, {"gram": Sum(value)}, Down())


class TestTopRows:
    @pytest.mark.parametrize("broadcast", [False, True])
    def test_the_rows_that_went_farthest(self, broadcast):
        start = generated(6, 4, seed=9)
        value = start * broadcast + generated(3, 6, 4)
        down = Down({"x": start}) if broadcast else Down()
        found = staged([TopRows(2)], {"x": Gather(value)}, down)["x"]
        for sent, own in zip(found, value, strict=True):
            away = (own - start * broadcast).norm(dim=1)
            kept = away.argsort(descending=True)[:2]
            expected = (start * broadcast).index_copy(0, kept, own[kept])
            assert torch.equal(sent, expected)

    def test_short_tables_and_vectors_pass(self):
        payload: dict[str, Reduction] = {"x": Gather(generated(3, 2, 4)), "y": Gather(generated(3, 9))}
        found = staged([TopRows(2)], payload, Down())
        assert all(torch.equal(found[name], payload[name].value) for name in payload)

    def test_rows_and_their_numbers_are_counted(self):
        """Two of six rows of two entries; four bytes say which row it is."""
        for text, size in (("top-rows=2", 2 * 2 * 8 + 2 * 4), ("top-rows=2,quantise=8", 2 * 2 + 2 * 8 + 2 * 4)):
            wire = Wire(world(), parse_stages(text))
            wire.send_up({"item": Mean(sparse())}, Down(), np.arange(3), "all", 0, Accumulator())
            assert wire.ledger.up.tolist() == [size] * 3, text


class TestStages:
    def test_act_in_the_order_given(self):
        payload: dict[str, Reduction] = {"x": Sum(torch.full((3, 50), 2.0, dtype=torch.float64))}
        clip_last = staged([Gaussian(5.0), Clip(1.0)], payload, Down())["x"].norm(dim=1)
        clip_first = staged([Clip(1.0), Gaussian(5.0)], payload, Down())["x"].norm(dim=1)
        assert torch.allclose(clip_last, torch.ones(3, dtype=torch.float64))
        assert bool((clip_first > 10).all())

    def test_parse(self):
        assert parse_stages("clip=1, gaussian=0.1,quantise=8") == (Clip(1.0), Gaussian(0.1), Quantise(8))
        assert parse_stages("laplace=0.5") == (Laplace(0.5),)
        assert parse_stages("") == ()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("clp=1", "did you mean 'clip'"),
            ("clip", "needs a number"),
            ("clip=a", "needs a number"),
            ("clip=0", "must be positive"),
            ("gaussian=-1", "must be positive"),
            ("laplace=nan", "must be positive"),
            ("clip=inf", "must be positive"),
            ("quantise=2.5", "whole number from 1 to 32"),
            ("quantise=33", "whole number from 1 to 32"),
            ("quantise=8,gaussian=1", "must be the last"),
            ("top-rows=2.5", "whole number"),
            ("clip:item=1", "leave out ':item'"),
        ],
    )
    def test_parse_refuses(self, text, message):
        with pytest.raises(FedrecError, match=message):
            parse_stages(text)

    @pytest.mark.parametrize("method", [FedMF(**MF), FedAvg(**MF), FedAvg(backbone="ncf", **MF), Popularity()])
    @pytest.mark.parametrize("silos", [None, (5, 4, 3)])
    def test_a_clip_that_never_bites_changes_nothing(self, method, silos):
        data = tiny_world(silos=silos)
        plain, clipped = (run(method, data, 2, stages=stages) for stages in ([], [Clip(1e9)]))
        assert_close(clipped, plain, 1e-9, "clip of 1e9")

    @pytest.mark.parametrize("stages", [[Clip(0.01)], [Gaussian(1.0)], [Quantise(2)]])
    @pytest.mark.parametrize("score_with", ["received", "local"])
    def test_the_client_keeps_what_it_trained(self, stages, score_with):
        """A stage acts on what is sent: after one round the server differs, the clients do not."""
        method = FedAvg(**MF, score_with=score_with)
        plain, private = (run(method, tiny_world(), 1, stages=s) for s in ([], stages))
        assert not torch.allclose(plain["server.item"], private["server.item"], atol=1e-4)
        own = [name for name in plain if name.startswith(("user.", "client."))]
        assert own
        assert_close({n: private[n] for n in own}, {n: plain[n] for n in own}, 1e-9, "state of the clients")

    def test_clipping_bounds_what_a_client_can_do_to_the_mean(self):
        data = tiny_world()
        method = FedMF(**MF | {"lr": 50.0})
        start = method.trainer.init_items(data.world)
        moved = run(method, data, 1, stages=[Clip(0.1)])["server.item"] - start
        assert 0 < float(moved.norm()) <= 0.1 * (1 + 1e-9)


class TestReductions:
    weight = torch.tensor([1.0, 5.0, 0.0], dtype=torch.float64)

    def reduced(self, reduction: Reduction, pieces: bool = False) -> torch.Tensor:
        accumulator = Accumulator()
        accumulator.add({"x": reduction}, np.arange(3), "all")
        return accumulator.update().ups(torch.float64)["x"]

    @pytest.mark.parametrize("make", [Sum, Mean])
    def test_sparse_tables_fold_as_dense_ones(self, make):
        rows = sparse()
        expected = rows.dense().sum(0) if make is Sum else rows.dense().mean(0)
        assert torch.allclose(self.reduced(make(rows)), expected, atol=1e-12)
        assert torch.allclose(self.reduced(make(rows.dense())), expected, atol=1e-12)
        folded = PartialSum(rows.base, (rows.dense() - rows.base).sum(0), 3)
        assert torch.allclose(self.reduced(make(folded)), expected, atol=1e-12)

    def test_weighted_mean(self):
        rows = sparse()
        dense = rows.dense()
        expected = (dense[0] + 5 * dense[1]) / 6
        assert torch.allclose(self.reduced(Mean(rows, self.weight)), expected, atol=1e-12)
        assert torch.allclose(self.reduced(Mean(dense, self.weight)), expected, atol=1e-12)
        folded = PartialSum(rows.base, torch.tensordot(self.weight, dense - rows.base, dims=1), 3)
        assert torch.allclose(self.reduced(Mean(folded, self.weight)), expected, atol=1e-12)

    def test_chunks_of_unequal_weight(self):
        """The mean over chunks is that over clients, not that of the chunks' means."""
        value, weight = generated(3, 4), torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64)
        accumulator = Accumulator()
        accumulator.add({"x": Mean(value[:2], weight[:2])}, np.array([0, 1]), "all")
        accumulator.add({"x": Mean(value[2:], weight[2:])}, np.array([2]), "all")
        assert torch.allclose(accumulator.update().ups(torch.float64)["x"], torch.tensordot(weight, value, dims=1) / 10)

    def test_each_keeps_clients_apart_and_in_order(self):
        value = generated(3, 4)
        accumulator = Accumulator()
        accumulator.add({"x": Gather(value[[2]])}, np.array([8]), "all")
        accumulator.add({"x": Gather(value[[0, 1]])}, np.array([3, 5]), "all")
        ids, stacked = accumulator.update().ups(torch.float64).stacked("x")
        assert ids.tolist() == [3, 5, 8]
        assert torch.equal(stacked, value)

    def test_rows_dense(self):
        rows = sparse()
        dense = rows.dense()
        assert dense.shape == (3, 6, 2)
        for k in range(3):
            mine = rows.owner == k
            assert torch.equal(dense[k][rows.item[mine]], rows.value[mine])
            others = [i for i in range(6) if i not in rows.item[mine].tolist()]
            assert torch.equal(dense[k][others], rows.base[others])


WEIGHTS = torch.ones(3, dtype=torch.float64)
COUNTS = torch.tensor([[3], [4], [5]])
WHOLE_ROWS = Rows(torch.zeros(6, 1, dtype=torch.int64), torch.arange(3), torch.arange(3), COUNTS, 3)


@pytest.mark.parametrize(
    ("stages", "payload", "open_to_all"),
    [
        ("gaussian=1", {"x": Mean(generated(3, 4))}, {}),
        ("gaussian=1", {"x": Mean(generated(3, 4), WEIGHTS)}, {"the weights of 'x'": 3 * 8}),
        ("gaussian=1", {"x": Gather(generated(3, 4)), "n": Gather(COUNTS)}, {"'n'": 3 * 8}),
        ("gaussian=1", {"x": Gather(generated(3, 4), torch.tensor([1, 4, 2]))}, {"the lengths of 'x'": 3 * 8}),
        ("gaussian=1", {"n": Gather(COUNTS, torch.ones(3).int())}, {"'n'": 3 * 8, "the lengths of 'n'": 3 * 8}),
        ("gaussian=1", {"n": Sum(WHOLE_ROWS)}, {"'n'": 3 * 6 * 8}),
        ("gaussian=1", {"n": Mean(COUNTS > 3, WEIGHTS)}, {"'n'": 3, "the weights of 'n'": 3 * 8}),
        ("gaussian=1", {"x": Gather(generated(3, 4) + 0j)}, {"'x'": 3 * 4 * 16}),
        ("laplace:x=1", {"x": Gather(generated(3, 4)), "y": Sum(sparse())}, {"'y'": 3 * 12 * 8}),
        ("laplace:x=1,laplace:y=1", {"x": Gather(generated(3, 4)), "y": Sum(sparse())}, {}),
        ("clip=1,quantise=8", {"x": Gather(generated(3, 4))}, {"'x'": 3 * (4 + 8)}),
        ("clip=1,sum-gaussian=1", {"x": Sum(generated(3, 4)), "y": Sum(sparse())}, {}),
        ("clip=1,sum-gaussian=1", {"x": Sum(generated(3, 4)), "n": Sum(COUNTS)}, {"'n'": 3 * 8}),
        ("clip=1,sum-gaussian=1", {"x": Gather(generated(3, 4))}, {"'x'": 3 * 4 * 8}),
    ],
)
def test_what_no_noise_reaches_counts_as_unprotected(
    stages: str, payload: dict[str, Reduction], open_to_all: dict[str, int]
) -> None:
    """Every kind of upload and every part of it: weights, lengths, whole numbers, what a name leaves out."""
    wire = Wire(world(), parse_stages(stages))
    wire.send_up(payload, Down(), np.arange(3), "all", 0, Accumulator())
    assert wire.ledger.unprotected == open_to_all
    wire.send_up(payload, Down(), np.arange(3), "all", 1, Accumulator())
    assert wire.ledger.unprotected == {part: 2 * size for part, size in open_to_all.items()}, "of all rounds"


def test_the_size_of_a_message_tells_as_much_as_a_length() -> None:
    wire, accumulator = Wire(world(), [Gaussian(1.0)]), Accumulator()
    for client in range(3):
        wire.send_up({"x": Gather(generated(1, 1 + client))}, Down(), np.array([client]), "all", 0, accumulator)
    assert wire.ledger.unprotected == {"the size of 'x'": 2 * 8}
    for cohort in ("wide", "narrow"):  # what a cohort sends is known to all
        wire.send_up({"x": Gather(generated(1, 2 + len(cohort)))}, Down(), np.array([0]), cohort, 1, accumulator)
    assert wire.ledger.unprotected == {"the size of 'x'": 2 * 8}


def test_whole_numbers_in_rows_pass_as_they_are() -> None:
    down = Down()
    for stages in ([Clip(0.1)], [Gaussian(1.0)], [Quantise(2)]):
        assert torch.equal(staged(stages, {"n": Sum(WHOLE_ROWS)}, down)["n"], WHOLE_ROWS.dense())


def test_the_ledger_counts_how_often_each_client_uploaded() -> None:
    simulator = Simulator(FedMF(**MF), tiny_world(participation=0.25), memory=SINGLE)
    sent = np.zeros(12, int)
    for number in range(5):
        sent[simulator.method.plan(simulator.world, simulator.server, number).uploads()] += 1
        simulator.round(number)
    assert np.array_equal(simulator.wire.ledger.uploads, sent)
    assert 1 <= sent.max() < 5


def test_uploads_of_different_lengths_are_filled_up():
    accumulator = Accumulator()
    for clients, width in ((np.array([4]), 2), (np.array([0, 2]), 3)):
        value = torch.ones(len(clients), 2, width)
        accumulator.add({"x": Gather(value), "n": Gather(torch.from_numpy(clients))}, clients, "all")
    ups = accumulator.update().ups(torch.float64)
    ids, found = ups.stacked("x")
    assert ids.tolist() == [0, 2, 4]
    assert found.sum(-1).tolist() == [[3, 3], [3, 3], [2, 2]]
    assert found.shape == (3, 2, 3)
    assert ups.stacked("n")[1].tolist() == [0, 2, 4], "one number per client"


class TestNoiseOnTheSum:
    """What each of n clients adds N(0, scale^2 / n) to: the sum alone, drawn once."""

    def test_has_the_asked_spread_and_no_bias_however_many_clients(self):
        for silos in (None, (12,)):
            data = tiny_world(items=4000, silos=silos)
            plain, noised = (
                run(Popularity(), data, 1, stages=s)["server.popularity"] for s in ([], [SumGaussian(3.0)])
            )
            draws = (noised - plain).flatten() / 3.0
            assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-3

    def test_neither_chunks_nor_engines_matter_but_the_seed_does(self):
        stages = [Clip(2.0), SumGaussian(1.0)]
        whole, pieces = (run(Popularity(), tiny_world(), 1, stages=stages, memory=m) for m in (WHOLE, SINGLE))
        assert_close(whole, pieces, 1e-12, "chunks")
        assert_close(run(Popularity(), tiny_world(compiled=False), 1, stages=stages), whole, 1e-9, "compiled")
        other = run(Popularity(), tiny_world(seed=1), 1, stages=stages)
        assert not torch.equal(other["scores"], whole["scores"])

    def test_a_client_moves_the_sum_by_its_clipped_upload_alone(self):
        data = tiny_world()
        without = tiny_world(empty=True)  # the same but for one client's eight items
        gap = [
            run(Popularity(), d, 1, stages=[Clip(0.5), SumGaussian(1.0)])["server.popularity"] for d in (data, without)
        ]
        assert float((gap[0] - gap[1]).norm()) == pytest.approx(0.5, rel=1e-6)

    def test_single_uploads_are_refused(self):
        with pytest.raises(FedrecError, match="sums and means"):
            run(FedCA(dim=4), tiny_world(), 1, stages=[SumGaussian(1.0)])

    def test_two_on_one_sum_are_independent(self):
        data = tiny_world(items=4000)
        both = [SumGaussian(3.0), SumGaussian(4.0)]
        plain, noised = (run(Popularity(), data, 1, stages=s)["server.popularity"] for s in ([], both))
        assert float((noised - plain).std()) == pytest.approx(5.0, rel=0.05)

    def test_has_a_name(self):
        assert parse_stages("clip=2,sum-gaussian=0.5") == (Clip(2.0), SumGaussian(0.5))
        with pytest.raises(FedrecError, match="leave out"):
            parse_stages("sum-gaussian:item=0.5")
