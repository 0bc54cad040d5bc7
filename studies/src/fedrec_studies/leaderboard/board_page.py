"""The leaderboard as pages: Markdown and a picture, from the data alone. Nothing on them is typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedrec.data import atomic_file
from fedrec.errors import FedrecError
from fedrec.evaluation import LEVEL
from fedrec.experiment import Trial, best_of, settings_text
from fedrec.report import Drawing, Offer, Panel, as_svg, front, front_chart, markdown_lines
from fedrec_studies.leaderboard.board_definition import Board, read_study
from fedrec_studies.leaderboard.record import ALL, FEDERATED, NOTHING, SUMS, TOGETHER, is_ranked, mean_of, read_records
from fedrec_studies.reproduce import table_definition

Record = Mapping[str, Any]
START, END = "<!-- leaderboard: made by `fedrec leaderboard`, not by hand -->", "<!-- /leaderboard -->"
PICTURE = "leaderboard.svg"
MEGABYTE = 1e6
TOP, YARDSTICKS = 8, ("popularity", "local")  # rows in the README: it is read in a minute, the page has all


def write_pages(whole: Board, results: Path, page: Path, readme: Path | None) -> None:
    """The page, its picture beside it, and the block in the README where it has the marks for one."""
    records = read_records(results, whole.every_dataset())
    if not any(_rows_with_figures(record) for record in records.values()):
        raise FedrecError(
            f"{results} has no figures yet; run fedrec leaderboard first, or name its folder with --results"
        )
    shown = next(record for record in records.values() if _rows_with_figures(record))  # the first dataset of the board
    lines = [
        "# Leaderboard",
        "",
        START,
        "",
        *_findings(records, whole.chosen_elsewhere()),
        *_print(whole, records),
        *_readings(whole),
        *(line for record in records.values() for line in _dataset(record)),
        *_front(shown),
        *_trials(whole, results),
        "",
        END,
    ]
    _write(page, "\n".join(lines) + "\n")
    if _offers(shown):
        _write(page.with_name(PICTURE), picture(shown))
    if readme is not None and readme.is_file():
        block = "\n".join(_short(shown, records, whole.chosen_elsewhere()))
        _write(readme, with_block(readme.read_text(encoding="utf-8"), block))


def with_block(text: str, block: str) -> str:
    """A page with what stands between the marks replaced; unchanged where it has none."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    return f"{before}{start}\n{block}\n{end}{after}" if start and end else text


# -- what comes first: who is best, by how much, how far from centralised training --


def _findings(records: Mapping[str, Record], elsewhere: Sequence[str]) -> Iterator[str]:
    for dataset, record in records.items():
        if sentence := finding(record, elsewhere):
            yield f"- **{dataset}**: {sentence}"
    yield ""


def finding(record: Record, elsewhere: Sequence[str] = ()) -> str:
    """Which federated method is best on this data, by how much, and how it compares with centralised training.

    Federated ones do not count if they were tuned `elsewhere`; the others may have had any number of trials.
    """
    federated = [row for row in _equal(record, elsewhere) if row["kind"] == FEDERATED]
    together = [row for row in _rank_rows(record) if row["kind"] == TOGETHER]
    if len(federated) < 2:
        return ""
    metric, best, next_best = record["metrics"][-1], federated[0], federated[1]
    ahead = mean_of(best, metric) / mean_of(next_best, metric) - 1
    words = (
        f"the best federated method is `{best['label']}` ({_both(record, best)}), {100 * ahead:.1f} % ahead "
        f"of `{next_best['label']}` in {_metric_words(metric)}{_significance_note(record, best, next_best)}"
    )
    if not together:
        return f"{words}; no centralised baseline is ranked."
    gap = mean_of(best, metric) / mean_of(together[0], metric) - 1
    beside = "above" if gap > 0 else "below"
    return (
        f"{words}. It is {abs(100 * gap):.1f} % {beside} the best centralised baseline, `{together[0]['label']}` "
        f"({_both(record, together[0])}){_significance_note(record, best, together[0])}."
    )


def _significance_note(record: Record, one: Record, two: Record) -> str:
    """Remark on two rows whose difference is not significant."""
    tested = record["tested"]
    if tested["row"] != one["label"] or two["label"] not in tested["p"]:
        return " (not tested)"
    return "" if tested["p"][two["label"]] < 1 - LEVEL else " (not significant)"


# -- one dataset --


