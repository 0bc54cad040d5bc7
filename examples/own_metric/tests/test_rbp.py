"""All that a new metric needs to be tested: the conformance suite, and the same for one user by a plain loop."""

from rbp import rbp

from fedrec.testing import MetricTests


class TestRBP(MetricTests):
    metric = rbp

    def reference(self, ranks, relevance, held_out):
        return sum(0.2 * 0.8 ** (rank - 1) for rank, hit in zip(ranks, relevance, strict=True) if hit)
