"""Install the wheels of a folder into an empty environment and use them: `python examples/try_wheels.py dist`.

First fedrec alone, whose commands must work or say what to install; then fedrec-studies beside it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

WORLD = "synthetic@users=40+items=80+interactions=700"
MEASURED = (".json", ".csv")
LISTINGS = ("index.json",)


def main(folder: str) -> None:
    """Check what the wheels hold, then what they do."""
    library, studies = sorted(Path(folder).glob("fedrec-*.whl")), sorted(Path(folder).glob("fedrec_studies-*.whl"))
    assert len(library) == len(studies) == 1, f"{folder} should hold one wheel of each distribution"
    names = zipfile.ZipFile(library[0]).namelist()
    measured = [name for name in names if name.endswith(MEASURED) and not name.endswith(LISTINGS)]
    assert not measured, f"measured figures belong to the studies: {measured}"
    print(f"{library[0].name}: {library[0].stat().st_size / 1024:,.0f} KiB, {len(names)} files, no measured figures")
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=False, symlinks=True)
        python = Path(place) / "bin" / "python"
        # what they depend on comes from the environment that runs this script: nothing is downloaded
        site = next(Path(place).glob("lib/python*/site-packages"))
        (site / "borrowed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
        _install(library[0], site)
        _expect(python, 0, "fedmf", "methods")
        _expect(python, 0, "ndcg@10", "run", "popularity", "--data", WORLD, "--quiet", "--out", f"{place}/run")
        _install(studies[0], site)
        _expect(python, 0, "fedca/table2", "reproduce")
    print("both wheels work")


def _install(wheel: Path, site: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--upgrade", "--target"]
    subprocess.run([*pip, str(site), str(wheel)], check=True)


def _expect(python: Path, code: int, text: str, *words: str) -> None:
    done = subprocess.run([str(python), "-m", "fedrec", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout, done.stdout + done.stderr
    print(f"fedrec {' '.join(words)}: fine")


if __name__ == "__main__":
    main(*sys.argv[1:])
