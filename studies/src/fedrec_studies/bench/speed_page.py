"""`docs/speed.md` out of measurements. Nobody types these figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fedrec.report import markdown_lines
from fedrec_studies.bench.phases import PHASES, SAMPLING
from fedrec_studies.bench.result_file import Row, rows_of

HEAD = """# Speed

Made by `fedrec bench --page docs/speed.md {sources}`; do not edit.

Every method does a fixed amount of work in its own process: rounds with its default settings on the same data. The time
is that of the fastest of up to ten rounds, half of them before the reference is measured and half after. The breakdown
is of a further round, in which the functions of clients, server and wire are timed from outside. Rounds are timed as
they are between two evaluations: rows of clients' own tables that did not change (`pfedrec`) are written when somebody
looks at them, and that time counts as *evaluation*.

*Set-up* makes the server and the clients; *compilation* is what the first round took beyond a usual one: little where
compiled kernels are cached on disk.

An interrupted suite continues with `--resume`; `fedrec bench --compare A.json B.json` shows what changed between two
measurements beyond noise.

*Ratio*: how many times longer the same round takes with one client at a time; the reference is named below the table.
*Training ratio*: the same for clients' training alone, drawing samples included, where the reference does only that.
*Preparing* is what clients compute beside training for the server to compare them by.
*Sampling* with an asterisk happens inside the compiled kernel: it was measured separately and subtracted from training.
*GFLOP/s* and *GB/s* are estimates: the minimum that a round computes and moves, given its settings and shapes (matrix
products as torch and compiled kernels count them), divided by its seconds. *Roofline* is the time this minimum would
take at the machine's own rates, measured in the same process, divided by the actual time; a small value means that
something else is slow, or that the estimate leaves much out. *Cores busy with other work*: how many cores other
processes used during the rounds; where it is not near 0, the method is faster than shown here.
"""


WORLDS = """
*Synthetic, 1m* and *100k* are generated worlds of as many users, items and interactions as ml-1m and ml-100k; *ml-1m*
and *ml-100k* are the data sets themselves (`--data movielens`)."""

INTERRUPTED = """
It was interrupted: missing values were not measured.
"""


def speed_page(measured: Mapping[str, Row]) -> str:
    """Of one or several measurements, by their files."""
    parts = [HEAD.format(sources=" ".join(f"--from {source}" for source in measured))]
    for found in measured.values():
        parts += [_machine(found), *(_methods(found) if "methods" in found else _goals(found))]
        failed = [f"- `{row.get('method') or row['goal']}`: {row['error']}" for row in rows_failed(found)]
        if failed:
            parts += ["\nNot measured:\n", *failed]
    return "\n".join(parts).rstrip() + "\n"


def rows_failed(found: Row) -> list[Row]:
    return [row for row in rows_of(found) if "error" in row]


def _machine(found: Row) -> str:
    about = found["machine"]
    what = "Every method" if "methods" in found else "Complete tasks and their time limits"
    versions = " ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"""
## {what}: {about["device"]}

Measured by `{found["command"]}` with {versions}: {about["cores"]} cores, {about["threads"]} threads,
{about["memory_gib"]} GiB, load {" ".join(map(str, about["load"]))} at the start.
It copies {about["copy_gb_per_s"]:.1f} GB/s and multiplies {about["matmul_gflop_per_s"]:.0f} GFLOP/s, in float32.
{"" if found["complete"] else INTERRUPTED}"""


def _methods(found: Row) -> list[str]:
    rows = [row for row in found["methods"] if "seconds" in row]
    parts = [
        _days(rows),
        _rounds(rows),
        _against(rows),
        "\n### Where the time of a round goes\n",
        _split(rows),
        "\n### Rates\n",
        _rates(rows),
    ]
    return parts + (["\n### What the accelerator did\n", _traces(rows, "method")] if any(map(_trace, rows)) else [])


def _days(rows: Sequence[Row]) -> str:
    """Which rows are of which day, where there are several: a machine is not equally fast on all."""
    by: dict[str, list[str]] = {}
    for row in rows:
        by.setdefault(row.get("day", "an earlier day"), []).append(f"`{row['method']}`")
    if len(by) < 2:
        return ""
    said = "\n".join(f"- {day}: {', '.join(names)}" for day, names in by.items())
    return f"""Measured on different days, by the versions of these days; load and rates above are those of the first.
References ran at another speed too, so compare ratios of one day only.

