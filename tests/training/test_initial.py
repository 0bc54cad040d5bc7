"""Initial values: within their bounds, from a stream of their own, and for everybody the same whoever asks."""

from __future__ import annotations

import numpy as np
import torch

from fedrec.federation.contract import World
from fedrec.training.initial import ITEM, USER, fan_in_uniform, initial_key, normal_rows, normal_values, user_keys

WORLD = World(items=50, clients=3, dtype=torch.float64)
KEY = initial_key(WORLD, ITEM)


def test_weights_and_their_bias_share_a_bound():
    shapes = {"weight0": (200, 16), "bias0": (200,), "weight1": (300, 100), "bias1": (300,)}
    made = fan_in_uniform(WORLD, KEY, shapes)
    assert {name: tuple(value.shape) for name, value in made.items()} == shapes
    for layer, bound in enumerate((0.25, 0.1)):
        for name in (f"weight{layer}", f"bias{layer}"):
            assert 0.9 * bound < float(made[name].abs().max()) <= bound


def test_fan_in_along_the_other_axis():
    made = fan_in_uniform(WORLD, KEY, {"weight": (16, 200), "bias": (200,)}, axis=0)
    assert all(0.2 < float(value.abs().max()) <= 0.25 for value in made.values())


def test_weights_do_not_repeat_each_other():
    made = fan_in_uniform(WORLD, KEY, {"weight0": (8, 4), "weight1": (8, 4)})
    assert not torch.isclose(made["weight0"], made["weight1"]).any()


def test_rows_have_their_spread_and_stream():
    rows = normal_rows(WORLD, KEY, 2000, 4, 0.5)
    assert abs(float(rows.std()) - 0.5) < 0.02
    assert torch.equal(rows[:10], normal_rows(WORLD, KEY, 10, 4, 0.5))
    assert not torch.isclose(rows[:10], normal_rows(WORLD, initial_key(WORLD, USER), 10, 4, 0.5)).any()


def test_a_user_s_values_do_not_depend_on_company():
    width = torch.arange(4)[None]
    together = normal_values(WORLD, user_keys(WORLD, np.array([7, 2, 5])), width, 1.0)
    alone = normal_values(WORLD, user_keys(WORLD, np.array([2])), width, 1.0)
    assert torch.equal(together[[1]], alone)
