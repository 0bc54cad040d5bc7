"""All that a new method needs to be tested: the conformance suite, and what makes it different."""

from fedavgm import FedAvgM

from fedrec.testing import MethodTests


class TestFedAvgM(MethodTests):
    method = FedAvgM(dim=4, lr=1.0, init_std=0.5, batch=16)
