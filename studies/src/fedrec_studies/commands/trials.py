"""`fedrec deploy faults | load | secrecy`: what a deployment withstands, holds and hides, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.commands import ended_by_signals

Out = Annotated[Path | None, typer.Option(help="A .json file of figures that gets the result too.")]


def faults_command(
    quick: Annotated[bool, typer.Option("--quick", help="Those in one process only, without Flower.")] = False,
    only: Annotated[str | None, typer.Option(help="Of Flower's processes, those whose name holds this.")] = None,
    out: Out = None,
) -> None:
    """Bring about what can go wrong, one fault after the other: what happened, what was lost, how it was said."""
    from dataclasses import asdict

    from fedrec.commands import console
    from fedrec.deploy import require_flower
    from fedrec_studies.trials.faults import Outcome, in_process
    from fedrec_studies.trials.process_faults import with_processes

    if not quick:
        require_flower()
    found: list[Outcome] = []

    def take(outcome: Outcome) -> None:
        console.err.print(f"{outcome.fault}: {outcome.happened}")
        found.append(outcome)
        _record(out, "faults", asdict(outcome), ["fault"])

    with ended_by_signals():
        for outcome in () if only is not None else in_process():
            take(outcome)
        for outcome in () if quick else with_processes(only):
            take(outcome)
    console.table(["fault", "what happened", "lost", "message"], [outcome.row() for outcome in found])
    if any(outcome.happened.startswith("FAILED") for outcome in found):
        raise typer.Exit(1)


def load_command(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes.")] = 50,
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the update that each sends.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 100,
    out: Out = None,
) -> None:
    """Peak memory of a server whose nodes send large updates, nodes and server in this one process."""
    from fedrec.commands import console
    from fedrec_studies.trials.load import measure_load

    with console.err.status("meeting the nodes") as status:
        found = measure_load(nodes, megabytes, rounds, lambda done: status.update(f"round {done} of {rounds}"))
    console.table(list(found), [list(found.values())])
    _record(out, "load", found, ["nodes", "update_mb", "rounds"])


def secrecy_command(
    method: Annotated[str, typer.Option(help="One whose uploads are sums or means.")] = "fedmf",
    data: Annotated[str, typer.Option(help="Dataset name or file.")] = "synthetic@users=100+items=1000",
    out: Out = None,
) -> None:
    """Look at every message that a server receives from three real nodes under secure sums, one of which is killed."""
    from fedrec.commands import console
    from fedrec.deploy import require_flower
    from fedrec.experiment import make_config
    from fedrec_studies.trials.secrecy import measure_secrecy

    require_flower()
    with ended_by_signals(), console.err.status("three nodes, two rounds, one of the nodes killed in the second"):
        found = measure_secrecy(make_config({"method": method, "data": data}))
    console.table(["figure", "value"], [[name, value] for name, value in found.items()])
    _record(out, "secrecy", found, ["method"])


def _record(out: Path | None, section: str, row: dict[str, Any], key: list[str]) -> None:
    if out is not None:
        from fedrec.deploy import record

        record(out, section, [row], key)
