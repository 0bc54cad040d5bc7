"""`fedrec serve`: a model behind a local HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or a fitted model.")],
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
) -> None:
    """Serve recommendations, similar items and fold-in over HTTP until Ctrl-C; GET / describes it."""
    import torch

    from fedrec import console
    from fedrec.experiment.interrupt import sigterm_interrupts
    from fedrec.serving import Server, Service, open_lists

    torch.set_num_threads(1)  # requests come side by side, and each is small
    service = Service(open_lists(run))
    service.warm_up()
    server = Server(service, host, port)
    if not server.local:
        console.err.print(
            "warning: anyone who can reach this address can read any user's recommendations; there is no authentication"
        )
    with server, sigterm_interrupts():
        console.out.print(f"serving {run} at {server.url}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.out.print("stopped")
