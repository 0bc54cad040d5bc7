"""From what was tried to an answer: a table, two sentences, the settings to go on with."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.data import Interactions
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.advise.attempts import Attempt, Logbook
from fedrec.experiment.advise.race import Clock, Race
from fedrec.experiment.advise.revealed import FEW, Revealed, judge_upload, percent, reveal
from fedrec.experiment.advise.shortlist import Candidate, Wishes, candidates, sort_out
from fedrec.experiment.command_line import command_line
from fedrec.experiment.config import RunConfig, with_columns
from fedrec.experiment.driver import Listener
from fedrec.experiment.machine import size_text
from fedrec.experiment.params import method_of
from fedrec.experiment.prepare import Prepared, prepare, prepare_config
from fedrec.experiment.tuning import require_choosable

# Below this many times popularity the clients' work buys next to nothing.
WEAK = 1.1
POPULARITY = "popularity"


@dataclass(frozen=True)
class Line:
    """A row of the table: an attempt, and what it means for a member of the federation."""

    attempt: Attempt
    candidate: Candidate
    sees: str
    revealed: Revealed
    upload: str
    judged: str
    """Who can bear that upload."""
    remark: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        one = self.attempt
        value = "-" if one.value is None else f"{one.value:.4f}"
        seconds = f"{one.seconds:.0f}"
        upload = f"{self.upload}, {self.judged}" if self.judged else self.upload
        return self.name, value, upload, self.sees, self.revealed.words, seconds, self.remark or one.note

    @property
    def name(self) -> str:
        """The label, with what differs from its first settings."""
        return self.attempt.name_beside(self.candidate)


@dataclass(frozen=True)
class Advice:
    """What to take and why. `config`: the settings to go on with."""

    lines: tuple[Line, ...]
    metric: str
    sentences: str
    config: RunConfig
    command: str
    not_tried: tuple[str, ...]
    data: str
    folder: Path | None = None

    @property
    def heads(self) -> tuple[str, ...]:
        return "method", f"{self.metric} (validation)", "upload per client", "server sees", "its sum tells", "s", ""

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the config, for `fedrec.run(config=...)`."""
        return self.config.to_dict()

    @property
    def best_lines(self) -> list[Line]:
        """Of every candidate its best settings."""
        first = {line.candidate.label: line for line in reversed(self.lines)}
        tried = Counter(line.candidate.label for line in self.lines)
        best = [line for line in self.lines if first[line.candidate.label] is line]
        return [_with_count(line, tried[line.candidate.label]) for line in best]

    def __repr__(self) -> str:
        rows = [self.heads, *(line.cells for line in self.best_lines)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(self.heads))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*table, "", self.sentences])


def _with_count(line: Line, tried: int) -> Line:
    if tried == 1:
        return line
    return replace(line, remark=", ".join(filter(None, [line.remark, f"best of {tried} settings"])))


def advise(
    base: RunConfig,
    wishes: Wishes,
    folder: Path | None = None,
    data: Interactions | None = None,
    clock: Clock = time.perf_counter,
    heard: Callable[[str, Attempt], None] = lambda name, attempt: None,
    follow: Callable[[str], Listener] = lambda label: Listener(),
) -> Advice:
    """Try what fits the data and the wishes within the budget, and say what to take.

    `base`: a config that says all but the method. `folder`: where it goes on from if it was interrupted.
    """
    require_choosable(base)
    if not wishes.minutes > 0:
        raise FedrecError(f"minutes {wishes.minutes:g} must be above 0")
    rules = protocol(base.protocol)
    prepared = (
        prepare_config(base, rules, centralised=False)
        if data is None
        else prepare(data, rules, base.silos, items=base.attributes)
    )
    # Columns that were recognised are written down, so that the chosen config reads the same ones elsewhere.
    base = with_columns(base, prepared.source.columns)
    runners, not_tried = sort_out(base, prepared, wishes)
    logbook = Logbook(folder, base, prepared.source.identity(), wishes)
    race = Race(base, prepared, runners, logbook, wishes, clock, heard, follow)
    with logbook.lock():
        race.run()
        not_tried += [f"{label}: no time was left; more minutes go on from here" for label in race.list_untried()]
        leaders = race.leaders()
        if not leaders:
            raise FedrecError(_why_nothing(race.attempts, wishes))
        lines = _lines(race.attempts, base, prepared, wishes)
        chosen = next(line for line in lines if line.attempt is leaders[0])
        config = chosen.candidate.config(base, chosen.attempt.settings)
        config = replace(config, secure_sums=base.secure_sums or wishes.blind)
        sentences = _sentences(chosen, lines, prepared, rules.select_metric, noisy=base.epsilon is not None)
        logbook.choose(config, f"{chosen.name}: {rules.select_metric} {chosen.attempt.value:.4f} on validation items")
    command = command_line("run", "--config", logbook.best) if logbook.kept else ""
    return Advice(
        tuple(lines), rules.select_metric, sentences, config, command, tuple(not_tried), prepared.source.label, folder
    )


def _why_nothing(attempts: Sequence[Attempt], wishes: Wishes) -> str:
    sizes = [attempt.upload for attempt in attempts if attempt.value is not None and attempt.upload]
    if wishes.max_upload is not None and sizes:
        return (
            f"nothing that was tried stays within an upload of {size_text(wishes.max_upload)}; the smallest is "
            f"{size_text(min(sizes))}"
        )
    return f"nothing could be trained on this data: {attempts[0].note if attempts else 'no method fits'}"