HEADS = ("group", "round", "MB up", "server", "trials", "seeds", "s")  # behind the metrics
FAIR = """\
A row is ranked when its settings were searched, or when there are none to search. The figure of any other row, or of
one whose search fell short, says what those settings are worth, not what the method can reach."""
READINGS = """\
Protocol `{protocol}`: all items are ranked, test histories include the validation item, rounds and parameters are
chosen on validation items. **Trials** used the validation items of {tuned_on} ([tuning](tune.md)), at most {trials} per
row; the settings found there are kept on the other datasets{adapted}.
{fair} Such
rows stand below the others, in no order, without rank or group; with 0 trials they have their method's default
settings, those of {new_items} the settings of their table.
{elsewhere} have settings that were chosen in another way, from as many as the column says: they
are listed for comparison and never count as the best federated method. Mean ± standard deviation over seeds. Rows in
one **group** are not significantly different from its best by NDCG (paired bootstrap over users, Holm-corrected, 0.05).
A row without a group was not tested together with the others.
**MB up**: what a client uploads until the chosen round, on average. **Server**: what it sees; where that is {sums},
secure aggregation can keep it blind. Seconds are for one run, training and evaluation, on machines busy with other
work: an order of magnitude. Commands, versions and commits of every run are in `results/leaderboard/`;
`fedrec leaderboard` continues it. The table of {new_items} has the rows, settings and measured runs of
`fedrec reproduce {table}`, whose uploads are not on record; its NDCG is that of the paper's code (`fedrec metrics`).
"""


def _readings(whole: Board) -> Iterator[str]:
    yield from ("## How to read the tables", "")
    yield READINGS.format(
        protocol=whole.protocol,
        trials=whole.trials,
        tuned_on=whole.tuned_on,
        sums=SUMS,
        adapted=_describe_adapted_rows(whole),
        fair=FAIR,
        elsewhere=", ".join(f"`{label}`" for label in whole.chosen_elsewhere()) or "No rows",
        new_items=whole.new_items["dataset"],
        table=whole.new_items["table"],
    )


def _describe_adapted_rows(whole: Board) -> str:
    """Say which tuned rows have settings of their own on other data, beyond what the trials found."""
    names = [f"`{row.label}`" for row in whole.rows if row.on and (row.tuned or row.like)]
    return (
        f", but for {', '.join(names)}, whose sizes, clients a round and rounds there were set by hand" if names else ""
    )


def _dataset(record: Record) -> Iterator[str]:
    metrics = record["metrics"]
    yield from (
        f"## {record['dataset']}",
        "",
        f"Protocol `{record['protocol']}`; chance {' / '.join(_chance(record, metric) for metric in metrics)}.",
        "",
    )
    if ranked := _rank_rows(record):
        yield from (*_full_table(record, ranked), "")
    if aside := _set_aside(record):
        reasons = [f"- {reason}: {labels}" for reason, labels in _by_reason(aside, "unranked").items()]
        yield from ("Not ranked:", "", *reasons, "", *_full_table(record, aside, leave_out=("group",)), "")
    if empty := [row for row in record["rows"] if not row["cells"]]:
        reasons = [f"- {reason}: {labels}" for reason, labels in _by_reason(empty, "why").items()]
        yield from ("Not available:", "", *reasons, "")


def _full_table(record: Record, rows: Sequence[Record], leave_out: Sequence[str] = ()) -> Iterator[str]:
    heads = ["", *map(_metric_words, record["metrics"]), *HEADS]
    shown = [index for index, head in enumerate(heads) if head not in leave_out]
    lines = [[line[index] for index in shown] for line in (_line(record, row) for row in rows)]
    yield from markdown_lines([heads[index] for index in shown], lines)


