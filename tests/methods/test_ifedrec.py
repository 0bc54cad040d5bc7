"""IFedRec: the suite, whole tables with torch.optim one client at a time, and the published steps by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.accumulator import sum_uploads
from fedrec.federation.advice import divergence_remedy
from fedrec.federation.clients import ClientData, Forbidden
from fedrec.federation.contract import Down, Rows, State, participants
from fedrec.federation.noise import Laplace, UploadContext
from fedrec.federation.simulator import Simulator
from fedrec.federation.stages import Clip
from fedrec.methods import IFedRec
from fedrec.methods.cold.ifedrec import meta_gradients
from fedrec.testing import MethodTests, Watched, assert_close, run, tiny_world
from methods.cold import COLD, attributes, with_attributes
from methods.naive_base import Draws, bce, by_index, descend, linear, mean, taking_part

D = torch.float64


class Client(nn.Module):
    """One client's whole model, as anyone would first write it."""

    def __init__(self, method: IFedRec, private: dict[str, Tensor], table: Tensor) -> None:
        super().__init__()
        self.item = nn.Parameter(table.clone())
        self.own = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in private.items()})
        self.ncf = method.backbone == "ncf"

    def rated(self, rows: Tensor) -> Tensor:
        if not self.ncf:
            return rows @ self.own["weight0"][0] + self.own["bias0"]
        pair = torch.cat([self.own["user"].expand(len(rows), -1), rows], 1)
        hidden = torch.relu(pair @ self.own["weight0"].T + self.own["bias0"])
        return hidden @ self.own["weight1"][0] + self.own["bias1"]


def train(method: IFedRec, client: Client, target: Tensor, data: ClientData, number: int, round: int) -> None:
    drawn, rates = Draws(data, number, round, method.batch), method.rates(data.world)
    trainer = method.trainer_for(data.world)
    head = [value for name, value in client.own.items() if name != "user"]
    groups = [{"params": head, "lr": rates["dense"]}]
    if client.ncf:
        groups.append({"params": [client.own["user"]], "lr": rates["user"]})
    private = torch.optim.SGD(groups)
    table = torch.optim.SGD([client.item], lr=rates["item"])
    alternate = method.alternate if method.alternate is not None else not client.ncf
    for epoch in range(method.epochs):
        for step, batch in enumerate(drawn.epoch(epoch)):
            count = len(batch.item)
            if step and count < method.batch and trainer.last_batch == "drop":
                continue
            size = method.batch if step and trainer.last_batch == "scale" else count
            for optimisers in ([private], [table]) if alternate else ([private, table],):
                loss = bce(client.rated(client.item[batch.item]), batch.label, "sum", trainer.saturation) / size
                descend(loss + method.align * F.mse_loss(client.item, target), client, *optimisers)


def reference(method: IFedRec, data: ClientData, rounds: int) -> dict[str, Tensor]:
    world, x = data.world, attributes(data.world)
    start = method.init_server(world)
    state = method.init_clients(world, data.chunk(np.arange(world.clients)))
    layer = linear(start["weight"], start["bias"])
    adam = torch.optim.Adam(layer.parameters(), lr=method.lr_server)
    table, warm = start["item"], x[: world.items]
    private = [
        {name: value[k] for name, value in (state.per_client | state.per_user).items() if value.numel()}
        for k in range(world.clients)
    ]
    target = torch.tanh(layer(warm)).detach()
    for round in range(rounds):
        tables = []
        for number in taking_part(data, round):
            client = Client(method, private[number], table)
            train(method, client, target, data, number, round)
            private[number] = {name: value.detach() for name, value in client.own.items()}
            tables.append(client.item.detach())
        table = mean(tables)
        for _ in range(method.server_epochs):
            descend(F.mse_loss(torch.tanh(layer(warm)), table), layer, adam)
        target = torch.tanh(layer(warm)).detach()
    with torch.no_grad():
        scores = torch.stack([Client(method, mine, table).rated(target) for mine in private])
    held = {
        ("user." if name == "user" else "client.") + name: torch.stack([mine[name] for mine in private])
        for name in private[0]
    }
    meta = {f"server.{name}": value.detach() for name, value in layer.named_parameters()}
    return {"server.item": table, "scores": by_index(data, scores), **held, **meta}


