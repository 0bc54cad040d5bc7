"""The command on two real runs."""

from __future__ import annotations

from pathlib import Path

from survey import survey_command

import fedrec


def test_the_best_run_comes_first(tmp_path: Path, capsys) -> None:
    data = "synthetic@users=40+items=80+interactions=700+seed=1"
    folders = [tmp_path / name for name in ("local", "ease")]
    for folder in folders:
        fedrec.run(folder.name, data, rounds=1, out=folder)
    survey_command(folders)
    shown = capsys.readouterr().out
    assert shown.index("ease") < shown.index("local")
