"""The flags that choose columns of a file, on every command that reads one."""

from __future__ import annotations

from typing import Annotated

import typer

User = Annotated[
    str | None, typer.Option(help="Column of users: its name or number; default: as names and values tell.")
]
Item = Annotated[str | None, typer.Option(help="Column of items.")]
Rating = Annotated[str | None, typer.Option(help="Column of ratings; none: no column has them.")]
Timestamp = Annotated[str | None, typer.Option(help="Column of times (dates or numbers); none: no column has them.")]
