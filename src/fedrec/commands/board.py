"""`fedrec board`: a page over a folder of runs, live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def board_command(
    folder: Annotated[Path, typer.Argument(help="Folder that holds run folders, at any depth.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on; default: this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8080,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token that visitors must show.")] = None,
) -> None:
    """Show runs, studies and federations of a folder in a browser, live, until Ctrl-C; it only reads."""
    from fedrec.commands import console
    from fedrec.serve.web_app import choose_token, require_web_packages

    require_web_packages()
    from fedrec.board.app import make_board
    from fedrec.serve.web_server import is_loopback, listen, run_server, url_of

    opened = listen(host, port)
    local = is_loopback(opened)
    token = choose_token(local, token_file)
    app = make_board(folder, local, token)
    entries = len(app.state.board.index.entries)
    console.out.print(f"{entries:,} folder{'' if entries == 1 else 's'} of {folder} at {url_of(opened)}")
    if not local:
        console.err.print("warning: whoever reaches this address and has the token sees every run and its users")
        console.err.print(f"log in with any name and this password: {token}")
    run_server(lambda: app, opened)
    console.out.print("stopped")