{said}
"""


def _rounds(rows: Sequence[Row]) -> str:
    columns = [
        "method",
        "s per round",
        "ratio",
        "training ratio",
        "evaluation s",
        "set-up s",
        "compilation s",
        "peak GiB",
        "clients",
        "items",
        "interactions",
    ]
    return table(
        columns,
        (
            [
                f"`{row['method']}`",
                short(row["seconds"]["round"]),
                *_ratios(row),
                short(row["seconds"]["evaluation"]),
                short(row["seconds"]["set_up"]),
                short(row["seconds"]["compilation"]),
                f"{row['peak_gib']:.2f}",
                f"{row['clients']:,}",
                f"{row['items']:,}",
                f"{row['interactions']:,}",
            ]
            for row in rows
        ),
    )


def _ratios(row: Row) -> tuple[str, str]:
    """Of the whole round, and of training where the reference does nothing else."""
    training = row.get("training_ratio")
    found = "" if row["ratio"] is None else f"{row['ratio']:,.0f}"
    return (found, "") if training is None else ("", found)


def _against(rows: Sequence[Row]) -> str:
    by: dict[str, list[str]] = {}
    for row in rows:
        if row["ratio_to"]:
            by.setdefault(row["ratio_to"], []).append(f"`{row['method']}`")
    return "\n" + "\n".join(f"- against {what}: {', '.join(names)}" for what, names in by.items())


def _split(rows: Sequence[Row]) -> str:
    def cell(row: Row, name: str) -> str:
        marked = name == SAMPLING and row["sampling_inside_training"]
        return f"{short(row['phases'].get(name, 0.0))}{'*' if marked else ''}"

    names = [*PHASES, "other"]
    lines = ([f"`{row['method']}`", *(cell(row, name) for name in names)] for row in rows)
    return table(["seconds", *names], lines)


def _rates(rows: Sequence[Row]) -> str:
    return table(
        ["method", "interactions/s", "GFLOP/s", "GB/s", "roofline", "cores busy with other work"],
        (
            [
                f"`{row['method']}`",
                f"{row['interactions_per_s']:,.0f}",
                f"{row['gflop_per_s']:.2f}",
                f"{row['gb_per_s']:.2f}",
                f"{row['roofline']:.1%}",
                f"{row['machine']['others_cores']:.1f}",
            ]
            for row in rows
        ),
    )


def _goals(found: Row) -> list[str]:
    rows = [row for row in found["goals"] if "seconds" in row]
    columns = [
        "method",
        "data",
        "settings",
        "rounds",
        "evaluation",
        "seconds",
        "limit",
        "s per round",
        "data and set-up s",
        "two rounds of warm-up s",
        "peak GiB",
    ]
    lines = (
        [
            f"`{row['goal']}`",
            row["data"],
            ", ".join(f"{name}={value}" for name, value in row["params"].items()),
            f"{row['rounds']:,}",
            f"every {row['every']}" if row["every"] else "",
            short(row["seconds"]),
            f"{row['within']:g}{'' if row['met'] else ' (missed)'}",
            short(row["seconds_round"]),
            short(row["seconds_data_and_set_up"]),
            short(row["seconds_warm_up"]),
            f"{row['peak_gib']:.2f}",
        ]
        for row in rows
    )
    return [table(columns, lines), WORLDS, "\n### What the accelerator did in a round\n", _traces(rows, "goal")]


def _traces(rows: Sequence[Row], name: str) -> str:
    columns = ["method", "launches", "waits of the host", "copies", "busy", "longest kernel"]
    return table(
        columns,
        (
            [
                f"`{row[name]}`",
                f"{_trace(row)['launches']:,}",
                f"{_trace(row)['waits']:,}",
                f"{_trace(row)['copies']:,}",
                f"{_trace(row)['busy_share']:.0%} of {short(_trace(row)['seconds'])} s",
                _longest(_trace(row)),
            ]
            for row in rows
            if _trace(row)
        ),
    )


def _trace(row: Row) -> Row:
    found: Row = row.get("trace", {})
    return found


def _longest(trace: Row) -> str:
    if not trace["longest"]:
        return ""
    first = trace["longest"][0]
    whole = first["kernel"].replace("(anonymous namespace)::", "")
    name = whole.partition("<")[0].partition("(")[0].split("::")[-1].removeprefix("void ")
    return f"`{name}` {short(first['seconds'])} s"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(markdown_lines(columns, rows))


def short(seconds: float) -> str:
    """Two or three digits that say something."""
    return "0" if seconds < 5e-6 else f"{seconds:.2g}" if seconds < 1 else f"{seconds:.1f}"
