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
SiloColumn = Annotated[
    str | None, typer.Option("--silo-column", help="Column of companies: each is one client with all of its users.")
]
Silos = Annotated[
    str | None,
    typer.Option(help="K[:contiguous|random|taste], or files: a company per --data; default one user per client."),
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Put rows that cannot be used aside, and count them; see `fedrec data check`."),
]
SeveralData = Annotated[
    list[str] | None,
    typer.Option("--data", help="Dataset name or file (fedrec data list); a file per company with --silos files."),
]


def name_data(data: list[str] | None) -> str | None:
    """One name for the data; None where none was given."""
    from fedrec.data.companies import SEPARATOR

    return SEPARATOR.join(data) if data else None


def ways_to_silos(silos: str | None, silo_column: str | None) -> dict[str, str | None]:
    """The settings of silos: a column of companies says by itself that they are wanted."""
    from fedrec.data.companies import BY_COLUMN

    return {"silos": BY_COLUMN if silos is None and silo_column is not None else silos, "silo_column": silo_column}