def _by_reason(rows: Sequence[Record], reason: str) -> dict[str, str]:
    """The labels of the rows that have it, for each reason."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        labels.setdefault(row[reason], []).append(f"`{row['label']}`")
    return {why: ", ".join(those) for why, those in labels.items()}


def _line(record: Record, row: Record) -> list[str]:
    cells = row["cells"]
    name = f"`{row['label']}`" + (", centralised" if row["kind"] == TOGETHER else "")
    figures = [_spread([cell["test"][metric] for cell in cells]) for metric in record["metrics"]]
    rounds = f"{mean(cell['best_round'] + 1 for cell in cells):.0f}"
    sent = "-" if row["server"] == ALL else _megabytes(row)
    group = "-" if row["group"] is None else str(_group_numbers(record).index(row["group"]) + 1)
    seconds = f"{mean(cell['seconds'] for cell in cells):.0f}"
    gpu = " (GPU)" if any(cell["device"] != "cpu" for cell in cells) else ""
    return [
        name,
        *figures,
        group,
        rounds,
        sent,
        row["server"] or "-",
        f"{row['trials']:,}",
        str(len(cells)),
        seconds + gpu,
    ]


def _group_numbers(record: Record) -> list[int]:
    """List the group numbers in use, in order; a rerun row may have left its group empty."""
    return sorted({row["group"] for row in record["rows"] if row["group"] is not None})


# -- worth against bytes --


def picture(record: Record) -> str:
    """Recall against megabytes uploaded per client, with the Pareto front."""
    metric = record["metrics"][0]
    title = f"{_metric_words(metric)} against megabytes uploaded per client, {record['dataset']}"
    chart = front_chart(
        _offers(record),
        title=title,
        x_label="megabytes uploaded per client until the chosen round",
        y_label=_metric_words(metric),
    )
    return as_svg(Drawing(title, "", (Panel(chart, title),)), [])


def _offers(record: Record) -> list[Offer]:
    metric = record["metrics"][0]
    rows = [row for row in _rank_rows(record) if row["kind"] == FEDERATED and _up(row) > 0]
    return [
        Offer(row["label"], _up(row), mean_of(row, metric), "s0" if row["server"] == SUMS else "s1") for row in rows
    ]


def _front(record: Record) -> Iterator[str]:
    best = front(_offers(record))
    if not best:
        return
    yield from ("## Accuracy against upload size", "", f"![{record['dataset']}]({PICTURE})", "")
    yield (
        f"Federated rows on {record['dataset']}. No row is more accurate for the same upload than the Pareto front: "
        + "; ".join(f"`{offer.label}` ({offer.worth:.4f} for {_size(offer.cost)} MB)" for offer in best)
        + ". First colour: the server needs sums only; second: it sees single uploads."
    )
    yield ""


# -- print --


def _print(whole: Board, records: Mapping[str, Record]) -> Iterator[str]:
    """Papers' own order of the methods beside the order of their honest figures; nothing where there is none."""
    begun = False
    for paper, source in whole.print.items():
        record = records.get(source["dataset"])
        lines = [] if record is None else _ranks(whole, paper, source, record)
        if record is None or len(lines) < 2:
            continue
        if not begun:
            yield from ("## Printed rank and honest rank", "")
            begun = True
        yield from (
            f"{source['dataset']}, as printed in `fedrec reproduce {source['table']}` ({source['metric']}):",
            "",
        )
        yield from markdown_lines(
            ["", "printed", "rank", f"honest {_metric_words(record['metrics'][0])}", "rank"], lines
        )
        yield ""
        if aside := [
            f"`{row['label']}`" for row in _set_aside(record) if paper in _figures_in_print(whole, row["label"])
        ]:
            yield from (f"Left out, because they are not ranked: {', '.join(aside)}.", "")


def _figures_in_print(whole: Board, label: str) -> Mapping[str, str]:
    row = whole.row(label)
    return {} if row is None else row.printed


def _ranks(whole: Board, paper: str, source: Mapping[str, str], record: Record) -> list[list[str]]:
    _, (table,) = table_definition.select_tables(source["table"])
    first = {row.label: row.printed.get(source["dataset"], [None])[0] for row in table.rows}
    shown = {label: value for label, value in first.items() if value is not None}
    honest = {row["label"]: mean_of(row, record["metrics"][0]) for row in _rank_rows(record)}
    both = [
        (row.label, shown[name], honest[row.label])
        for row in whole.rows
        if (name := row.printed.get(paper)) in shown and row.label in honest
    ]
    both.sort(key=lambda one: -one[1])
    order = sorted((one[2] for one in both), reverse=True)
    return [
        [f"`{label}`", f"{printed:.3f}", str(rank), f"{value:.4f}", str(order.index(value) + 1)]
        for rank, (label, printed, value) in enumerate(both, start=1)
    ]


# -- trials --

TRIED = """\
All on {tuned_on}, seed 0, by NDCG@10 on the validation items; the first trial of each row uses its method's default
settings{starts}. FedGram's defaults come from an earlier, wider search ([FedGram](fedgram.md)), those of other methods
from their papers or from a handful of settings.
"""


