from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, State, World, participants
from fedrec.federation.noise import UploadContext
from fedrec.federation.stages import Clip
from fedrec.methods import Ease, FedGram
from fedrec.methods.closed_form.gram import fading, invert, next_block, state_block
from fedrec.methods.reference.gfcf import CentralGFCF
from fedrec.testing import MethodTests, run, tiny_world

ORDER = {"order": True, "half_life": 2.0, "floor": 0.1, "window": 3, "co": 0.5, "l2": 2.0}


def histories(data: ClientData, rounds: int = 1) -> list[np.ndarray]:
    """Of everybody who took part in the last round."""
    clients = participants(data.world, rounds - 1, data.world.participation)
    places = [p for c in clients for p in range(data.client_ptr[c], data.client_ptr[c + 1])]
    return [data.history[data.user_ptr[p] : data.user_ptr[p + 1]] for p in places]


def states(history: np.ndarray, method: FedGram, items: int) -> np.ndarray:
    """x_t for t = 1..n by the definition: everything fades with every step, down to the floor."""
    x = np.zeros((len(history), items))
    for t in range(len(history)):
        for s in range(t + 1):
            x[t, history[s]] = method.floor + (1 - method.floor) * 0.5 ** ((t - s) / method.half_life)
    return x


def sums(method: FedGram, data: ClientData, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G, M and item degrees, step by step."""
    m = data.world.items
    g, c, degree = np.zeros((m, m)), np.zeros((m, m)), np.zeros(m)
    for history in histories(data, rounds):
        row = np.zeros(m)
        row[history] = 1.0
        degree += row
        weight = 1.0 if method.model == "ease" or method.order else 1.0 / max(1, len(history))
        g += (method.co if method.order else weight) * np.outer(row, row)
        if method.order:
            c += method.co * np.outer(row, row)
            x = states(history, method, m)
            for t in range(len(history) - 1):
                y = np.zeros(m)
                for j, item in enumerate(history[t + 1 : t + 1 + method.window], 1):
                    y[item] = 1 / j
                g += np.outer(x[t], x[t])
                c += np.outer(x[t], y)
    return g, c if method.order else g, degree


def column_by_column(g: np.ndarray, c: np.ndarray, l2: float) -> np.ndarray:
    """Ridge regression for every item from all others."""
    m = len(g)
    b = np.zeros((m, m))
    for j in range(m):
        rest = np.delete(np.arange(m), j)
        b[rest, j] = np.linalg.solve(g[np.ix_(rest, rest)] + l2 * np.eye(m - 1), c[rest, j])
    return b


def normalised(g: np.ndarray, degree: np.ndarray) -> np.ndarray:
    root = np.array([d**-0.5 if d else 0.0 for d in degree])
    return np.diag(root) @ g @ np.diag(root)


def all_rows(method: FedGram, data: ClientData) -> np.ndarray:
    rows = np.zeros((len(data.users), data.world.items))
    for place, user in enumerate(data.users):
        history = data.history[data.user_ptr[place] : data.user_ptr[place + 1]]
        if len(history):
            rows[user] = states(history, method, data.world.items)[-1]
            if not method.order:
                rows[user, history] = 1.0
    return rows


class Reference(MethodTests):
    random = False
    rounds = 2
    method: FedGram

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        method = self.method
        g, c, degree = sums(method, data, rounds)
        b = column_by_column(g, c, method.l2) if method.model == "ease" else normalised(c, degree)
        b = b / np.maximum(degree, 1) ** method.popularity_power
        scores = all_rows(method, data) @ b
        return {"server.weight": torch.from_numpy(b), "scores": torch.from_numpy(scores)}


class TestEaseModel(Reference):
    method = FedGram(l2=2.0, popularity_power=0.3)


class TestLinear(Reference):
    method = FedGram(model="linear")


class TestOrder(Reference):
    method = FedGram(**ORDER, popularity_power=0.2)


class TestOrderLinear(Reference):
    method = FedGram(model="linear", **ORDER)


class TestGFCF(MethodTests):
    method = FedGram(model="gfcf", frequencies=3)
    random = False
    rounds = 2


class TestSketch(MethodTests):
    method = FedGram(sketch=12, **ORDER)
    rounds = 2
    tolerance = 1e-7  # a pseudo-inverse stands in between

    def test_seed_decides_everything(self) -> None:
        data = self.data()
        first, again = (run(self.method, data, 1)["scores"] for _ in range(2))
        other = run(self.method, replace(data, world=replace(data.world, seed=1)), 1)["scores"]
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


LAYOUTS: list[Any] = [None, (5, 4, 3), (12,)]


@pytest.mark.parametrize("silos", LAYOUTS)
def test_is_the_centralised_ease(silos):
    central = run(Ease(l2=2.0), tiny_world(silos=(12,)), 1)
    ours = run(FedGram(l2=2.0), tiny_world(silos=silos), 1)
    assert torch.allclose(ours["server.weight"], central["client.weight"][0], atol=1e-9)
    assert torch.allclose(ours["scores"], central["scores"], atol=1e-9)


@pytest.mark.parametrize("silos", LAYOUTS)
def test_is_the_centralised_graph_filter(silos):
    central = run(CentralGFCF(frequencies=3, ideal_weight=0.7), tiny_world(silos=(12,)), 1)
    ours = run(FedGram(model="gfcf", frequencies=3, ideal_weight=0.7), tiny_world(silos=silos), 1)
    assert torch.allclose(ours["scores"], central["scores"], atol=1e-6)


@pytest.mark.parametrize("order", [False, True])
def test_who_holds_the_data_does_not_matter_in_single_precision_either(order):
    method = FedGram(**ORDER | {"order": order})
    first, *others = (run(method, tiny_world(silos=silos, dtype=torch.float32), 1) for silos in LAYOUTS)
    for other in others:
        assert torch.allclose(first["scores"], other["scores"], atol=1e-6)


EXAMPLE = [[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 1, 1, 1, 0], [1, 0, 0, 1, 0]]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (4,), (2, 2)])
def test_is_the_centralised_gfcf(sizes):
    """A worked example with one factor; with all four the ideal filter is the identity on items that occur."""
    user, item = np.nonzero(EXAMPLE)
    world = World(items=5, clients=len(sizes), dtype=torch.float64)
    client_ptr = np.concatenate([[0], np.cumsum(sizes)])
    data = ClientData.build(world, user, item, users=np.arange(4), client_ptr=client_ptr, negatives=0)
    scores = run(FedGram(model="gfcf", frequencies=1, ideal_weight=0.3), data, 1)["scores"]
    expected = [
        (0.904124, 0.754124, 0.504124, 0.504124, 0),
        (0.904124, 0.504124, 0.754124, 0.504124, 0),
        (0.912372, 0.95, 0.95, 0.95, 0),
        (0.904124, 0.504124, 0.504124, 0.754124, 0),
    ]
    assert torch.allclose(scores, torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    full = run(FedGram(model="gfcf", frequencies=4, ideal_weight=0.3), data, 1)["server.weight"].diagonal()
    assert torch.allclose(full, torch.tensor([0.8, 0.716667, 0.716667, 0.716667, 0], dtype=torch.float64), atol=1e-6)


def test_a_short_history_has_the_corner_of_a_long_one():
    fade = fading(2.0, 0.1, 9)
    for block in (state_block, lambda f: next_block(f, 3)):
        assert np.allclose(block(fade)[-4:, -4:], block(fade[:4]), atol=1e-12)
    assert state_block(fade[:1]).tolist() == [[0.0]]


def test_renaming_items_renames_the_model():
    data = tiny_world()
    names = np.random.default_rng(3).permutation(40)
    user = np.repeat(data.users, np.diff(data.user_ptr))
    other = ClientData.build(data.world, user, names[data.history], users=data.users, client_ptr=data.client_ptr)
    before, after = (run(FedGram(**ORDER), d, 1)["scores"] for d in (data, other))
    assert torch.allclose(before, after[:, torch.from_numpy(names)], atol=1e-9)


def test_order_matters_only_when_asked():
    data = tiny_world()
    back = replace(data, history=np.concatenate([h[::-1] for h in np.split(data.history, data.user_ptr[1:-1])]))
    assert torch.equal(run(FedGram(), data, 1)["scores"], run(FedGram(), back, 1)["scores"])
    assert not torch.allclose(run(FedGram(**ORDER), data, 1)["scores"], run(FedGram(**ORDER), back, 1)["scores"])


@pytest.mark.parametrize("order", [False, True])
def test_a_sketch_as_wide_as_the_catalogue_loses_nothing_and_a_narrow_one_little(order):
    data = tiny_world()
    exact = run(FedGram(**ORDER | {"order": order}), data, 1)["scores"]
    seen = torch.zeros_like(exact, dtype=torch.bool)
    seen[torch.from_numpy(np.repeat(data.users, np.diff(data.user_ptr))), torch.from_numpy(data.items)] = True
    gaps = []
    for sketch in (40, 24, 6):
        found = run(FedGram(**ORDER | {"order": order}, sketch=sketch), data, 1)["scores"]
        gaps.append(float((found - exact)[~seen].norm() / exact[~seen].norm()))
    assert gaps[0] < 1e-6
    assert gaps[1] < gaps[2]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("l2=0", "l2"),
        ("half_life=0", "half_life"),
        ("floor=2", "floor"),
        ("window=0", "window"),
        ("co=-1", "co"),
        ("frequencies=0", "frequencies"),
        ("ideal_weight=-1", "ideal_weight"),
        ("sketch=-1", "sketch"),
    ],
)
def test_refuses_what_cannot_be(setting, said):
    key, value = setting.split("=")
    with pytest.raises(FedrecError, match=said):
        build_method("fedgram", params={key: value})


def test_refuses_what_does_not_fit_together():
    with pytest.raises(FedrecError, match="cannot use the order of items"):
        FedGram(model="gfcf", order=True)
    with pytest.raises(FedrecError, match="sketch"):
        FedGram(model="linear", sketch=4)


def test_declares_that_its_sum_must_be_blind():
    assert FedGram().disclosure.secure_aggregation


def test_the_command_line_says_so():
    from typer.testing import CliRunner

    from fedrec.cli import app

    assert "does not start without secure sums" in CliRunner().invoke(app, ["methods", "fedgram"]).output
    assert "does not start without secure sums" not in CliRunner().invoke(app, ["methods", "fedmf"]).output


def clipped(method: FedGram, one: list[int], two: list[int], clip: float) -> list[torch.Tensor]:
    """The whole uploads, as one row of numbers each, of two clients with these histories."""
    world = World(items=8, clients=2, dtype=torch.float64)
    user, item = np.repeat([0, 1], [len(one), len(two)]), np.array([*one, *two], dtype=np.int64)
    data = ClientData.build(world, user, item, users=np.arange(2), client_ptr=np.arange(3), negatives=0)
    _, sent = method.local(State(), Down(), data.chunk(np.arange(2)), 0)
    place = UploadContext(world, np.arange(2), 0, {})
    uploads = Clip(clip).apply({name: reduction.value for name, reduction in sent.items()}, place)
    return list(torch.cat([value.dense().flatten(1) for value in uploads.values()], 1))


history = st.lists(st.integers(0, 7), unique=True, min_size=1)
LOUD: list[dict[str, Any]] = [{}, ORDER, {"model": "linear"}, {"model": "linear", **ORDER}, {"sketch": 3}]


@pytest.mark.parametrize("params", LOUD)
@settings(max_examples=40)
@given(one=history, two=history, clip=st.floats(0.01, 100))
def test_clipped_uploads_lie_no_further_apart_than_the_noise_is_measured_by(params, one, two, clip):
    method = FedGram(**params)
    u, v = clipped(method, one, two, clip)
    assert max(float(u.norm()), float(v.norm())) <= clip * (1 + 1e-12)
    assert float((u - v).norm()) <= method.disclosure.sensitivity * clip * (1 + 1e-12)


def test_that_bound_is_reached_and_a_sketch_has_none_so_low():
    u, v = clipped(FedGram(), [0, 1], [2, 3, 4], 0.5)
    assert float((u - v).norm()) == pytest.approx(FedGram().disclosure.sensitivity * 0.5)
    assert FedGram(sketch=4).disclosure.sensitivity == 2.0


def test_noise_that_regularisation_nearly_hides_is_not_amplified():
    """An eigenvalue of -0.99 l2 counts as zero; added up, it would make the model a hundred times as large."""
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(size=(30, 30)))
    lowest = float(torch.linalg.eigvalsh(0.5 * (noise + noise.T))[0])
    l2 = -lowest / 0.99
    found = torch.linalg.eigvalsh(invert(noise, l2))
    assert float(found.max()) == pytest.approx(1 / l2)
    data = torch.from_numpy(rng.integers(0, 2, size=(50, 30))).double()
    assert torch.allclose(invert(data.T @ data, 2.0), torch.linalg.inv(data.T @ data + 2.0 * torch.eye(30)))
