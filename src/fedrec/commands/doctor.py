"""`fedrec doctor`: is everything there that a run needs?"""

from __future__ import annotations

import os
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedrec import __version__
from fedrec.commands import console
from fedrec.data import cache_folder, datasets

NEEDED = ("torch", "numpy", "scipy", "numba", "polars", "safetensors", "typer", "rich")
EXTRAS = {"scikit-learn": "figures", "optuna": "tune", "onnx": "export", "flwr": "flower", "cryptography": "secure"}


def report() -> bool:
    """Print findings; False if something a run needs is missing."""
    console.out.print(f"fedrec {__version__}")
    good = True
    for name in NEEDED:
        found = _version(name)
        # Every package is looked at before the verdict: one answer with all that is missing saves a second try.
        good &= found is not None
        _line(found is not None, name, found or "missing: pip install fedrec")
    for name, extra in EXTRAS.items():
        found = _version(name)
        # Optional packages are never a failure, whether they are there or not.
        _line(True, name, found or f"not installed (optional: pip install 'fedrec[{extra}]')")
    good &= _training()
    _devices()
    _folders()
    return good


def _line(good: bool, name: str, text: str) -> None:
    console.out.print(f"{'ok  ' if good else 'FAIL'} {name:<14} {text}", style=None if good else "red")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _training() -> bool:
    """Train a few rounds on a small synthetic world."""
    from fedrec.api import run

    started = time.perf_counter()
    try:
        result = run("fedmf", "synthetic@users=50+items=200", rounds=2)
    # Whatever fails is reported, not raised.
    except Exception as error:
        _line(False, "training", f"{type(error).__name__}: {error}")
        return False
    seconds = time.perf_counter() - started
    _line(True, "training", f"2 rounds of fedmf on a synthetic world in {seconds:.1f} s, compilation included")
    return bool(result.test)


def _devices() -> None:
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none (CPU only)"
    _line(True, "cuda", cuda)
    _line(True, "threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")


def _folders() -> None:
    cache = cache_folder()
    # The cache may not exist yet; the disk is that of the nearest folder that does.
    nearest = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(nearest).free / 2**30
    _line(os.access(nearest, os.W_OK), "cache", f"{cache} ({free:.0f} GiB free)")
    here = [entry.name for entry in datasets() if entry.available()]
    _line(
        True, "data", f"available: {', '.join(here) or 'none'}; FEDREC_DATA={os.environ.get('FEDREC_DATA', 'not set')}"
    )
    _line(os.access(Path.cwd(), os.W_OK), "working folder", str(Path.cwd()))
