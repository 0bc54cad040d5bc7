"""HTML pages from templates: one frame, one style sheet, nothing asked of the network."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedrec import __version__
from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError


# Kept: parsing templates takes longer than filling them, and a service fills them again after every reload.
@cache
def page_environment(package: str = "fedrec.html") -> Environment:
    """Return the templates of `package`, and the common ones."""
    return Environment(
        # The package's own templates come first, so that it can replace a common one.
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("fedrec.html")]),
        # Everything is escaped unless marked: ids and titles come from the files of strangers.
        autoescape=True,
        # A name that is missing is an error, where a blank on the page would go unnoticed.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def style_sheet() -> str:
    """Return the style sheet of all pages: reports contain it, services send it."""
    return page_environment().get_template("style.css").render()


def render_page(template: str, package: str, **content: Any) -> str:
    """Fill a template of `package`."""
    style = Markup(style_sheet())
    return page_environment(package).get_template(template).render(style=style, fedrec_version=__version__, **content)


def write_page(path: Path, template: str, package: str, **content: Any) -> Path:
    """Fill a template of `package` and put the page in place in one step."""
    text = render_page(template, package, **content)
    try:
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        raise FedrecError(f"cannot write {path}: give the name of a file with --out") from None
    return path
