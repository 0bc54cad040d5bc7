"""`fedrec deploy`: the same methods between real machines, on Flower."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.errors import FedrecError

deploy_app = typer.Typer(help="Deploy a method on Flower: demo, server, node, keys, faults.", no_args_is_help=True)

Method = Annotated[str, typer.Option(help="See `fedrec methods`.")]
Data = Annotated[str, typer.Option(help="Dataset name or file; see `fedrec data list`.")]
Protocol = Annotated[str, typer.Option(help="See `fedrec protocols`; name,field=value to override.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Method parameter, key=value; repeatable.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Deadline = Annotated[float, typer.Option(help="Seconds that nodes have for one round.")]


@deploy_app.command("demo")
def demo_command(
    method: Method = "fedmf",
    data: Data = "ml-100k",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes; the clients are dealt out among them.")] = 4,
    rounds: Rounds = None,
    seed: Annotated[int, typer.Option(help="Of all draws, the clients' too: a rehearsal, not for real use.")] = 0,
    protocol: Protocol = "honest",
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf or ncf.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    set_: Set = None,
    silos: Annotated[str | None, typer.Option(help="K[:contiguous|random|taste]; default one user per client.")] = None,
    participation: Annotated[float, typer.Option(help="Share of clients per round.")] = 1.0,
    privacy: Annotated[str, typer.Option(help='Stages on uploads, e.g. "clip=1,gaussian=0.1".')] = "",
    deadline: Deadline = 300.0,
    compare: Annotated[bool, typer.Option("--compare", help="Simulate the same and show both.")] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder; the nodes' folders lie beside it.")] = None,
) -> None:
    """A deployment on this machine: TLS, keys, one process per node, the metrics of `fedrec run` with the same seed."""
    from fedrec.deploy.demo import demo
    from fedrec.deploy.flower import require_flower
    from fedrec.deploy.rehearsal import rehearse
    from fedrec.deploy.server import Limits
    from fedrec.experiment.config import make_config
    from fedrec.experiment.interrupt import TERMINATED, Terminated, sigterm_interrupts
    from fedrec.experiment.params import parse_settings

    require_flower()
    values: dict[str, Any] = {
        "method": method, "data": data, "protocol": protocol, "rounds": rounds, "seed": seed, "backbone": backbone,
        "preset": preset, "params": parse_settings(set_ or []), "silos": silos, "participation": participation,
        "privacy": privacy,
    }  # fmt: skip
    config = make_config({name: value for name, value in values.items() if value is not None})
    place = out or _free_folder(f"deploy-{method}-{Path(data).name}-seed{seed}")
    limits = Limits(deadline=deadline, minimum=max(1, nodes // 2), first=nodes)
    shown = Shown()
    try:
        with sigterm_interrupts():
            demo(rehearse(config), place, nodes, limits, shown)
            _report(place)
            if compare:
                _compare(config, place)
    except Terminated:
        raise typer.Exit(TERMINATED) from None


def _free_folder(name: str) -> Path:
    base = "".join(c if c.isalnum() or c in "-_.@+" else "-" for c in name)[:150]
    paths = (Path("runs") / (base if k == 1 else f"{base}.{k}") for k in range(1, 10_000))
    return next(path for path in paths if not path.exists() and not path.with_name(path.name + "-nodes").exists())


class Shown:
    """Events as lines on stderr."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        from fedrec.console import err

        if text := self._words(event):
            err.print(f"[{time.monotonic() - self.began:6.1f} s] {text}")

    def _words(self, event: Mapping[str, Any]) -> str:
        match event["event"]:
            case "started":
                return f"SuperLink on {event['address']} with TLS and node authentication"
            case "node":
                return f"{event['name']}: process {event['pid']}"
            case "joined":
                unknown = event["unknown"]["rows"]
                more = f"; {unknown:,} rows of unknown items left out" if unknown else ""
                return f"node {event['node']} joined: {event['clients']:,} clients{more}"
            case "left":
                return f"node {event['node']} is gone"
            case "died":
                return f"{event['node']} ended with code {event['code']}: {event['log']}"
            case "refused":
                return f"{event['node']} refused: {event['reason']}"
            case "note":
                return f"node {event['node']}: {event['note']}"
            case "repeated":
                return f"turn {event['turn']} had {event['nodes']} of {event['minimum']} nodes; once more"
            case "resumed":
                return f"going on from round {event['round'] + 1}"
            case "round":
                lost = f", {event['lost']:,} uploads lost" if event["lost"] else ""
                number = event["round"] + 1
                return f"round {number} of {event['rounds']}: {event['nodes']} nodes, {event['seconds']:.1f} s{lost}"
            case "score":
                best = ", the best so far" if event["best"] else ""
                figures = ", ".join(f"{name} {value:.4f}" for name, value in event["valid"].items() if "@10" in name)
                return f"round {event['round'] + 1} on validation: {figures}{best}"
            case "finished":
                return f"done: round {event['round'] + 1} is chosen and tested"
        return ""


def _report(folder: Path) -> None:
    """report.html and the result, from what the server has."""
    import json

    from fedrec import console
    from fedrec.commands.summary import show_summary
    from fedrec.report.comparison import read_run
    from fedrec.report.pages.report import write_report

    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    show_summary(summary)
    about = summary["deployment"]
    console.out.print(
        f"{about['nodes']} nodes, {about['cpu_per_node_and_turn']:.2f} CPU seconds per node and round, "
        f"{about['cpu_of_server']:.1f} of the server; {sum(about['rejected'].values())} replies refused, "
        f"{about['lost']:,} uploads lost"
    )
    try:
        write_report([read_run(folder)], folder / "report.html", users=False)
    except (FedrecError, OSError) as error:
        console.err.print(f"note: report.html was not written: {error}")
    console.out.print(f"run folder: {folder}; the nodes: {folder.with_name(folder.name + '-nodes')}")


def _compare(config: Any, folder: Path) -> None:
    """The simulation of the same seed beside it."""
    import json

    from fedrec import console
    from fedrec.experiment.run import execute

    before = time.process_time()
    simulated = execute(config)
    spent = (time.process_time() - before) / max(1, simulated.summary["rounds_run"])
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = [[name, value, simulated.test[name], f"{abs(value - simulated.test[name]):.1e}"]
            for name, value in summary["test"].items()]  # fmt: skip
    cost = summary["deployment"]["cpu_per_node_and_turn"] * summary["deployment"]["nodes"]
    rows.append(["CPU seconds of all clients, a round", cost, spent, "-"])
    console.table(["test", "deployed", "simulated", "difference"], rows)
