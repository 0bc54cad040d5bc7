"""`fedrec serve`: a model behind a local HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.serve import Lists


def serve_command(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run or a fitted model.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Instead of it, the state folder of a deployed node.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
) -> None:
    """Serve recommendations, similar items and fold-in over HTTP until Ctrl-C; GET / describes it."""
    import torch

    from fedrec.commands import console
    from fedrec.experiment.interrupt import sigterm_interrupts
    from fedrec.serve import Server, Service, open_lists

    torch.set_num_threads(1)  # requests come side by side, and each is small
    if (run is None) == (state_dir is None):
        raise FedrecError("give the folder of a run or model, or --state-dir of a node (one of them)")
    service = Service(open_lists(run) if run is not None else _of_a_node(state_dir or Path()))
    service.warm_up()
    server = Server(service, host, port)
    if not server.local:
        console.err.print(
            "warning: anyone who can reach this address can read any user's recommendations; there is no authentication"
        )
    with server, sigterm_interrupts():
        console.out.print(f"serving {run or state_dir} at {server.url}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.out.print("stopped")


def _of_a_node(state_dir: Path) -> Lists:
    from fedrec.deploy.node_recommender import NodeLists

    return NodeLists(state_dir)