class IFedRecTests(MethodTests):
    layouts = ("devices",)
    sampled_rows_only = False

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return reference(self.method, data, rounds)


class TestIFedNCF(IFedRecTests):
    method = with_attributes(IFedRec, dim=4, batch=16, lr=0.1, rate_scale=0.2, align=40.0, server_epochs=2)


class TestIPFedRec(IFedRecTests):
    method = with_attributes(IFedRec, backbone="linear", dim=4, batch=16, lr=0.1, rate_scale=0.5, align=30.0)


class TestAlternating(IFedRecTests):
    method = with_attributes(IFedRec, dim=4, batch=16, lr=0.1, rate_scale=0.2, align=5.0, alternate=True, epochs=2)


class TestOntoTheTarget(IFedRecTests):
    """A pull of 1: nothing is left of what rows were, or of what an earlier step did to them."""

    method = with_attributes(IFedRec, backbone="linear", dim=4, batch=16, lr=0.1, rate_scale=0.5, align=40.0, epochs=2)

    def test_the_pull_is_whole(self) -> None:
        assert self.method.pull(self.data().world) == 1


@pytest.mark.parametrize("unique", ["user", "positive"])
@pytest.mark.parametrize(
    "settings",
    [
        {"dim": 37, "batch": 50},
        {"dim": 16, "batch": 7, "alternate": True, "epochs": 2},
        {"dim": 37, "batch": 1000, "backbone": "linear"},
    ],
)
def test_compiled_training_equals_batched(settings, unique):
    """Rows and batches that do not fill vectors, repeated items; most units of the network are active nowhere."""
    method = with_attributes(IFedRec, lr=0.1, rate_scale=20.0, align=1.0, **settings)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        data = tiny_world(dtype=dtype, unique=unique)
        plain = replace(data, world=replace(data.world, compiled=False))
        assert_close(run(method, data, 3), run(method, plain, 3), tolerance, f"compiled, {dtype}")


def one_batch(method: IFedRec, table: list, target: list, state: State) -> tuple[State, Rows, tuple[float, float]]:
    """Item 0 liked, item 1 not (where there is an item 2, it is forbidden)."""
    forbidden = Forbidden(np.zeros(len(table) - 2, np.int64), np.arange(2, len(table)))
    data = ClientData.build(
        tiny_world(len(table), per_user=(1,)).world,
        np.array([0]),
        np.array([0]),
        users=np.array([0]),
        client_ptr=np.array([0, 1]),
        negatives=1,
        forbidden=forbidden,
    )
    chunk = data.chunk(np.array([0]))
    down = Down(shared={"item": torch.tensor(table, dtype=D), "representation": torch.tensor(target, dtype=D)})
    new, up = method.local(state, down, chunk, 0)
    return new, up["item"].value, chunk.observed["loss"]


def test_meta_network():
    x = torch.tensor([[1, 0, 2], [0, 1, -1]], dtype=D)
    weight, bias = torch.tensor([[0.5, -0.5, 0.25], [0, 1, 0.5]], dtype=D), torch.tensor([0, 0.1], dtype=D)
    target = torch.tensor([[0.5, 0.5], [-0.5, 1]], dtype=D)
    loss, of_weight, of_bias = meta_gradients(x, target, weight, bias)
    assert loss.item() == pytest.approx(0.097830, abs=1e-6)
    assert 2 * loss.item() == pytest.approx(0.195660, abs=1e-6)
    expected = [[0.054931, -0.040314, 0.150177], [0.053970, -0.164713, 0.272652]]
    assert torch.allclose(of_weight, torch.tensor(expected, dtype=D), atol=1e-6)
    assert torch.allclose(of_bias, torch.tensor([0.014617, -0.110743], dtype=D), atol=1e-6)


