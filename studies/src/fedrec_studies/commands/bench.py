"""`fedrec bench`: the flags of the suite; what it prints and writes."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrec.errors import FedrecError
from fedrec.experiment import again

if TYPE_CHECKING:
    from fedrec_studies.bench.result_file import RowFile

DEFAULT = Path("runs/bench.json")


def bench_command(
    methods: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    data: Annotated[
        str, typer.Option(help="Data set; the default is a synthetic one. With --goals: synthetic or movielens.")
    ] = "synthetic",
    size: Annotated[str, typer.Option(help="Size of the synthetic one: quick, 100k or 1m.")] = "100k",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of --methods, in place of a default; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small worlds and few rounds.")] = False,
    scale: Annotated[bool, typer.Option("--scale", help="Growth with clients, items and interactions.")] = False,
    goals: Annotated[bool, typer.Option("--goals", help="Complete tasks and their time limits on a GPU.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the measurement in --out.")] = False,
    compare: Annotated[tuple[Path, Path] | None, typer.Option(help="Two files: what changed.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the results as a Markdown page.")] = None,
    from_: Annotated[
        list[Path] | None, typer.Option("--from", help="With --page: a file of earlier measurements; repeatable.")
    ] = None,
    yardstick: Annotated[Path | None, typer.Option(help="A plain program to compare with.")] = None,
    out: Annotated[Path | None, typer.Option(help=f"The JSON file; default {DEFAULT}.")] = None,
) -> None:
    """Seconds per round of every method, where they go, and the speed-up over one client at a time."""
    from fedrec.commands import console
    from fedrec.experiment import parse_settings
    from fedrec_studies.bench.result_file import read

    if compare is not None:
        _show_changes(*compare)
        return
    if scale and goals:
        raise FedrecError("--scale and --goals are different measurements: choose one")
    if from_:
        _show_or_write({path.as_posix(): read(path) for path in from_}, page)
        return
    wanted = [name.strip() for name in (methods or "").split(",") if name.strip()]
    params = parse_settings(set_ or [])
    if params and (not wanted or scale or goals):
        raise FedrecError("--set is for methods that --methods names, without --scale and --goals")
    part = "points" if scale else "goals" if goals else "methods"
    asked = BenchRequest(wanted, data, "quick" if quick else size, device, quick, part, params)
    place = out or DEFAULT
    found = _run_measurements(asked, place, resume, yardstick)
    console.err.print(f"written to {place}")
    _show_or_write({place.as_posix(): found}, page)


@dataclass(frozen=True)
class BenchRequest:
    """What is to be measured, without the places of files."""

    methods: list[str]
    data: str
    size: str
    device: str
    quick: bool
    part: str
    params: dict[str, str]

    def command(self) -> str:
        usual_size = "quick" if self.quick else "100k"
        values = {
            "--methods": (",".join(self.methods), ""),
            "--data": (self.data, "synthetic"),
            "--size": (self.size, usual_size),
            "--device": (self.device, "cpu"),
        }
        words = [word for name, (value, usual) in values.items() if value != usual for word in (name, value)]
        kind = {"points": ["--scale"], "goals": ["--goals"], "methods": []}[self.part]
        words += [word for name, value in self.params.items() for word in ("--set", f"{name}={value}")]
        return shlex.join(["fedrec", "bench", *words, *["--quick"] * self.quick, *kind])


def _run_measurements(asked: BenchRequest, place: Path, resume: bool, yardstick: Path | None) -> dict[str, Any]:
    from fedrec.commands import console
    from fedrec.experiment import TERMINATED, Terminated, sigterm_interrupts
    from fedrec_studies.bench.result_file import RowFile, rows_of

    kept = RowFile(place, asked.part, resume)
    try:
        with sigterm_interrupts():
            return _work(asked, kept, yardstick)
    except KeyboardInterrupt as stop:
        done = len(rows_of(kept.found))
        console.err.print(
            f"interrupted: {done} done, in {place}; to continue: {again(place)}"
            if done
            else "interrupted before the first measurement was done"
        )
        raise typer.Exit(TERMINATED if isinstance(stop, Terminated) else 130) from None


def _work(asked: BenchRequest, kept: RowFile, yardstick: Path | None) -> dict[str, Any]:
    from fedrec.methods import listings
    from fedrec_studies.bench.plain_programs import find_programs
    from fedrec_studies.bench.scale import measure
    from fedrec_studies.bench.suite import measure_all, reach_all
    from fedrec_studies.bench.task import Task

    if asked.part == "points":
        return measure(asked.quick, asked.methods, kept, asked.command(), _say)
    if asked.part == "goals":
        return reach_all(asked.methods, asked.device, asked.data, asked.quick, kept, asked.command(), _say)
    names, turns = asked.methods or [listing.name for listing in listings()], 2 if asked.quick else 5
    tasks = [Task(name, asked.data, asked.size, asked.device, turns, dict(asked.params)) for name in names]
    return measure_all(tasks, find_programs(yardstick), kept, asked.command(), _say)


def _show_or_write(measured: dict[str, dict[str, Any]], page: Path | None) -> None:
    from fedrec.commands import console
    from fedrec_studies.bench.result_file import write
    from fedrec_studies.bench.scale_page import with_tables
    from fedrec_studies.bench.speed_page import speed_page

    scales = {source: found for source, found in measured.items() if "series" in found}
    if page is None:
        for found in measured.values():
            (_show_scale if "series" in found else _show_goals if "goals" in found else _show)(found)
        return
    if not scales:
        write(page, speed_page(measured))
    elif len(measured) == 1:
        ((source, found),) = measured.items()
        write(page, with_tables(page.read_text(encoding="utf-8") if page.is_file() else "", found, source))
    else:
        raise FedrecError("--page: measurements with --scale have a page of their own; give a single --from")
    console.err.print(f"written to {page}")


def _say(text: str, began: float = time.monotonic()) -> None:
    print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)


def _show(found: dict[str, Any]) -> None:
    from fedrec.commands import console
    from fedrec_studies.bench.phases import PHASES

    about = found["machine"]
    title = (
        f"{about['device']}, {about['cores']} cores: copies {about['copy_gb_per_s']:.1f} GB/s, multiplies "
        f"{about['matmul_gflop_per_s']:.0f} GFLOP/s\nseconds per round; rates are estimates"
    )
    rows = [row for row in found["methods"] if "seconds" in row]
    console.table(
        ["method", "round", "ratio", "evaluation", "set-up", "compilation", "peak GiB"],
        [
            [
                row["method"],
                row["seconds"]["round"],
                "" if row["ratio"] is None else f"{row['ratio']:.0f}",
                row["seconds"]["evaluation"],
                row["seconds"]["set_up"],
                row["seconds"]["compilation"],
                f"{row['peak_gib']:.2f}",
            ]
            for row in rows
        ],
        title=title,
    )
    console.table(
        ["method", *PHASES, "GFLOP/s", "GB/s", "roofline"],
        [
            [
                row["method"],
                *(row["phases"][name] for name in PHASES),
                f"{row['gflop_per_s']:.2f}",
                f"{row['gb_per_s']:.2f}",
                f"{row['roofline']:.1%}",
            ]
            for row in rows
        ],
        title="\nwhere the time of a round goes, and its rates",
    )
    _show_failed(found)


def _show_failed(found: dict[str, Any]) -> None:
    from fedrec.commands import console
    from fedrec_studies.bench.speed_page import rows_failed

    for row in rows_failed(found):
        console.err.print(f"{row.get('method') or row['goal']}: {row['error']}")


def _show_goals(found: dict[str, Any]) -> None:
    from fedrec.commands import console

    done = [row for row in found["goals"] if "seconds" in row]
    rows = [
        [
            row["goal"],
            row["rounds"],
            row["seconds"],
            f"{row['within']:g}",
            "met" if row["met"] else "missed",
            row["seconds_warm_up"],
            f"{row['peak_gib']:.2f}",
        ]
        for row in done
    ]
    console.table(
        ["method", "rounds", "seconds", "limit", "", "warm-up", "peak GiB"], rows, title=found["machine"]["device"]
    )
    _show_failed(found)


def _show_scale(found: dict[str, Any]) -> None:
    from fedrec.commands import console
    from fedrec_studies.bench.scale_page import large, the_largest

    for one in found["series"]:
        grown = one["exponents"]
        title = (
            f"\n{one['method']} ({one['class']}) against {one['axis']}: time grows as {one['axis']}^"
            f"{grown['seconds_round']:.2f}, memory as ^{grown['memory']:.2f}"
        )
        done = [row for row in one["points"] if "refused" not in row]
        console.table(
            ["clients", "items", "interactions", "round s", "peak GiB"],
            [
                [row["clients"], row["items"], row["interactions"], row["seconds_round"], f"{row['peak_gib']:.2f}"]
                for row in done
            ],
            title=title,
        )
        for row in one["points"]:
            if "refused" in row:
                console.out.print(f"{row['clients']:,} clients, {row['items']:,} items: {row['refused']}")
    for row in the_largest(found):
        console.out.print(f"\n{large(row)}")
    _show_failed(found)


def _show_changes(before: Path, after: Path) -> None:
    from fedrec.commands import console
    from fedrec_studies.bench.result_file import read
    from fedrec_studies.bench.suite import compare_seconds

    rows = [
        [name, first, second, f"{times:.2f}", verdict]
        for name, first, second, times, verdict in compare_seconds(read(before), read(after))
    ]
    if not rows:
        raise FedrecError(f"{before} and {after} have no measurement in common; measure the same methods in both")
    console.table(["measured", "before s", "after s", "times faster", "beyond noise"], rows, title="seconds per round")
