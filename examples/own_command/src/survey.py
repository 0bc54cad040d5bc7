"""`fedrec survey RUN...`: one line about each finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def survey_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    metric: Annotated[str, typer.Option(help="A metric of the test part.")] = "ndcg@10",
) -> None:
    """Show method, data and one metric of finished runs, the best first."""
    from fedrec.commands import console
    from fedrec.errors import unknown
    from fedrec.experiment import read_run

    found = [read_run(folder) for folder in runs]
    for run in found:
        if metric not in run.summary["test"]:
            raise unknown("metric", metric, run.summary["test"])
    found.sort(key=lambda run: -run.summary["test"][metric])
    console.table(["method", "data", metric], [[run.label, run.data, run.summary["test"][metric]] for run in found])
