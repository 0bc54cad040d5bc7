"""`fedrec serve`: a model behind an HTTP service."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.serve import Lists


def serve_command(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run or a fitted model, or a link.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Instead of it, the state folder of a deployed node.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes, each with the model in its memory.")] = 1,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that clients must show; default: FEDREC_TOKEN, or a new one."),
    ] = None,
    check_every: Annotated[float, typer.Option(min=0.1, help="Seconds between looks for a newer model.")] = 5.0,
) -> None:
    """Serve recommendations, similar items and fold-in over HTTP until Ctrl-C; GET / is a page to try it."""
    from fedrec.serve.web_app import choose_token, require_web_packages

    require_web_packages()
    if (run is None) == (state_dir is None):
        raise FedrecError("give the folder of a run or model, or --state-dir of a node (one of them)")

    import torch

    from fedrec.commands import console
    from fedrec.experiment.interrupt import sigterm_interrupts
    from fedrec.serve import Service
    from fedrec.serve.served_model import version_of_node, warm_up
    from fedrec.serve.web_server import is_loopback, listen, run_server, url_of

    # Requests come side by side, and each is small.
    torch.set_num_threads(1)
    with listen(host, port) as opened:
        local = is_loopback(opened)
        token = choose_token(local, token_file)
        if run is not None:
            service = Service.from_folder(run, local=local, token=token, check_every=check_every)
        else:
            folder = state_dir or Path()
            of_node = partial(_open_node, folder), partial(version_of_node, folder)
            service = Service(*of_node, local, token, check_every=check_every)
        if workers > 1:
            # A model that cannot be opened ends here, and not in every worker.
            warm_up(service.open_model())
        make = service if workers > 1 else service.load()
        if token is not None and token_file is None:
            console.err.print(f"note: clients must show this token: Authorization: Bearer {token}")
        if not local:
            console.err.print("note: requests and answers can be read on the way; put a proxy with TLS in front of it")
        console.out.print(f"serving {run or state_dir} at {url_of(opened)}")
        # Uvicorn passes signals on when it has stopped.
        with suppress(KeyboardInterrupt), sigterm_interrupts():
            run_server(make, opened, service.limits, workers)
        console.out.print("stopped")


def _open_node(folder: Path) -> Lists:
    from fedrec.deploy.node_recommender import NodeLists

    return NodeLists(folder)
