"""Comparisons: what may share a table, what is marked, and the groups, recounted from the run folders."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.evaluation.significance import Difference
from fedrec.experiment.config import make_config
from fedrec.experiment.finished_run import find_runs
from fedrec.experiment.params import method_of
from fedrec.experiment.prepare import prepare
from fedrec.report.comparison import Comparison, Row, compare
from fedrec.report.groups import group_comparison, prepare_again
from fedrec.report.significance import Pair, Significance, metric_to_test, significance
from fedrec.report.tables import MARK, as_latex, caption, cells, pair_cells, render, winners

METRICS = ["recall@10", "ndcg@10"]


def column(folder: Path, name: str) -> dict[str, float]:
    with (folder / "per_user.csv").open(newline="", encoding="utf-8") as file:
        return {line["user"]: float(line[name]) for line in csv.DictReader(file)}


def change(folder: Path, name: str, how: str) -> None:
    """Rewrite a column of per_user.csv by an expression of the row number, and the mean with it."""
    path = folder / "per_user.csv"
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for number, line in enumerate(lines):
        line[name] = str(eval(how, {"value": float(line[name]), "number": number}))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0].keys())
        writer.writeheader()
        writer.writerows(lines)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["test"][name] = float(np.mean([float(line[name]) for line in lines]))
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


@pytest.fixture
def copies(runs: Path, tmp_path: Path) -> Path:
    """fedmf with two seeds and ease, free to be changed."""
    shutil.copytree(runs / "runs", tmp_path / "runs")
    return tmp_path / "runs"


def comparison(folder: Path) -> Comparison:
    return compare(find_runs([folder / "fedmf", folder / "ease"]))


def test_what_diverged_is_counted_beside_the_seeds(copies: Path) -> None:
    plain = comparison(copies)
    assert [line[1] for line in cells(plain, METRICS)] == ["seeds", "2", "1", "-"]
    path = next(path for path in sorted((copies / "fedmf").rglob("summary.json")))
    summary = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(summary | {"diverged": "the loss is no longer finite in round 9"}), encoding="utf-8")
    found = comparison(copies)
    assert [line[1] for line in cells(found, METRICS)] == ["seeds", "2 (1 diverged)", "1", "-"]
    assert [row["diverged"] for row in json.loads(render(found, METRICS, "json"))["rows"]] == [1, 0]


def test_a_default_that_is_written_out_is_no_other_configuration(copies: Path) -> None:
    """Neither a parameter nor the number of rounds; what differs from the default is named."""
    first, second = find_runs([copies / "fedmf"])
    method = method_of(make_config(first.config))
    given = {**first.config, "params": {**first.config["params"], "init_std": method.init_std}}
    plain = replace(first, config={**first.config, "rounds": None})
    written = replace(first, config={**plain.config, "rounds": type(method).rounds})
    assert replace(first, config=given).label == first.label == second.label
    assert plain.label == written.label != replace(first, config={**first.config, "rounds": 7}).label
    other = replace(first, config={**given, "params": {**given["params"], "init_std": 9.0}})
    assert other.label.count("init_std=9.0") == 1
    assert first.label.count("init_std") == 0


def test_seeds_of_a_run_are_found_below_a_folder_of_runs(runs: Path) -> None:
    found = compare(find_runs([runs / "runs"]))
    assert [(row.method, row.seeds) for row in found.rows] == [("ease", 1), ("fedmf", 2)]


def test_a_backbone_among_the_parameters_has_its_own_defaults(copies: Path) -> None:
    """The network of PFedRec has another rate than its linear scorer: to name that one is no default."""
    first = find_runs([copies / "fedmf"])[0]
    configs = [
        {**first.config, "method": "pfedrec", "backbone": None, "params": {"backbone": "ncf", **more}}
        for more in ({}, {"lr": method_of(make_config({"method": "pfedrec"})).lr})
    ]
    labels = [replace(first, config=config).label for config in configs]
    assert labels[0] != labels[1]


def test_protocols_are_not_mixed(runs: Path, cli: Cli) -> None:
    with pytest.raises(FedrecError, match="different protocols"):
        compare(find_runs([runs / "runs" / "fedmf", runs / "leaky"]))
    found = cli("compare", runs / "runs" / "fedmf", runs / "leaky")
    assert found.code == 2
    assert "cannot share a table" in found.err


def test_a_row_that_is_not_significantly_different_is_marked(copies: Path) -> None:
    shutil.copytree(copies / "fedmf" / "seed0", copies / "twin")
    for folder in ("twin", "fedmf/seed0", "fedmf/seed1"):
        change(copies / folder, "ndcg@10", "(number % 3) / 3")
    change(copies / "ease", "ndcg@10", "0.0")
    text = (copies / "twin" / "config.toml").read_text(encoding="utf-8").replace("dim = 4", "dim = 5")
    (copies / "twin" / "config.toml").write_text(text, encoding="utf-8")
    found = compare(find_runs([copies / "fedmf", copies / "twin", copies / "ease"]))
    tests = significance(found)
    assert tests is not None
    assert tests.metric == "ndcg@10"
    assert [row[0].endswith(MARK) for row in cells(found, METRICS, tests)[1:]] == [False, True, False, False]
    assert MARK in caption(found, tests)
    assert "not significantly different from the best" in caption(found, tests)
    twin, ease = tests.pairs
    assert (twin.difference.mean, twin.difference.p, twin.significant) == (0, 1, False)
    assert ease.significant
    assert ease.p_holm == pytest.approx(2 * ease.difference.p)


def test_a_clear_winner_leaves_no_marks(copies: Path) -> None:
    change(copies / "ease", "ndcg@10", "1.0")
    found = comparison(copies)
    tests = significance(found)
    assert tests is not None
    assert MARK not in render(found, METRICS, "markdown", tests)
    assert "Every other row is significantly different from the best, ease" in caption(found, tests)


def test_a_user_is_averaged_over_seeds_first(copies: Path) -> None:
    found = comparison(copies)
    tests = significance(found)
    assert tests is not None
    seeds = [column(copies / "fedmf" / f"seed{seed}", "ndcg@10") for seed in (0, 1)]
    ease = column(copies / "ease", "ndcg@10")
    expected = np.mean([(seeds[0][user] + seeds[1][user]) / 2 - ease[user] for user in ease])
    (pair,) = tests.pairs
    sign = 1 if pair.row.startswith("fedmf") else -1
    assert pair.difference.mean == pytest.approx(sign * expected)
    assert pair.p_seeds is None  # ease has one seed


def test_seeds_are_tested_where_both_have_them(copies: Path) -> None:
    shutil.copytree(copies / "fedmf", copies / "other")
    for seed in (0, 1):
        config = copies / "other" / f"seed{seed}" / "config.toml"
        config.write_text(config.read_text(encoding="utf-8").replace("dim = 4", "dim = 5"), encoding="utf-8")
        change(copies / "other" / f"seed{seed}", "ndcg@10", f"value + 0.1 + 0.01 * {seed}")
    tests = significance(compare(find_runs([copies / "fedmf", copies / "other"])))
    assert tests is not None
    assert tests.pairs[0].p_seeds == pytest.approx(0.030289, abs=1e-4)  # t = 21 with one degree of freedom


def test_other_users_or_no_users_are_refused(copies: Path, cli: Cli) -> None:
    path = copies / "ease" / "per_user.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    found = cli("compare", copies / "fedmf", copies / "ease", "--no-references")
    assert found.code == 2
    assert "other users" in found.err
    assert "--no-significance" in found.err
    assert cli("compare", copies / "fedmf", copies / "ease", "--no-references", "--no-significance").code == 0
    path.unlink()
    assert "no ndcg@10 in its per_user.csv" in cli("compare", copies / "fedmf", copies / "ease", "--no-references").err


def test_one_row_has_nothing_to_be_tested_against(runs: Path, cli: Cli) -> None:
    assert significance(compare(find_runs([runs / "runs" / "ease"]))) is None
    found = cli("compare", runs / "runs" / "ease", "--no-references", "--significance")
    assert (found.code, found.out) == (2, "")
    assert "nothing to test" in found.err


def test_formats(runs: Path) -> None:
    found = comparison(runs / "runs")
    tests = significance(found)
    assert tests is not None
    told = json.loads(render(found, METRICS, "json", tests))
    assert told["significance"]["metric"] == metric_to_test(found) == "ndcg@10"
    assert set(told["significance"]["pairs"][0]) >= {"difference", "low", "high", "p", "p_holm", "p_t_seeds"}
    assert "significance" not in json.loads(render(found, METRICS, "json"))
    assert render(found, METRICS, "markdown", tests, details=True).count("|---|") >= 2
    assert r"\begin{tabular}" in render(found, METRICS, "tex", tests)
    assert render(found, METRICS, "csv", tests) == render(found, METRICS, "csv")
    assert len(pair_cells(tests)) == 2
    with pytest.raises(FedrecError, match="unknown format"):
        render(found, METRICS, "html")


@pytest.mark.parametrize("kind", ["activity", "taste", "popularity"])
def test_groups_are_a_partition_of_the_same_users(runs: Path, kind: str) -> None:
    found = comparison(runs / "runs")
    parts = group_comparison(found, kind, "ndcg@10")
    assert sum(parts.users) == 40
    for (label, _, values), row in zip(parts.rows, found.rows, strict=True):
        assert label == row.label
        whole = sum(mean * size for (mean, _), size in zip(values, parts.users, strict=True)) / 40
        assert whole == pytest.approx(row.mean("ndcg@10"))


def test_groups_by_popularity_recounted(runs: Path) -> None:
    found = compare(find_runs([runs / "runs" / "ease"]))
    parts = group_comparison(found, "popularity", "recall@10")
    prepared = prepare_again(found.rows[0].runs[0])
    counts = np.bincount(prepared.split.train.item, minlength=prepared.n_items)
    order = sorted(range(len(counts)), key=lambda item: (-counts[item], item))
    head = {item for place, item in enumerate(order) if 3 * counts[order[:place]].sum() < counts.sum()}
    hits = column(runs / "runs" / "ease", "recall@10")
    test = prepared.split.test
    values = [hits[str(test.user_ids[u])] for u, i in zip(test.user, test.item, strict=True) if i in head]
    assert parts.names[0] == "head"
    assert parts.users[0] == len(values)
    assert parts.rows[0][2][0][0] == pytest.approx(np.mean(values))


def test_groups_on_the_command_line(runs: Path, cli: Cli) -> None:
    where = (runs / "runs" / "fedmf", runs / "runs" / "ease", "--no-references")
    found = cli("compare", *where, "--groups", "activity", "--metrics", "recall@10")
    assert found.code == 0
    assert "recall@10 by activity" in found.out
    assert "cold (12)" in found.out
    told = json.loads(cli("compare", *where, "--groups", "taste", "--format", "json").out)
    assert told["groups"]["names"] == ["distinct", "followers"]
    assert told["groups"]["metric"] == "ndcg@10"
    assert "unknown grouping 'age'" in cli("compare", *where, "--groups", "age").err


def test_groups_need_the_data_as_it_was(copies: Path) -> None:
    path = copies / "ease" / "summary.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"users": 40', '"users": 41'), encoding="utf-8")
    with pytest.raises(FedrecError, match="has changed since the run"):
        group_comparison(compare(find_runs([copies / "ease"])), "activity", "ndcg@10")


def test_popularity_needs_single_items(runs: Path) -> None:
    from fedrec.report.groups import MAKERS

    found = compare(find_runs([runs / "runs" / "ease"]))
    source = prepare_again(found.rows[0].runs[0]).source
    with pytest.raises(FedrecError, match="one held-out item per user"):
        MAKERS["popularity"](prepare(source, protocol("honest,split=ratio")))


def test_latex_has_booktabs_notes_and_bold_for_a_winner_alone() -> None:
    text = as_latex(
        "Test & more: 5%", [["method", "ndcg@10"], ["a_b", "0.2 ± 0.1"], ["c †", "0.1"]], frozenset({(0, 1)})
    )
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert r"a\_b & \textbf{0.2 $\pm$ 0.1} \\" in text
    assert r"c $^\dagger$ & 0.1 \\" in text
    assert text.rindex(r"Test \& more: 5\%") > text.index(r"\end{tabular}")


def test_no_figure_is_bold_that_does_not_win() -> None:
    pair = Pair("b", "a", Difference(-0.1, -0.2, -0.05, 0.001), 0.001, None, 0.5)
    rows = (Row("a", ()), Row("b", ()))
    table = Comparison("d", "honest", (), rows, {})
    won, tied = (Significance("ndcg@10", "a", 9, (replace(pair, p_holm=p),)) for p in (0.001, 0.6))
    assert winners(table, ["recall@10", "ndcg@10"], won) == {(0, 3)}
    assert winners(table, ["recall@10", "ndcg@10"], tied) == frozenset()
    assert winners(table, ["recall@10"], won) == frozenset()
