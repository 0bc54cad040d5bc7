"""A node as a process: its SuperNode, and the part of it that stays between messages.

`python -m fedrec.deploy.node_process STATE_DIR HOST:PORT CA KEY LOCAL_PORT` is how a rehearsal starts one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fedrec.data.atomic import make_private_folder
from fedrec.deploy.flower import LOG, Joining, require_flower
from fedrec.deploy.processes import Processes
from fedrec.deploy.resident_process import staying
from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts


def start_node(state: Path, joining: Joining, processes: Processes, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A node in a process of its own, with all that belongs to it below."""
    require_flower()
    make_private_folder(state)
    words = [str(state), joining.superlink, str(joining.ca), str(joining.key), str(joining.port)]
    return processes.start([sys.executable, "-m", __name__, *words], {**os.environ, **env}, state / LOG)


def main(words: list[str]) -> int:
    """Run until the SuperNode ends; return its exit code."""
    state, superlink, ca, key, port = words
    joining = Joining(superlink, Path(ca), Path(key), int(port))
    try:
        with sigterm_interrupts(), Processes() as processes, staying(Path(state)) as env:
            return joining.super_node(Path(state), processes, env).wait()
    except (Terminated, KeyboardInterrupt):
        return TERMINATED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