def _trials(whole: Board, results: Path) -> Iterator[str]:
    found = {row.label: read_study(results, row.label) for row in whole.studies}
    rows = [row for row in whole.studies if row.start and _began_with(row.start, found[row.label])]
    starts = "".join(f"; that of `{row.label}`: {settings_text(row.start)}" for row in rows)
    yield from ("## Trials", "", TRIED.format(tuned_on=whole.tuned_on, starts=starts))
    lines = []
    for row in whole.studies:
        stored = found[row.label]
        trials = [Trial(**values) for values in stored["trials"]]
        best, first = best_of(trials), trials[0].value if trials else None
        if best is None:
            lines.append([f"`{row.label}`", str(len(trials)), "-", "-", "-", "-"])
            continue
        searched = "; ".join(f"{name} {text}" for name, text in stored["searched"].items())
        own = "-" if first is None else f"{first:.4f}"
        lines.append(
            [f"`{row.label}`", str(len(trials)), searched, settings_text(best.params), own, f"{best.value:.4f}"]
        )
    yield from markdown_lines(["", "trials", "searched", "best settings", "first NDCG@10", "best NDCG@10"], lines)
    if differ := [f"- `{row.label}`: {row.trials_differ}." for row in whole.studies if row.trials_differ]:
        yield from ("", "Not all trials of a row are of one search:", "", *differ)


def _began_with(start: Mapping[str, Any], stored: Record) -> bool:
    """Whether the first trial was a row's `start`; one of an earlier search was not."""
    return any(start.items() <= first["params"].items() for first in stored["trials"][:1])


# -- the README --


def _short(record: Record, records: Mapping[str, Record], elsewhere: Sequence[str]) -> Iterator[str]:
    """One dataset in a few columns: its best ranked rows and the yardsticks; and the finding of every dataset."""
    yield ""
    heads = [f"{record['dataset']}", *map(_metric_words, record["metrics"]), "MB up per client", "server", "trials"]
    yield from markdown_lines(
        heads,
        [
            [cell for index, cell in enumerate(_line(record, row)) if index in (0, 1, 2, 5, 6, 7)]
            for row in _top_rows(record, elsewhere)
        ],
    )
    yield ""
    if aside := _set_aside(record):
        reasons = [f"{labels} ({reason})" for reason, labels in _by_reason(aside, "unranked").items()]
        yield from (*FAIR.splitlines(), f"Measured on {record['dataset']} and not ranked: {'; '.join(reasons)}.", "")
    yield from _findings(records, elsewhere)


def _top_rows(record: Record, elsewhere: Sequence[str]) -> list[Record]:
    """Select the best rows of a dataset, and below them what needs no training or no federation."""
    ranked = _equal(record, elsewhere)
    return ranked[:TOP] + [row for row in ranked[TOP:] if row["label"] in YARDSTICKS]


# -- parts --


def _rows_with_figures(record: Record) -> list[Record]:
    return [row for row in record["rows"] if row["cells"]]


def _rank_rows(record: Record) -> list[Record]:
    """Sort the rows whose figures count, the best first."""
    metric = record["metrics"][-1]
    return sorted(filter(is_ranked, record["rows"]), key=lambda row: -mean_of(row, metric))


def _set_aside(record: Record) -> list[Record]:
    """Rows with figures that do not count, in the order of the board: theirs would be a ranking."""
    return [row for row in _rows_with_figures(record) if not is_ranked(row)]


def _equal(record: Record, elsewhere: Sequence[str]) -> list[Record]:
    """Those with no more trials than the board gives: all that were not tuned elsewhere."""
    return [row for row in _rank_rows(record) if row["label"] not in elsewhere]


def _both(record: Record, row: Record) -> str:
    return ", ".join(f"{_metric_words(metric)} {mean_of(row, metric):.4f}" for metric in record["metrics"])


def _chance(record: Record, metric: str) -> str:
    return f"{record['chance'][metric]:.4f}" if metric in record["chance"] else "-"


def _metric_words(metric: str) -> str:
    name, _, k = metric.partition("@")
    return f"{'NDCG' + name[4:] if name.startswith('ndcg') else name.capitalize()}@{k}"


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def _up(row: Record) -> float:
    return mean(cell["up"] for cell in row["cells"]) / MEGABYTE


def _megabytes(row: Record) -> str:
    return "0" if row["server"] == NOTHING else _size(_up(row)) if _up(row) else "-"


def _size(megabytes: float) -> str:
    return f"{megabytes:.3g}" if megabytes < 100 else f"{megabytes:.0f}"


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
