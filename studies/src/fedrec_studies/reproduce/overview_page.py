"""The verdicts on all papers on one page, with a picture of how much of each agrees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedrec.data import atomic_file
from fedrec.report import Bar, Drawing, Panel, as_svg, bars, markdown_lines
from fedrec_studies.reproduce.causes import read_findings
from fedrec_studies.reproduce.coverage import coverage
from fedrec_studies.reproduce.coverage_page import RULE, count_row, turn, wrap
from fedrec_studies.reproduce.measured import read_all_shipped, read_shipped
from fedrec_studies.reproduce.printed import read_print
from fedrec_studies.reproduce.table_definition import names, papers
from fedrec_studies.reproduce.verdicts import VERDICTS, Judgement, agreement, count_verdicts, judge

TITLE = "Five papers: what their figures are"
PICTURE = "overview.svg"
NOT_COUNTED = (
    "Derived cells (gains) and repeated ones are shown on the pages of the papers, not counted. Agreement is the share "
    "of the cells whose data is here and whose print is not the leak's; cells that take too long count against it."
)


def judge_papers() -> dict[str, list[Judgement]]:
    """Judge all printed cells by the runs that come with fedrec, by paper."""
    timed = read_all_shipped()
    printed = [paper for paper in papers() if read_print(paper)]
    return {paper: judge(coverage(paper, read_shipped(paper), timed=timed), read_findings(paper)) for paper in printed}


def write_overview(judged: Mapping[str, Sequence[Judgement]], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"README.md": "\n".join(overview_lines(judged)) + "\n", PICTURE: draw_agreement(judged)}
    for name, text in texts.items():
        with atomic_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def overview_table(judged: Mapping[str, Sequence[Judgement]], linked: bool = False) -> list[list[str]]:
    """A column for each paper and one for all, a line for each verdict that anything has; the header first."""
    everything = [one for some in judged.values() for one in some]
    named = {_link(paper) if linked else _short(paper): some for paper, some in judged.items()} | {"all": everything}
    turned = turn([count_row(name, some) for name, some in named.items()], "")
    return [*turned, ["agreement", *(_share(some) for some in named.values())]]


def overview_lines(judged: Mapping[str, Sequence[Judgement]]) -> Iterable[str]:
    everything = [one for some in judged.values() for one in some]
    near, possible = agreement(everything)
    found = count_verdicts(everything)
    yield from (f"# {TITLE}", "")
    yield wrap(
        f"{len(everything)} printed cells of {len(judged)} papers, each with a verdict: {near} of the {possible} that "
        f"can agree do ({RULE}), {found['ours is wrong']} are mistakes or readings of ours to be run again, and "
        f"{found['not explained yet']} are apart without a known cause."
    )
    yield from ("", wrap(NOT_COUNTED), "", f"![How much of each paper agrees]({PICTURE})", "", "## Verdicts", "")
    header, *rows = overview_table(judged, linked=True)
    yield from markdown_lines(header, rows)
    yield ""
    yield from (f"- **{word}**: {meaning}." for word, meaning in VERDICTS.items() if found[word])
    yield from ("", "## What a sceptical author would want to know")
    for paper in judged:
        yield from ("", wrap(f"**{_link(paper)}.** {read_findings(paper).sceptic}"))
    yield from ("", "## What would settle the rest")
    for paper in judged:
        yield from ("", wrap(f"**{_short(paper)}.** {read_findings(paper).settle}"))


def draw_agreement(judged: Mapping[str, Sequence[Judgement]]) -> str:
    """A bar for each paper: the share of its cells that agree, of those that could."""
    rows = []
    for paper, some in judged.items():
        near, possible = agreement(some)
        rows.append(Bar(_short(paper), near / possible if possible else 0.0, f"{near} of {possible}"))
    words = f"Printed cells that agree, as a share of those that could: within {RULE}"
    return as_svg(Drawing(TITLE, "", (Panel(bars(rows, title=words, most=1.0), words),)), ())


def _share(some: Sequence[Judgement]) -> str:
    near, possible = agreement(some)
    return f"{near / possible:.0%}" if possible else "-"


def _short(paper: str) -> str:
    return names(paper).title.partition(":")[0]


def _link(paper: str) -> str:
    return f"[{_short(paper)}]({paper}/coverage.md)"
