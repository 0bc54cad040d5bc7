"""For every kernel that takes long to compile, a method that uses it in a tiny world.

By hand or before all tests, `PYTHONPATH=tests python -m kernels.users` compiles them, on all cores. Workers of
`pytest -n` and the commands that tests start share what is on the disk, but it is there only when one of them is done:
on a fresh clone several would compile the same at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from conftest import forget_outdated_kernels
from fedrec.federation.contract import Method
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.cluster.contrast import SupCon
from fedrec.methods.cold.ifedrec import IFedRec
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.mixture.gpfedrec import GPFedRec
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.personal.pfedrec import PFedRec
from fedrec.testing import run, tiny_world

PRECISIONS = (torch.float64, torch.float32)
User = Callable[[torch.dtype], object]


def of_method(method: Method, rounds: int = 1) -> User:
    return lambda real: run(method, tiny_world(dtype=real), rounds)


USERS: dict[str, User] = {  # those that take longest come first
    "aligned": lambda real: run(
        IFedRec(dim=4), tiny_world(dtype=real), 1, attributes=torch.randn(40, 5, dtype=torch.float64).to(real)
    ),
    "contrastive": of_method(CGFedRec(dim=4, clusters=5), 2),  # in single precision alone
    "ncf": of_method(FedMF(backbone="ncf", dim=4)),
    "mf": of_method(FedMF(dim=4)),
    "linear": of_method(PFedRec(dim=4)),
    "guided": of_method(GPFedRec(dim=4)),
    "fedrap": of_method(FedRAP(dim=4)),
    "gate": of_method(FedRKG(dim=4, interval=1)),
    "moments": of_method(FedCA(dim=4)),
    "contrast": lambda real: SupCon(torch.tensor([0, 0, 1]))(torch.randn(2, 3, 4, dtype=real)),
}


def use(name: str, real: torch.dtype) -> None:
    torch.set_num_threads(1)
    USERS[name](real)


if __name__ == "__main__":
    forget_outdated_kernels()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(use, name, real) for real in PRECISIONS for name in USERS]:
            done.result()