def test_linear_step_by_hand():
    method = IFedRec(backbone="linear", dim=2, lr=0.1, rate_scale=1.0, align=10.0)
    head = {"weight0": torch.tensor([[[0.5, -0.5]]], dtype=D), "bias0": torch.zeros(1, 1, dtype=D)}
    table, target = [[1, 0], [0, 1], [1, 1]], [[0.5, 0], [0, 0.5], [0.5, 0.5]]
    new, rows, loss = one_batch(method, table, target, State(head, {"user": torch.zeros(1, 0, dtype=D)}))
    assert loss[0] / loss[1] == pytest.approx(0.474077, abs=1e-6)
    assert torch.allclose(new.per_client["weight0"], torch.tensor([0.518877, -0.518877], dtype=D), atol=1e-6)
    assert abs(new.per_client["bias0"].item()) < 1e-12
    expected = torch.tensor([[0.529040, -0.029040], [-0.029040, 0.529040], [0.5, 0.5]], dtype=D)
    assert torch.allclose(rows.dense()[0], expected, atol=1e-6)
    assert len(rows.item) == 2  # item 2 lands on the target without ever having been built


def test_linear_gradients_by_hand():
    """Simultaneously, at rates of 1: what moved is the gradient."""
    method = IFedRec(backbone="linear", dim=2, lr=1.0, rate_scale=1 / 3, align=10.0, alternate=False)
    assert method.rates(tiny_world(3, per_user=(1,)).world)["item"] == 1
    head = {"weight0": torch.tensor([[[0.5, -0.5]]], dtype=D), "bias0": torch.zeros(1, 1, dtype=D)}
    table, target = [[1, 0], [0, 1], [1, 1]], [[0.5, 0], [0, 0.5], [0.5, 0.5]]
    new, rows, _ = one_batch(method, table, target, State(head, {"user": torch.zeros(1, 0, dtype=D)}))
    moved = torch.tensor(table, dtype=D) - rows.dense()[0]
    expected = [[1.572281, 0.094385], [0.094385, 1.572281], [1.666667, 1.666667]]
    assert torch.allclose(moved, torch.tensor(expected, dtype=D), atol=1e-6)
    assert torch.allclose(new.per_client["weight0"], torch.tensor([0.5 + 0.18877, -0.5 - 0.18877], dtype=D), atol=1e-6)


def test_ncf_gradients_by_hand():
    method = IFedRec(dim=2, lr=1.0, rate_scale=1.0, align=1.0)
    network = {"weight0": [[[1, 0, 1, 0], [0, 1, 0, 1]]], "bias0": [[0, 0]], "weight1": [[[1, -1]]], "bias1": [[0]]}
    state = State(
        {name: torch.tensor(value, dtype=D) for name, value in network.items()},
        {"user": torch.tensor([[0.5, 0.5]], dtype=D)},
    )
    rates = method.rates(tiny_world(2, per_user=(1,)).world)
    new, rows, loss = one_batch(method, [[1, 0], [0, 1]], [[0, 0], [0, 0]], state)
    assert loss[0] / loss[1] + 0.5 == pytest.approx(0.813262, abs=1e-6)  # the distance is 0.5
    gradient = (torch.eye(2, dtype=D) - rows.dense()[0]) / rates["item"]
    expected = torch.tensor([[0.365529, 0.134471], [0.134471, 0.365529]], dtype=D)
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert torch.allclose(new.per_user["user"], torch.tensor([0.5, 0.5], dtype=D))
    moved = torch.tensor([1, -1], dtype=D) - new.per_client["weight1"][0, 0]
    assert torch.allclose(moved, torch.tensor([-0.134471, 0.134471], dtype=D), atol=1e-6)


