"""Several seeds of one config, each in its own folder, and their mean."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import mean, stdev

from fedrec import console
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.run import Result, execute


def run_seeds(config: RunConfig, seeds: list[int] | None, out: Path | None, resume: bool, quiet: bool,
              as_json: bool) -> list[Result]:  # fmt: skip
    """Run every seed and print what came out. Without `out` a free folder below runs/ is taken."""
    planned = {}
    for seed in seeds or [config.seed]:
        one = dataclasses.replace(config, seed=seed)
        folder = (out if seeds is None else out / f"seed{seed}") if out is not None else free_folder(one)
        if not resume:
            RunFolder(folder).require_free()
        planned[folder] = one
    results = [_run_one(one, folder, resume, quiet, as_json) for folder, one in planned.items()]
    if len(results) > 1 and not as_json:
        _show_spread(results)
    return results


def _run_one(config: RunConfig, folder: Path, resume: bool, quiet: bool, as_json: bool) -> Result:
    listener = console.listener(f"{config.method} seed {config.seed}", quiet, as_json)
    try:
        result = execute(config, folder, resume, listener)
    except KeyboardInterrupt:
        listener.stop()
        console.err.print(f"interrupted; to go on, repeat the command with --resume --out {folder}")
        raise
    finally:
        listener.stop()
    _write_report(folder)
    if as_json:
        print(json.dumps({**result.summary, "folder": str(folder)}), flush=True)
    else:
        console.show_summary(result.summary)
        console.out.print(f"run folder: {folder}")
    return result


def _write_report(folder: Path) -> None:
    """The run is safe by now: a page that cannot be written is worth a note, not an error."""
    from fedrec.report.html import write_own_report

    try:
        write_own_report(folder)
    except (FedrecError, OSError) as error:
        console.err.print(f"note: report.html was not written: {error}", markup=False)


def free_folder(config: RunConfig) -> Path:
    """runs/METHOD-DATA-PROTOCOL-seedN, with a number behind it if that is taken."""
    data = Path(config.train).stem if config.train else Path(config.data).name
    parts = [config.method, config.backbone or "", data, config.protocol, f"seed{config.seed}"]
    text = "-".join(part for part in parts if part)
    base = "".join(c if c.isalnum() or c in "-_.@+" else "-" for c in text)[:150]  # a name may have 255 bytes
    for number in range(1, 10_000):
        path = Path("runs") / (base if number == 1 else f"{base}.{number}")
        if not path.exists():
            return path
    raise FedrecError(f"runs/{base} and 9,999 others exist; name a folder with --out")


def _show_spread(results: list[Result]) -> None:
    names = [name for name in results[0].test if not name.startswith("hr@")]
    values = {name: [result.test[name] for result in results] for name in names}
    rows = [[name, mean(values[name]), stdev(values[name])] for name in names]
    console.table(["metric", "mean", "std"], rows, title=f"\n{len(results)} seeds, test")
