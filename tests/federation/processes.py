"""One of several processes that compare themselves with one: every federated method in every world of its tests.

Started by test_distributed.py, or by hand: PYTHONPATH=tests torchrun --nproc-per-node 2 -m federation.processes
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from fedrec.federation.contract import Tensors
from fedrec.federation.distributed import Processes, join_processes
from fedrec.federation.simulator import Simulator
from fedrec.testing.worlds import all_scores, assert_close, run
from methods.everything import federated_worlds


def compare(group: Processes) -> int:
    """How many worlds came out equal; an error where one did not."""
    count = 0
    for what, test, data in federated_worlds():
        whole = alone(group, partial(run, test.method, data, test.rounds))
        mine = Simulator(test.method, group.shard(data), group=group)
        for number in range(test.rounds):
            mine.round(number)
        tolerance = max(1e-10, 0.1 * test.tolerance)
        server = {f"server.{name}": value for name, value in mine.server.items()}
        wanted = {name: value for name, value in whole.items() if name in server}
        assert_close(test.comparable(server), test.comparable(wanted), tolerance, what)
        if len(mine.data.users):
            users = torch.from_numpy(mine.data.users).sort().values
            scores = {"scores": all_scores(mine, test.rounds)}
            assert_close(scores, {"scores": whole["scores"][users]}, tolerance, what)
        for members in mine.cohorts:
            mark = f"@{members.cohort.name}" if len(mine.cohorts) > 1 else ""
            for kind, held in (("client", members.state.per_client), ("user", members.state.per_user)):
                for name, value in group.collect_rows(held).items():
                    label = f"{kind}.{name}{mark}"
                    assert_close({label: value}, {label: whole[label]}, tolerance, what)
        count += 1
    return count


def alone(group: Processes, work: Callable[[], Tensors]) -> Tensors:
    """What the first process finds, in all of them: kernels that it compiles for it need not be compiled again."""
    found = [work() if group.first else None]
    dist.broadcast_object_list(found)
    assert found[0] is not None
    return found[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_processes(torch.device("cpu")) as together:
        assert isinstance(together, Processes)
        print(f"rank {together.rank}: {compare(together)} worlds equal")
