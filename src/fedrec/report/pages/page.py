"""Self-contained HTML pages: a template, the common style sheet, nothing asked of the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedrec import __version__
from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError


def environment(package: str = "fedrec.report.pages") -> Environment:
    """The templates of `package`, and the common ones."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("fedrec.report.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(path: Path, template: str, package: str = "fedrec.report.pages", **content: Any) -> Path:
    """Fill a template of `package` and put the page in place in one step."""
    made = environment(package)
    style = Markup(made.get_template("style.css").render())
    text = made.get_template(template).render(style=style, fedrec_version=__version__, **content)
    try:
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (IsADirectoryError, NotADirectoryError, FileExistsError):
        raise FedrecError(f"cannot write {path}: give the name of a file with --out") from None
    return path
