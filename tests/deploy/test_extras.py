"""Where a package that deployment needs is not installed: one line that names the right extra, and nothing begun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import GENEROUS

WITHOUT = """
import contextlib, io, json, sys

package, commands = sys.argv[1:]

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from fedrec.cli import main

ended = []
for words in json.loads(commands):
    sys.argv, said = ["fedrec", *words.split()], io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
        except BaseException as error:
            ended.append([words, getattr(error, "code", repr(error)), said.getvalue().splitlines()])
print(json.dumps(ended))
"""
SERVER = "deploy server --items items.csv --clients 2 --keys keys --nodes nodes --out run"
NODE = "deploy node --superlink here:8000 --data mine.csv --state-dir state --ca ca.crt --key node.key"
FLOWER = [
    "deploy demo --data synthetic --out run",
    SERVER,
    SERVER + " --secure-sums",
    NODE,
    "deploy faults",
    "deploy secrecy",
]
SIGNING = [
    "deploy keys node node.key",
    "deploy keys server keys --host here",
    "deploy faults --quick",
    "deploy load --nodes 2 --megabytes 1 --rounds 1",
    "recommend --state-dir state --user ann",
    "serve --state-dir state",
]


@pytest.mark.parametrize(("package", "commands"), [("flwr", FLOWER), ("cryptography", FLOWER + SIGNING)])
def test_a_missing_package_is_one_line_with_its_extra(tmp_path: Path, package: str, commands: list[str]) -> None:
    (tmp_path / "items.csv").write_text("item\na\nb\n")
    (tmp_path / "mine.csv").write_text("user,item\nann,a\n")
    before = set(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, json.dumps(commands)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=GENEROUS,
    )
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert [words for words, _, _ in ended] == commands
    for words, code, said in ended:
        assert code == 2, (words, code, said)
        assert len(said) == 1, (words, said)
        assert said[0].startswith("error: deployment needs"), (words, said)
        assert said[0].endswith("pip install 'fedrec[flower]'"), (words, said)
    assert set(tmp_path.iterdir()) == before
