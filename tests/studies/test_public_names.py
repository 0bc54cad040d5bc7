"""The studies use what anybody's package may use: names in `__all__` of modules that docs/python.md lists as public."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrec
import fedrec_studies

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies" / "src" / "fedrec_studies"
TUNES_KERNELS = "bench/shapes.py"  # it sets the launch sizes of Triton kernels, which nobody else may
PUBLIC = set(
    re.findall(r"^- `(fedrec[\w.]*)`", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.MULTILINE)
)


def borrowed(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules of fedrec that are imported, with the names taken from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedrec":
            yield from ((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            # of `import fedrec` its attributes count, below; a longer name binds more than can be seen
            yield from ((name.name, "*") for name in node.names if name.name.startswith("fedrec."))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fedrec":
            yield "fedrec", node.attr


def is_public(module: str, name: str) -> bool:
    """Whether docs list the module and it offers the name; `from fedrec import data` takes a public module."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and name in importlib.import_module(module).__all__


@pytest.mark.parametrize("path", sorted(STUDIES.rglob("*.py")), ids=lambda path: str(path.relative_to(STUDIES)))
def test_a_study_uses_public_names_only(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {f"{module}.{name}" for module, name in borrowed(tree) if not is_public(module, name)}
    if str(path.relative_to(STUDIES)) == TUNES_KERNELS:
        found -= {"fedrec.kernels.ncf_triton", "fedrec.kernels.rows_triton"}
    assert not found


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_a_public_module_has_what_it_lists(module: str) -> None:
    face = importlib.import_module(module)
    assert face.__all__
    assert all(getattr(face, name, None) is not None for name in face.__all__)


def test_the_walk_sees_what_is_not_public() -> None:
    tree = ast.parse(
        "from fedrec.experiment.config import RunConfig\nimport fedrec.kernels\nfrom fedrec import _x\n"
        "import fedrec\nfedrec.api"
    )
    assert len(list(borrowed(tree))) == 4
    assert [names for names in borrowed(tree) if is_public(*names)] == []
    assert is_public("fedrec.experiment", "RunConfig")


def test_both_distributions_have_one_version() -> None:
    described = tomllib.loads((ROOT / "studies" / "pyproject.toml").read_text(encoding="utf-8"))
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert fedrec_studies.__version__ == fedrec.__version__
    assert any(one.endswith(f"=={fedrec.__version__}") for one in described["project"]["dependencies"])
    assert whole["project"]["optional-dependencies"]["studies"] == [f"fedrec-studies=={fedrec.__version__}"]
