"""The flags of every command that reads a file: its columns, and what to do with rows that cannot be used."""

from __future__ import annotations

from typing import Annotated

import typer

User = Annotated[
    str | None, typer.Option(help="Column of users: its name or number; default: as names and values tell.")
]
Item = Annotated[str | None, typer.Option(help="Column of items.")]
Rating = Annotated[str | None, typer.Option(help="Column of ratings; none: no column has them.")]
Timestamp = Annotated[str | None, typer.Option(help="Column of times (dates or numbers); none: no column has them.")]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Put rows that cannot be used aside, and count them; see `fedrec data check`."),
]
