"""IFedRec as its released code trains, and its kin with that gradient: the same one client at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedrec.errors import DivergedError
from fedrec.experiment.params import build_method
from fedrec.federation.advice import divergence_remedy
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from fedrec_studies.variants.cs_pfedrec import CsPFedRecVariants
from fedrec_studies.variants.ifedrec import IFedRecVariants
from fedrec_studies.variants.ifedrec_lan import IFedRecLANVariants
from methods.cold import attributes, saturates, with_attributes
from methods.test_cold_baselines import SMALL, ContentTests, pfedrec_reference
from methods.test_ifedrec import IFedRecTests


class TestKept(IFedRecTests):
    method = with_attributes(
        IFedRecVariants, dim=4, batch=16, lr=0.1, rate_scale=0.2, align=5.0, alternate=True, epochs=2, last_batch="keep"
    )


class TestScaled(IFedRecTests):
    method = with_attributes(
        IFedRecVariants, backbone="linear", dim=4, batch=16, lr=0.1, rate_scale=0.5, align=0.0, last_batch="scale"
    )


class Saturated(IFedRecTests):
    """At rates with which scores leave single precision; negatives as under the published protocol."""

    tolerance = 1e-4  # of single precision, after steps that go far
    rounds = 2

    def data(self, layout: str = "", **options: Any) -> ClientData:
        return super().data(layout, **{"unique": "user"} | options)

    def test_some_scores_saturate(self) -> None:
        saturates(self.method, self.data(), self.rounds)


class TestSaturatedNCF(Saturated):
    method = with_attributes(
        IFedRecVariants,
        **IFedRecVariants.info.presets["released"],
        dim=4,
        batch=16,
        lr=0.5,
        rate_scale=1000.0,
        align=0.001,
    )


class TestSaturatedLinear(Saturated):
    method = with_attributes(
        IFedRecVariants,
        **IFedRecVariants.info.presets["released"],
        backbone="linear",
        dim=4,
        batch=16,
        lr=20.0,
        rate_scale=0.05,
        align=1.0,
    )


def test_compiled_training_equals_batched():
    """With short last batches."""
    method = with_attributes(
        IFedRecVariants, lr=0.1, rate_scale=20.0, align=1.0, dim=16, batch=7, last_batch="keep", epochs=2
    )
    data = tiny_world(unique="user")
    plain = replace(data, world=replace(data.world, compiled=False))
    assert_close(run(method, data, 3), run(method, plain, 3), 1e-10, "compiled")


@pytest.mark.parametrize(("name", "scale"), [("IFedNCF", 80.0), ("IFedNCF", 400.0), ("IPFedRec", 2000.0)])
def test_rates_that_only_the_released_gradient_survives(name, scale):
    """In single precision, with a stable pull; 80 is the published scale."""
    data = tiny_world(dtype=torch.float32)
    method = replace(build_method(name, preset="released", params={"dim": 8}), rate_scale=scale)
    method = replace(method, align=method.align * 0.4 / method.pull(data.world))
    calm = Simulator(method, data, attributes=attributes(data.world))
    for number in range(60):
        calm.round(number)
        assert float(calm.server["item"].abs().max()) < 1000
    wild = Simulator(replace(method, saturate="none"), data, attributes=attributes(data.world))
    with pytest.raises(DivergedError, match=r"use --set saturate=released"):
        _ = [wild.round(number) for number in range(100)]  # the kernel sums losses in double, which overflow later


def test_what_is_said_when_it_diverges():
    assert divergence_remedy(build_method("IFedNCF", preset="released")).startswith(
        "use --set last_batch=drop, or lower"
    )


class TestSaturatedLAN(ContentTests):
    tolerance = 1e-4  # of single precision, after steps that go far
    method = with_attributes(IFedRecLANVariants, **SMALL, **IFedRecLANVariants.info.presets["released"], lr=6.0)

    def test_some_scores_saturate(self) -> None:
        saturates(self.method, self.data(), self.rounds)


class TestSaturatedCsPFedRec(MethodTests):
    """With one user per client, so that its kernel trains."""

    layouts = ("devices",)
    tolerance = 1e-4  # of single precision, after steps that go far
    rounds = 2
    method = with_attributes(
        CsPFedRecVariants,
        **SMALL,
        **CsPFedRecVariants.info.presets["released"],
        lr=20.0,
        item_rate_scale=0.02,
        neighbours=3,
    )

    def reference(self, data: ClientData, rounds: int) -> dict[str, Tensor]:
        return pfedrec_reference(self.method, data, rounds)

    def test_some_scores_saturate(self) -> None:
        saturates(self.method, self.data(), self.rounds)
