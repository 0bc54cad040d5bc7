"""The centralised mixture: all checks of the suite; each of its parts is the method of that name."""

from __future__ import annotations

import pytest
import torch

from fedrec.experiment.params import build_method
from fedrec.federation.simulator import Simulator
from fedrec.methods import Blend, CentralSASRec, FedGram
from fedrec.testing import MethodTests, all_scores, assert_close, tiny_world
from methods.test_fedblend import standardised

SMALL = {"dim": 4, "length": 5, "batch": 4, "lr": 0.05, "l2": 2.0}
GRAM = {"l2": 2.0, "order": True, "popularity_power": 0.3}


class TestBlend(MethodTests):
    method = Blend(**SMALL, gram_share=0.3)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_it_mixes_the_gram_model_and_sasrec(share):
    data = tiny_world(silos=(12,))
    sequence = CentralSASRec(
        **{name: value for name, value in SMALL.items() if name != "l2"}, loss="ce", weight_decay=1.0
    )
    found = []
    for method in (Blend(**SMALL, gram_share=share), FedGram(**GRAM), sequence):
        simulator = Simulator(method, data)
        for round in range(1 if isinstance(method, FedGram) else 3):
            simulator.round(round)
        found.append(all_scores(simulator, 2))
    blend, gram, own = found
    expected = torch.lerp(standardised(own, data), standardised(gram, data), share)
    assert_close({"scores": blend}, {"scores": expected}, 1e-9, "mixture")


def test_parts_are_the_tuned_ones():
    usual, tuned = Blend(), build_method("sasrec", preset="tuned")
    names = ("loss", "dim", "length", "dropout", "weight_decay", "lr", "batch")
    assert [getattr(usual, name) for name in names] == [getattr(tuned, name) for name in names]
    assert usual.gram == build_method("fedgram", preset="tuned")
