"""Finished runs to report on: small, and with ids that try to break out of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedrec
from fedrec.report.pages.report import write_report
from report.beside import with_references

HOSTILE = "<script>alert('x')</script>\"&<img src=http://evil.example/x.png>"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """fedmf with two seeds, ease, and a protocol that leaks, on a file of 40 users whose ids are markup."""
    root = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDREC_DATA", raising=False)
        patch.setenv("FEDREC_CACHE", str(root / "cache"))
        data = str(_table(root / "table.csv"))
        for seed in (0, 1):
            fedrec.run("fedmf", data, out=root / "runs" / "fedmf" / f"seed{seed}", seed=seed, rounds=6, dim=4)
        fedrec.run("ease", data, out=root / "runs" / "ease")
        fedrec.run("fedmf", data, protocol="honest,neg_pool=leaked", out=root / "leaky", rounds=3, dim=4)
        yield root


def _table(path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = ["user,item,timestamp"]
    for user in range(40):
        for time, item in enumerate(rng.permutation(60)[:14]):
            text = f'{HOSTILE} "{item}"'.replace('"', '""')
            lines.append(f'"<b>{user}</b>","{text}",{time}')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def page(runs: Path) -> Path:
    """Two seeds of one configuration."""
    return write_report(with_references([runs / "runs" / "fedmf"]), runs / "one.html")


@pytest.fixture(scope="session")
def comparison_page(runs: Path) -> Path:
    return write_report(with_references([runs / "runs" / "fedmf", runs / "runs" / "ease"]), runs / "comparison.html")
