"""The tests that every method, and every metric, must pass, for use with pytest: subclass, name the method, done.

    class TestFedMF(MethodTests):
        method = FedMF(dim=4, lr=1.0, batch=16)

        def reference(self, data, rounds):  # optional: the same by a plain loop over clients
            return {"server.item": ..., "scores": ...}

Those of a metric are `MetricTests`, with `metric = ...`.

A method that keeps attributes at the server has one more to pass, `require_attributes_stay(method, tiny_world())`.
Importing this module needs no test framework: the checks are plain asserts, and a check that does not apply raises
`unittest.SkipTest`, which pytest reports as skipped.
"""

from __future__ import annotations

from fedrec.testing.boundary import require_attributes_stay
from fedrec.testing.messages import Watched, dense_uploads, encode_upload
from fedrec.testing.metric_suite import MetricTests
from fedrec.testing.suite import MethodTests
from fedrec.testing.worlds import (
    ITEMS_PER_USER,
    SINGLE,
    WHOLE,
    add_one_item,
    all_scores,
    assert_close,
    outcome,
    run,
    state_of,
    tiny_world,
)

__all__ = [
    "ITEMS_PER_USER",
    "SINGLE",
    "WHOLE",
    "MethodTests",
    "MetricTests",
    "Watched",
    "add_one_item",
    "all_scores",
    "assert_close",
    "dense_uploads",
    "encode_upload",
    "outcome",
    "require_attributes_stay",
    "run",
    "state_of",
    "tiny_world",
]
