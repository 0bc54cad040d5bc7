"""Stages of a FedCA round: all five are timed, and the functions are what they were afterwards."""

from __future__ import annotations

from fedrec.methods import FedCA
from fedrec_studies.bench.stages import SERVER, stages

SMALL = "synthetic@users=80+items=200+interactions=4000"


def test_every_printed_stage_is_timed() -> None:
    before = {name: getattr(FedCA, name) for name in SERVER}
    found = stages(SMALL)
    assert list(found["seconds"]) == ["Local Training", "SVD", "Similarity", "Complementarity", "Optimization"]
    assert all(spent > 0 for spent in found["seconds"].values())
    assert found["aggregated"] == int(0.6 * found["clients"]) > 0
    assert {name: getattr(FedCA, name) for name in SERVER} == before