def test_released_rates():
    world = replace(tiny_world().world, items=13_584, clients=5551)
    ncf, linear = build_method("IFedNCF"), build_method("IPFedRec")
    assert ncf.rates(world) == pytest.approx({"dense": 0.5, "user": 39.5, "item": 543_359.5})
    assert linear.rates(world) == pytest.approx({"dense": 0.1, "item": 108_672})
    some = replace(world, participation=0.1)
    assert ncf.rates(some)["user"] == pytest.approx(399.5)
    assert len(participants(some, 0, some.participation)) == 555
    assert ncf.pull(world) == pytest.approx(0.4, abs=1e-3)
    assert linear.pull(world) == pytest.approx(0.8)


def test_a_pull_that_swings_rows_farther_is_noted_and_runs():
    """The largest published weights, 10 for IFedNCF and 30 for IPFedRec, are beyond it."""
    world = replace(tiny_world().world, items=13_584)
    for name, align, most in (("IFedNCF", 10.0, "5"), ("IPFedRec", 30.0, "25")):
        method = build_method(name, preset="released", params={"align": align})
        (note,) = method.remarks(world)
        assert "rows overshoot more with every step" in note
        assert f"align below {most} is stable" in note
    Simulator(with_attributes(IFedRec, dim=4, align=10.0), tiny_world()).round(0)
    assert "0.8 of the way" in IFedRec(backbone="linear", lr=0.1, align=10.0).remarks(world)[0]


def test_what_is_said_when_it_diverges():
    said = divergence_remedy(build_method("IFedNCF"))
    assert said.startswith("use --set saturate=released, or lower")


def test_without_samples_rows_go_the_share_and_without_pull_nowhere():
    """Rows outside every batch: exactly (1 - pull) p + pull r; with align=0, p."""
    for align in (0.0, 30.0):
        method = with_attributes(IFedRec, backbone="linear", dim=4, batch=1000, lr=0.1, rate_scale=0.5, align=align)
        data = tiny_world(500)
        simulator = Simulator(method, data)
        start, target = (simulator.server[name].clone() for name in ("item", "representation"))
        chunk = data.chunk(np.arange(12))
        rows = method.local(simulator.cohorts[0].state, method.broadcast(simulator.server, chunk.clients, 0), chunk, 0)[
            1
        ]
        dense = rows["item"].value.dense()
        untouched = torch.ones(12, 500, dtype=torch.bool)
        untouched[rows["item"].value.owner, rows["item"].value.item] = False
        expected = (start + method.pull(data.world) * (target - start)).expand(12, -1, -1)
        assert torch.allclose(dense[untouched], expected[untouched], atol=1e-12)
        assert untouched.any(1).all()


def test_who_never_took_part_predicts_with_the_start():
    data = tiny_world(participation=0.25)
    method = with_attributes(IFedRec, dim=4, batch=16, lr=0.1, rate_scale=0.2, align=5.0)
    simulator = Simulator(method, data)
    start = {name: value.clone() for name, value in simulator.cohorts[0].state.per_client.items()}
    simulator.round(0)
    absent = np.setdiff1d(np.arange(12), participants(data.world, 0, 0.25))
    for name, value in simulator.cohorts[0].state.per_client.items():
        assert torch.equal(value[absent], start[name][absent])
        assert not torch.equal(value, start[name])


def test_scores_come_from_attributes_alone_and_equal_items_tie():
    data = tiny_world()
    method = with_attributes(IFedRec, dim=4, batch=16, lr=0.1, rate_scale=0.2, align=5.0)
    simulator = Simulator(method, data)
    simulator.round(0)
    cold = torch.arange(40, 40 + COLD)
    before = torch.cat([scores for _, scores in simulator.scores(1, cold)])
    assert before.shape == (12, COLD)
    assert torch.equal(before[:, -1], before[:, -2])
    simulator.server["item"] += 1
    assert torch.equal(torch.cat([scores for _, scores in simulator.scores(1, cold)]), before)


