"""The page: says what came out, escapes what it shows, and needs nothing but itself."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

import fedrec
from conftest import Cli
from fedrec.commands.own_report import write_own_report
from fedrec.experiment import references
from fedrec.experiment.finished_run import read_run
from fedrec.report.pages import report_charts
from fedrec.report.pages.report import write_report
from report.beside import with_references

from ..test_comparison import change

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Tags with their attributes, the text, and whether tags are closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []
        self.text = re.sub(r"\s+", " ", "".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def test_the_headline_names_the_run_and_its_rivals(page: Path, runs: Path) -> None:
    text = Reader(page).text
    run = read_run(runs / "runs" / "fedmf" / "seed0")
    for words in (
        "fedmf",
        run.data,
        "honest",
        "mean over 2 seeds",
        "of all 40 users",
        "Popularity reaches",
        "chance gives",
    ):
        assert words in text
    for words in ("chance gives", "recall@10", "ndcg@10"):
        assert words in text
    assert "Not an honest measurement" not in text


def test_the_table_holds_mean_and_deviation_of_every_metric(page: Path, runs: Path) -> None:
    text = Reader(page).text
    tests = [read_run(runs / "runs" / "fedmf" / f"seed{seed}").summary["test"] for seed in (0, 1)]
    for name in (name for name in tests[0] if not name.startswith("hr@")):
        middle = (tests[0][name] + tests[1][name]) / 2
        assert f"{middle:.4f} ± " in text, name


@pytest.mark.parametrize("which", ["page", "comparison_page"])
def test_the_page_is_self_contained_and_small(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    assert path.stat().st_size < 500_000
    reader = Reader(path)
    for tag, attributes in reader.tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action", "xlink:href"):
            assert attributes.get(name) in (None, "data:,"), attributes
    style = path.read_text(encoding="utf-8").split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_pictures_are_well_formed_and_have_names(page: Path, comparison_page: Path) -> None:
    for path in (page, comparison_page):
        pictures = re.findall(r"<svg.*?</svg>", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert len(pictures) >= 5
        for picture in pictures:
            root = ElementTree.fromstring(picture)
            assert root.get("role") == "img"
            assert root.findtext("title")


def test_ids_that_are_markup_stay_text(page: Path) -> None:
    reader = Reader(page)
    assert "User <b>" in reader.text
    assert "<script>alert('x')</script>" in reader.text  # as text: the reader has unescaped it
    assert not any(tag in ("script", "img", "b") and attributes for tag, attributes in reader.tags)


def test_tables_have_headers(comparison_page: Path) -> None:
    scopes = [attributes.get("scope") for tag, attributes in Reader(comparison_page).tags if tag == "th"]
    assert scopes
    assert set(scopes) == {"row", "col"}


def test_a_comparison_shows_every_configuration_and_how_to_repeat_it(comparison_page: Path) -> None:
    text = Reader(comparison_page).text
    assert "Between" in text
    command = re.search(r"fedrec run fedmf [^\n]*?--seeds 0,1", text)
    assert command is not None
    assert "dim=4" in shlex.split(command[0])
    assert "Validation, mean" in text


# -- significance --


def level(folder: Path, *names: str) -> None:
    """Give every user of these runs the same figure, so that nothing can be significant."""
    for name in names:
        change(folder / name, "ndcg@10", "(number % 3) / 3")


def bold(path: Path) -> list[str]:
    return re.findall(r'<th scope="row">([^<]*)</th>[^\n]*class="best"', path.read_text(encoding="utf-8"))


def test_no_winner_is_named_where_nothing_is_significant(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    level(tmp_path / "runs", "fedmf/seed0", "fedmf/seed1", "ease")
    path = write_report(
        with_references([tmp_path / "runs" / "fedmf", tmp_path / "runs" / "ease"]), tmp_path / "page.html"
    )
    text = Reader(path).text
    assert "None is significantly best on ndcg@10: ease is not significantly different from fedmf" in text
    assert not re.search("Highest|significantly better than", text)
    assert bold(path) == []
    assert "ease †" in text


def test_a_significant_winner_is_bold_where_it_was_tested_and_only_there(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    level(tmp_path / "runs", "fedmf/seed0", "fedmf/seed1")
    change(tmp_path / "runs" / "ease", "ndcg@10", "1.0")
    path = write_report(
        with_references([tmp_path / "runs" / "fedmf", tmp_path / "runs" / "ease"]), tmp_path / "page.html"
    )
    assert "ease is significantly better than all others on ndcg@10." in Reader(path).text
    assert bold(path) == ["ndcg@10"]
    assert '<td class="best">1.0000</td>' in path.read_text(encoding="utf-8")
    assert "†" not in path.read_text(encoding="utf-8")


def test_the_page_has_the_groups_and_tests_of_compare(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """With the same rows: once --references has trained local, compare takes it without being asked."""
    shutil.copytree(runs / "runs", tmp_path / "runs")
    folders = (tmp_path / "runs" / "fedmf", tmp_path / "runs" / "ease")
    assert cli("report", *folders, "--references", "--out", "page.html").code == 0
    reader = Reader(tmp_path / "page.html")
    table = cli("compare", *folders, "--significance", "--format", "markdown").out
    marked = {line.split(" ")[1] for line in table.splitlines() if line.startswith("|") and "† |" in line}
    test = reader.text[reader.text.index("Test, mean") : reader.text.index("Validation, mean")]
    assert {name for name in ("fedmf", "ease", "popularity", "local") if f"{name} †" in test} == marked
    told = json.loads(cli("compare", *folders, "--format", "json").out)["significance"]
    for pair in told["pairs"]:
        assert f"{pair['difference']:+.4f}" in reader.text
    assert f"paired bootstrap over {told['users']} users" in reader.text


def test_a_comparison_says_who_is_served_when_and_on_what(comparison_page: Path, runs: Path) -> None:
    text = Reader(comparison_page).text
    summary = read_run(runs / "runs" / "fedmf" / "seed0").summary
    assert "ndcg@10 on test by activity" in text
    assert "ndcg@10 on test by popularity" in text
    for group in ("cold", "middle", "warm", "head", "tail"):
        assert re.search(rf"{group} \(\d+ users\)", text), group
    assert summary["hardware"] in text
    assert summary["finished"] in text
    assert "fedmf/seed0, fedmf/seed1" in text


def test_groups_are_those_of_the_command_line(cli: Cli, comparison_page: Path, runs: Path) -> None:
    folder = str(runs / "runs" / "fedmf")
    printed = cli("compare", folder, "--groups", "activity", "--no-references", "--format", "csv").out
    figures = re.findall(r"\d\.\d{4} ± \d\.\d{4}", printed)
    text = Reader(comparison_page).text
    assert len(figures) == 3
    assert all(figure in text for figure in figures)


def test_a_single_run_is_tested_against_its_references(page: Path) -> None:
    assert re.search("On ndcg@10 it is (not )?significantly (different|better|worse)", Reader(page).text)


def test_without_users_nothing_is_tested_and_nobody_wins(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs", tmp_path / "runs")
    (tmp_path / "runs" / "ease" / "per_user.csv").unlink()
    path = write_report(
        with_references([tmp_path / "runs" / "fedmf", tmp_path / "runs" / "ease"]), tmp_path / "page.html"
    )
    text = Reader(path).text
    assert "Significance was not tested" in text
    assert "has no ndcg@10 in its per_user.csv" in text
    assert not re.search("None is significantly|significantly better|Highest", text)
    assert bold(path) == []


def test_a_leaking_protocol_is_called_out_in_words(runs: Path) -> None:
    text = Reader(write_report(with_references([runs / "leaky"]), runs / "leaky.html")).text
    assert "Not an honest measurement" in text
    assert "training negatives avoid the held-out items" in text


def test_users_are_shown_with_their_held_out_item_or_not_at_all(page: Path, runs: Path) -> None:
    assert "held out" in Reader(page).text
    without = Reader(write_report(with_references([runs / "runs" / "fedmf"]), runs / "discreet.html", users=False)).text
    assert "held out" not in without
    assert "User <b>" not in without


def test_data_that_has_gone_costs_only_what_needs_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "empty"))
    shutil.copytree(runs / "leaky", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(re.sub(r'data = ".*"', 'data = "gone.csv"', config.read_text()))
    text = Reader(write_own_report(read_run(tmp_path / "run"))).text
    assert "the data is no longer there" in text
    assert "Chance gives" in text
    assert "Popularity reaches" not in text


def test_missing_round_and_user_files_leave_a_shorter_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "leaky", tmp_path / "run")
    for name in ("metrics.jsonl", "per_user.csv"):
        (tmp_path / "run" / name).unlink()
    assert "All metrics" in Reader(write_own_report(read_run(tmp_path / "run"))).text


def test_local_is_never_trained_unless_asked(
    cli: Cli, runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path))
    trained = []
    real = references.execute

    def counting(config, *rest, **named):  # type: ignore[no-untyped-def]
        trained.append(config.method)
        return real(config, *rest, **named)

    monkeypatch.setattr(references, "execute", counting)
    for _ in range(2):
        write_own_report(read_run(runs / "leaky"))
    assert trained == ["popularity"]
    where = str(runs / "runs" / "fedmf")
    plain = cli("compare", where)
    assert "note: without local; add --references to train what is missing" in plain.err
    assert "local" not in plain.out
    assert "popularity" not in cli("compare", where, "--no-references").out
    assert "references=True" in repr(fedrec.compare([where]))
    assert trained == ["popularity"] * 2, "once per protocol"
    assert "local" in cli("compare", where, "--references").out
    assert trained == ["popularity"] * 2 + ["local"]
    again = cli("compare", where)
    assert "local" in again.out
    assert again.err == ""


def test_the_same_run_gives_the_same_page(page: Path, runs: Path) -> None:
    again = write_report(with_references([runs / "runs" / "fedmf"]), runs / "again.html")
    assert again.read_bytes() == page.read_bytes()


# -- the command line --

SMALL = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1", "--rounds", "2", "--set", "dim=4")


def test_every_run_leaves_a_report_and_the_command_makes_others(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "fedmf", *SMALL, "--out", "a", "-q").code == 0
    assert "fedmf on synthetic" in Reader(tmp_path / "a" / "report.html").text
    outcome = cli("report", "a", "--out", "b/page.html")
    assert outcome.code == 0
    assert outcome.err == "note: without local; add --references to train what is missing\n"
    assert outcome.out == "b/page.html written\n"
    assert "Run report" in Reader(tmp_path / "b" / "page.html").text
    assert cli("run", "popularity", *SMALL[:2], "--out", "c", "-q").code == 0
    before = (tmp_path / "a" / "report.html").read_bytes()
    assert cli("report", "a", "c").out == "a/comparison.html written\n"
    assert (tmp_path / "a" / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("folders", "written"),
    [
        (("fedmf/seed0",), "fedmf/seed0/report.html"),
        (("fedmf",), "fedmf/report.html"),
        (("fedmf/seed0", "ease"), "fedmf/seed0/comparison.html"),
        (("fedmf/seed0", "fedmf/seed1"), "fedmf/seed0/comparison.html"),
        (("fedmf", "other"), "fedmf/comparison.html"),
        (("fedmf", "other", "ease"), "fedmf/comparison.html"),
        (("ease", "fedmf", "other"), "ease/comparison.html"),
        ((".",), "report.html"),
    ],
)
def test_a_report_on_several_folders_keeps_that_of_the_first(
    cli: Cli, runs: Path, tmp_path: Path, folders: tuple[str, ...], written: str
) -> None:
    """Runs, folders of seeds and a folder of both, alone and together."""
    shutil.copytree(runs / "runs", tmp_path, dirs_exist_ok=True)
    shutil.copytree(runs / "runs" / "fedmf", tmp_path / "other")
    for seed in (0, 1):
        config = tmp_path / "other" / f"seed{seed}" / "config.toml"
        config.write_text(config.read_text(encoding="utf-8").replace("dim = 4", "dim = 5"), encoding="utf-8")
    kept = [tmp_path / name / "report.html" for name in ("fedmf", "fedmf/seed0", "ease")]
    for path in kept:
        path.write_text("mine", encoding="utf-8")
    outcome = cli("report", *folders)
    assert outcome.out == f"{written} written\n", outcome.err
    assert [path for path in kept if path.read_text(encoding="utf-8") != "mine"] == [
        path for path in kept if path == tmp_path / written
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("report", "nowhere"), "nowhere has no run"),
        (("report", "a", "a"), "given twice"),
        (("report", "a", "--out", "folder"), "--out|directory"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    cli("run", "popularity", *SMALL[:2], "--out", "a", "-q")
    (tmp_path / "folder").mkdir()
    outcome = cli(*words)
    assert outcome.code == 2
    assert re.fullmatch(rf"error: .*({says}).*\n", outcome.err)


def test_data_show_prints_facts_and_draws_on_request(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("data", "show", SMALL[1], "--out", "data.html")
    assert outcome.code == 0
    for word in ("sparsity", "Gini", "licence", "generated", "data.html written"):
        assert word in outcome.out
    text = (tmp_path / "data.html").read_text(encoding="utf-8")
    assert len(re.findall("<svg", text)) == 3
    assert "Lorenz curve" in text


def test_data_show_says_where_a_file_is_from(cli: Cli, runs: Path) -> None:
    outcome = cli("data", "show", runs / "table.csv")
    assert "your own file" in outcome.out
    assert "not known to fedrec" in outcome.out


def test_bars_stand_in_the_order_of_their_values() -> None:
    found = {"a": 0.1, "b": 0.3, "c": 0.2}
    shown = [
        SimpleNamespace(name=name, style="s1", row=SimpleNamespace(values=lambda _, value=value: [value]))
        for name, value in found.items()
    ]
    drawn = str(report_charts.key_figure(shown, {"ndcg@10": 0.15}, "ndcg@10"))  # type: ignore[arg-type]
    assert "b 0.3000, c 0.2000, chance 0.1500, a 0.1000" in drawn
