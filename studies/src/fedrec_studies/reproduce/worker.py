"""Run one cell of a table as a process, or go on with it: `python -m fedrec_studies.reproduce.worker FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from fedrec.commands import run_and_report
from fedrec.errors import explain
from fedrec.experiment import TERMINATED, Listener, RunFolder, Terminated, make_config, sigterm_interrupts


def main(folder: Path) -> int:
    """The exit code; what is wrong stands in the last line of stderr."""
    try:
        with sigterm_interrupts():
            run_and_report(make_config(RunFolder.open(folder).settings()), folder, True, Listener(), _say)
    except KeyboardInterrupt as stop:
        return TERMINATED if isinstance(stop, Terminated) else 130
    except Exception as error:
        if (message := explain(error)) is None:
            raise
        _say(" ".join(message.split()))
        return 2
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
