"""What a person sees in the terminal: progress, results, tables."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fedrec.data import Filtered
from fedrec.experiment.listeners import Along
from fedrec.experiment.run import Listener, Run
from fedrec.federation.loop import Progress as RunProgress
from fedrec.federation.loop import Score
from fedrec.federation.simulator import RoundLog
from fedrec.privacy.explain import beside
from fedrec.visible import visible, visible_line


class Screen(Console):
    """Everything that is printed passes here: names of users, items, files and columns are shown, never obeyed."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)  # [brackets] stay

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text), **how)


out, err = Screen(), Screen(stderr=True)


class Bar(Listener):
    """A progress bar on stderr: rounds, loss, validation metric, clients per second, time left."""

    def __init__(self, label: str) -> None:
        self.label = visible_line(label)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
        )
        self.metric = ""

    def started(self, run: Run) -> None:
        self.metric = run.protocol.select_metric
        total, done = run.rules.rounds, run.progress.next_round
        self.task = self.bar.add_task(self.label, total=total, completed=done, note="")
        _show_notes(run)
        self.bar.start()

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        parts = [f"loss {log.observed['loss']:.4f}"] if "loss" in log.observed else []
        if progress.best_round >= 0:
            parts.append(f"best {self.metric} {progress.best_value:.4f} (round {progress.best_round + 1})")
        parts.append(f"{log.clients / max(log.seconds, 1e-9):,.0f} clients/s")
        self.bar.update(self.task, completed=log.round + 1, note="  ".join(parts))

    def stop(self) -> None:
        self.bar.stop()


class Lines(Listener):
    """One JSON object per evaluated round on stdout, for programs that read along."""

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        if score is not None:
            record = {"round": log.round, "seconds": log.seconds, **log.observed, "valid": score.metrics}
            print(json.dumps(record), flush=True)


class Noted(Along):
    """Another listener, and a note once all checks are passed and the work begins."""

    def __init__(self, inner: Listener, note: str) -> None:
        super().__init__(inner)
        self.note = note

    def started(self, run: Run) -> None:
        err.print(f"note: {self.note}", style="dim")
        super().started(run)


class Plain(Listener):
    """A line now and then where there is no terminal to draw on."""

    def __init__(self, label: str) -> None:
        self.label, self.rounds, self.spoken = label, 0, time.monotonic()

    def started(self, run: Run) -> None:
        self.rounds = run.rules.rounds
        _show_notes(run)

    def round(self, log: RoundLog, score: Score | None, progress: RunProgress) -> None:
        if time.monotonic() - self.spoken > 10:
            self.spoken = time.monotonic()
            best = f", best {progress.best_value:.4f}" if progress.best_round >= 0 else ""
            err.print(f"{self.label}: round {log.round + 1} of {self.rounds}{best}")


def _show_notes(run: Run) -> None:
    for note in (*run.notes, *map(left_out, run.prepared.filtered)):
        err.print(f"note: {note}", style="dim")


def left_out(record: Filtered) -> str:
    return f"left out: {record}"


def download(done: int, total: int | None) -> None:
    """Progress of a download, on one line."""
    share = f" of {human(total)}" if total else ""
    if err.is_terminal:
        print(f"\rdownloading: {human(done)}{share}   ", end="\n" if total and done >= total else "", file=sys.stderr)


def listener(label: str, quiet: bool, as_json: bool) -> Listener:
    if as_json:
        return Lines()
    if quiet:
        return Listener()
    return Bar(label) if err.is_terminal else Plain(label)


def progress(label: str) -> Listener:
    """Of something that runs beside what was asked for."""
    return listener(label, quiet=False, as_json=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None) -> None:
    """A plain table on stdout; numbers to the right."""
    drawn = Table(*(), title=title, box=None, pad_edge=False, title_justify="left")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        drawn.add_column(visible_line(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(_text(cell) for cell in row))
    out.print(drawn)


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.4f}"
    return f"{cell:,}" if isinstance(cell, int) else visible_line(str(cell))


def _how(summary: Mapping[str, Any]) -> str:
    """How the round came to count: where an epsilon is printed nothing chooses it."""
    return "counts, the last" if summary.get("privacy", {}).get("epsilon") is not None else "chosen"


def show_summary(summary: Mapping[str, Any]) -> None:
    """The result of one run: what was measured, on what, by which protocol, at which price."""
    data = summary["dataset"]
    out.print(
        f"{summary['method']}  {data['name']}@{data['version']}  protocol {summary['protocol']}  "
        f"seed {summary['seed']}",
        style="bold",
    )
    for leak in summary["leaks"]:
        out.print(f"not honest: {leak}", style="yellow")
    out.print(
        f"{data['users']:,} users, {data['items']:,} items, {data['interactions']:,} interactions, "
        f"{summary['clients']:,} clients; round {summary['best_round'] + 1} of {summary['rounds_run']} {_how(summary)}"
    )
    for record in summary["filtered"]:
        out.print(left_out(Filtered.from_dict(record)))
    if summary.get("diverged"):
        out.print(f"warning: {summary['diverged']}", style="yellow")
    names = [name for name in summary["test"] if not name.startswith("hr@")]
    rows = [
        [name, summary["test"][name], summary["valid"].get(name, "-"), summary["chance"].get(name, "-")]
        for name in names
    ]
    table(["metric", "test", "validation", "chance"], rows)
    seconds, traffic = summary["seconds"], summary["bytes"]
    out.print(
        f"{seconds['train']:.1f} s training, {seconds['evaluate']:.1f} s evaluating; per client and round "
        f"{human(traffic['up_per_client_round'])} up, {human(traffic['down_per_client_round'])} down; "
        f"peak memory {summary['peak_memory_mb']:,.0f} MB"
    )
    out.print(
        f"a client keeps {human(traffic['kept_per_client'])} between rounds and scores with "
        f"{human(traffic['to_score_per_client'])} of it; largest message {human(traffic['largest_up'])} up, "
        f"{human(traffic['largest_down'])} down"
    )
    if "privacy" in summary:
        privacy = summary["privacy"]
        epsilon, delta = privacy["epsilon"], privacy["delta"]
        value = "no finite epsilon" if epsilon is None else f"epsilon {epsilon:.3g}, delta {delta:g}"
        out.print(f"privacy: {value} ({privacy['meaning']})")
        if more := beside(privacy):
            out.print(f"  {more}")


def human(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
