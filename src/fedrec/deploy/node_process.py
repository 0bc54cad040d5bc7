"""A node as a process: its SuperNode, and the worker that answers what it brings.

Libraries are loaded, kernels compiled and data prepared once, and not for every message.

`python -m fedrec.deploy.node_process STATE_DIR HOST:PORT CA KEY LOCAL_PORT` is how a rehearsal starts one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fedrec.data.atomic import make_private_folder
from fedrec.deploy.flower import LOG, Joining, require_flower
from fedrec.deploy.processes import Processes
from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts


def start_node(state: Path, joining: Joining, processes: Processes, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A node in a process of its own, with all that belongs to it below."""
    require_flower()
    make_private_folder(state)
    words = [str(state), joining.superlink, str(joining.ca), str(joining.key), str(joining.port)]
    return processes.start([sys.executable, "-m", __name__, *words], {**os.environ, **env}, state / LOG)


def work(
    state: Path,
    joining: Joining,
    processes: Processes,
    ask: Callable[[list[str]], bool] = lambda lines: True,
    say: Callable[[str], None] = lambda line: None,
    ends: bool = False,
) -> int:
    """Start a SuperNode and answer what it brings, until it ends; return its exit code.

    `ends`: also when the federation does. In a rehearsal whoever started the node ends it.
    """
    from fedrec.deploy.flower_worker import Worker, hash_own_bundle
    from fedrec.deploy.node import NodeHost

    host = NodeHost(state, ask=ask, say=say)
    node = joining.super_node(state, processes, {})
    worker = Worker(
        joining.local,
        joining.secret(state).read_bytes(),
        [hash_own_bundle()],
        host.handle,
        host.refuse_app,
    )
    return worker.work(node, lambda: ends and host.is_finished)


def main(words: list[str]) -> int:
    """Run until the SuperNode ends; return its exit code."""
    state, superlink, ca, key, port = words
    joining = Joining(superlink, Path(ca), Path(key), int(port))
    try:
        with sigterm_interrupts(), Processes() as processes:
            return work(Path(state), joining, processes)
    except (Terminated, KeyboardInterrupt):
        return TERMINATED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