def _lines(attempts: Sequence[Attempt], base: RunConfig, data: Prepared, wishes: Wishes) -> list[Line]:
    """Every attempt, the best first, those without a figure last."""
    known = {candidate.label: candidate for candidate in candidates()}
    noisy, users = base.epsilon is not None, -(-data.partition.n_users // data.partition.n_clients)
    floor = next((one.value for one in attempts if one.label == POPULARITY and one.value is not None), None)
    made = []
    # Those without a figure go last, below even a value of zero.
    for one in sorted(attempts, key=lambda one: -(one.value if one.value is not None else -1.0)):
        candidate = known[one.label]
        method = method_of(candidate.config(base, one.settings))
        size, judged = (None, "") if one.upload is None else (one.upload, judge_upload(one.upload, users))
        made.append(
            Line(
                one,
                candidate,
                _sees(method.disclosure.secure_aggregation, method.disclosure.gathers, wishes.blind),
                reveal(candidate.sum, data, noisy),
                "-" if size is None else size_text(size),
                judged,
                _remark(one, floor, wishes),
            )
        )
    return made


def _sees(needs_sums: bool, gathers: bool, blind: bool) -> str:
    if gathers:
        return "single uploads"
    return "sums alone" if needs_sums or blind else "sums, with --secure-sums"


def _remark(one: Attempt, floor: float | None, wishes: Wishes) -> str:
    if one.value is None:
        return ""
    if wishes.max_upload is not None and (one.upload or 0) > wishes.max_upload:
        return "uploads too much"
    if one.is_unfinished:
        return f"{one.rounds_run} of {one.rounds} rounds"
    weak = one.label != POPULARITY and floor is not None and one.value < WEAK * floor
    return f"weak: {_above(one.value, floor)}" if weak else ""


def _above(value: float, floor: float | None) -> str:
    """How far above popularity."""
    if not floor:
        return "popularity finds nothing here"
    gain = value / floor - 1
    return f"{abs(gain):.0%} {'above' if gain >= 0 else 'below'} popularity".replace("%", " %")


def _sentences(chosen: Line, lines: Sequence[Line], data: Prepared, metric: str, noisy: bool) -> str:
    """Which to take, with its price in the same sentence; and why, with what else there is."""
    return f"{_which(chosen, lines, data, metric, noisy)} {_why(chosen, lines, data)}"


def _which(chosen: Line, lines: Sequence[Line], data: Prepared, metric: str, noisy: bool) -> str:
    one, members = chosen.attempt, data.partition.n_clients
    floor = next((line.attempt.value for line in lines if line.candidate.label == POPULARITY), None)
    value = one.value or 0.0
    parts = [f"Take {chosen.name}: {metric} {value:.4f} on validation items"]
    if chosen.candidate.label != POPULARITY:
        parts[0] += f", {_above(value, floor)}"
    share = "" if one.catalogue is None else f"its lists hold {percent(one.catalogue)} of the catalogue"
    if chosen.candidate.label == POPULARITY or (floor is not None and value < WEAK * floor):
        parts.append(f"a weak result: {share}" if share else "a weak result")
    parts.append(f"a client uploads {chosen.upload} in all ({chosen.judged})")
    if chosen.revealed.gives_away:
        lost = percent(chosen.revealed.share or 0.0)
        parts.append(
            f"but the sum of {members:,} members, and the model made from it, gives away {lost} of all histories "
            "exactly, to the server and to every member"
        )
    if members < FEW:
        parts.append(f"with only {members} members each can take its own part off the sum and sees that of the others")
    if noisy:
        parts.append("the noise covers what it uploads, not this search among methods")
    return "; ".join(parts) + "."


def _why(chosen: Line, lines: Sequence[Line], data: Prepared) -> str:
    others = [
        line
        for line in lines
        if line.candidate.label != chosen.candidate.label
        and line.attempt.value is not None
        and not line.remark.startswith("uploads")
    ]
    tried = len({line.candidate.label for line in lines})
    if not others:
        return f"None of the {tried - 1} others could be trained within what was asked."
    second = others[0]
    # The tiny floor only avoids a division by zero where nothing else finds anything.
    gain = (chosen.attempt.value or 0.0) / max(second.attempt.value or 0.0, 1e-12) - 1
    text = f"It is the best of {tried} that were tried, {gain:.0%} ahead of {second.name}".replace("%", " %")
    harmless = next((line for line in others if not line.revealed.gives_away), None)
    if chosen.revealed.gives_away and harmless is not None:
        text += (
            f"; of those whose sums give no history away the best is {harmless.name} "
            f"({harmless.attempt.value or 0.0:.4f})"
        )
    if chosen.attempt.is_unfinished:
        whole = chosen.attempt.seconds / max(1, chosen.attempt.rounds_run) * chosen.attempt.rounds
        text += (
            f"; it was still rising after {chosen.attempt.rounds_run} of {chosen.attempt.rounds} rounds, which take "
            f"some {max(1, round(whole / 60))} minutes here"
        )
    return text + "."