def test_attributes_reach_clients_as_representation_only():
    """Another attribute changes nothing that goes down but the representation, and no upload holds interactions."""
    data, downs, ups = tiny_world(), [], []
    data = replace(data, world=replace(data.world, compiled=False))  # uploads as clients make them, not yet summed
    for change in (0.0, 1.0):
        x = attributes(data.world)
        x[3, 1] += change
        watched = Watched(IFedRec(dim=4, batch=16, lr=0.1, rate_scale=0.2, align=5.0))
        simulator = Simulator(watched.as_method, data, attributes=x)
        simulator.round(0)
        downs.append(watched.downs[0][1])
        ups.append(watched.trips[0].payload)
    assert set(downs[0].shared) == {"item", "representation"}
    assert not downs[0].own
    assert torch.equal(downs[0].shared["item"], downs[1].shared["item"])
    different = (downs[0].shared["representation"] != downs[1].shared["representation"]).any(1)
    assert different.nonzero().flatten().tolist() == [3]
    assert set(ups[0]) == {"item"}
    assert ups[0]["item"].value.dense().shape == (12, 40, 4)  # whole tables


def test_bytes_are_two_tables_down_and_one_up():
    data = tiny_world(dtype=torch.float32)
    simulator = Simulator(with_attributes(IFedRec, dim=4, batch=16, lr=0.1, rate_scale=0.2), data)
    simulator.round(0)
    assert (simulator.wire.ledger.up == 40 * 4 * 4).all()
    assert (simulator.wire.ledger.down == 2 * 40 * 4 * 4).all()


def test_stages_see_whole_tables():
    """Clipping and summing the sparse form equals clipping and summing whole tables; noise stays off the client."""
    data = tiny_world()
    method = with_attributes(IFedRec, backbone="linear", dim=4, batch=16, lr=0.1, rate_scale=0.5, align=30.0)
    simulator = Simulator(method, data)
    chunk = data.chunk(np.arange(12))
    down = method.broadcast(simulator.server, chunk.clients, 0)
    rows = method.local(simulator.cohorts[0].state, down, chunk, 0)[1]["item"].value
    assert torch.allclose(sum_uploads(rows, None), rows.dense().sum(0))
    weight = torch.arange(12, dtype=D)
    assert torch.allclose(sum_uploads(rows, weight), torch.tensordot(weight, rows.dense(), dims=1))
    place = UploadContext(data.world, chunk.clients, 0, down.shared)
    sparse, whole = (Clip(3.0).apply({"item": value}, place)["item"] for value in (rows, rows.dense()))
    assert torch.allclose(sparse.dense(), whole)
    noisy, plain = (run(method, data, 1, stages=stages) for stages in ([Laplace(0.1)], []))
    assert not torch.equal(noisy["server.item"], plain["server.item"])
    # up to rounding: where noise needs single uploads torch trains, otherwise the kernel
    assert_close({"w": noisy["client.weight0"]}, {"w": plain["client.weight0"]}, 1e-12, "a client's own copy is clean")


def test_divergence_stops_the_run():
    data = tiny_world()
    method = with_attributes(IFedRec, dim=4, batch=16, lr=1e30, rate_scale=1e-10, align=0.0)
    simulator = Simulator(method, replace(data, world=replace(data.world, dtype=torch.float32)))
    with pytest.raises(FedrecError, match="diverged"):
        _ = [simulator.round(number) for number in range(20)]


def test_out_of_range_and_silos_are_refused():
    for wrong in ({"lr": 0}, {"align": -1}, {"server_epochs": -1}):
        with pytest.raises(FedrecError, match="does not fit ifedrec"):
            build_method("ifedrec", params=wrong)
    with pytest.raises(FedrecError, match="one user per client"):
        Simulator(with_attributes(IFedRec, dim=4, align=0.0), tiny_world(silos=(5, 4, 3)))
