"""The notebooks run from top to bottom, in an empty folder, without a network and without jupyter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import GENEROUS

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
EXPECTED = {
    "compare_methods": ["report.html written", "curve.svg written", "| ease"],
    "paper_tables": ["chosen on validation: lr =", r"\toprule"],
    "write_a_method": ["passed  test_private_tensors_stay_private", "momentum 0.9:"],
    "your_own_data": [
        "read as semicolon-separated, with header: user = column member",
        "line 3, column rating: 'good'",
    ],
}
RUNNER = """
import json, sys
for number, cell in enumerate(json.load(open(sys.argv[1], encoding="utf-8"))["cells"]):
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"))
"""


def test_all_are_tested() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(EXPECTED)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_a_clean_notebook(path: Path) -> None:
    """Version 4, with the outputs of one pass from top to bottom, nothing of the machine it was written on."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert not any(output["output_type"] == "error" for cell in code for output in cell["outputs"])
    assert not any(word in path.read_text(encoding="utf-8") for word in ("/home/", "/tmp/", "/root/"))
    assert path.stat().st_size < 60_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "MPLBACKEND": "Agg",
        "FEDREC_CACHE": str(tmp_path / "cache"),
        "OMP_WAIT_POLICY": "passive",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    env.pop("FEDREC_DATA", None)
    command = [sys.executable, "-c", RUNNER, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=GENEROUS)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in EXPECTED[path.stem]:
        assert words in done.stdout, done.stdout
