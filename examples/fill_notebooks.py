"""Run notebooks and store what their cells print and show: python examples/fill_notebooks.py FILE"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any


def shown(source: str, names: dict[str, Any], place: str) -> tuple[str, Any]:
    """What a cell prints, and the value of its last expression, as in Jupyter."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, place, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), place, "eval"), names)
    return printed.getvalue(), value


def outputs_of(text: str, value: Any, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if text:
        found.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        found.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return found


def fill(path: Path) -> None:
    notebook, room = json.loads(path.read_text(encoding="utf-8")), types.ModuleType("__main__")
    sys.modules["__main__"] = room  # classes of a notebook are looked up there
    code = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(code, start=1):
        text, value = shown("".join(cell["source"]), vars(room), f"{path.name}, cell {number}")
        cell |= {"execution_count": number, "outputs": outputs_of(text, value, number)}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    file = Path(sys.argv[1]).resolve()  # one at a time: what a notebook registers stays in the process
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        fill(file)
        os.chdir(file.parent)
