"""Figures: what is drawn is what the run folders hold, and what cannot be drawn is said in one line."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import fedrec
from conftest import Cli
from fedrec.evaluation.groups import by_activity
from fedrec.experiment import checkpoint
from fedrec.experiment.finished_run import find_runs
from fedrec.report.charts import matrix
from fedrec.report.charts.matrix import DIVERGING, LARGEST_OF_SQUARES, Shades, heat_map, png
from fedrec.report.figures import FIGURES, skew
from fedrec.report.figures.figure import Drawing
from fedrec.report.figures.geometry import block_means, structure_correlations, unit_rows
from fedrec.report.figures.model import Model
from fedrec.report.figures.names import LONGEST, short_names
from fedrec.report.figures.write import as_svg, write_figure
from fedrec.report.groups import prepare_again
from fedrec.report.records import per_user

from ..pages.browser import BINARY, Browser
from ..pages.test_browser import CONTRAST, OVERFLOW
from ..pages.test_report import Reader

DATA = "synthetic@users=40+items=80+interactions=700+seed=1"
Node = ElementTree.Element


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """fedmf with two dimensions and two seeds each, methods with personal tables, and a protocol that leaks."""
    root = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDREC_DATA", raising=False)
        patch.setenv("FEDREC_CACHE", str(root / "cache"))
        for dim in (4, 8):
            for seed in (0, 1):
                fedrec.run("fedmf", DATA, out=root / "dims" / f"{dim}-{seed}", rounds=4, dim=dim, seed=seed)
        fedrec.run("local", DATA, out=root / "local", rounds=4, dim=4)
        fedrec.run("fedca", DATA, out=root / "fedca", rounds=3, dim=4, epochs=2)
        fedrec.run("cgfedrec", DATA, out=root / "cgfedrec", rounds=3, dim=4, clusters=5)
        for method in ("local", "fedavg"):
            fedrec.run(method, DATA, out=root / f"silos-{method}", rounds=2, dim=4, silos="3")
        fedrec.run("fedrkg", DATA, out=root / "fedrkg", rounds=4, dim=4, interval=2)
        fedrec.run("fedmf", DATA, protocol="honest,neg_pool=leaked", out=root / "leaky", rounds=2, dim=4)
        yield root


def draw(name: str, *folders: Path, **settings: str) -> Drawing:
    return FIGURES[name].build(settings).draw(find_runs(folders))


def parsed(drawing: Drawing, panel: int = 0) -> Node:
    return ElementTree.fromstring(drawing.panels[panel].svg)


def of_class(root: Node, name: str) -> list[Node]:
    return [node for node in root.iter() if name in (node.get("class") or "").split()]


def y_value(root: Node) -> Any:
    """From heights on paper back to values, by the ticks of the y axis."""
    lines = [float(node.get("y1", 0)) for node in of_class(root, "grid")]
    words = [node.text for node in root.iter("text") if node.get("text-anchor") == "end" and node.get("class") is None]
    slope, start = np.polyfit(lines, [float(word or 0) for word in words], 1)
    return lambda height: slope * height + start


def points(node: Node) -> np.ndarray:
    return np.array([[float(v) for v in pair.split(",")] for pair in (node.get("points") or "").split()])


# -- what is drawn --


def test_convergence_follows_the_log_and_marks_uploads(studies: Path) -> None:
    root = parsed(draw("convergence", studies / "dims" / "4-0", studies / "local", metric="recall@10"))
    records = [json.loads(line) for line in (studies / "dims" / "4-0" / "metrics.jsonl").read_text().splitlines()]
    fedmf, local = of_class(root, "line")
    heights = y_value(root)(points(fedmf)[:, 1])
    np.testing.assert_allclose(heights, [record["valid"]["recall@10"] for record in records], atol=2e-3)
    (rug,) = of_class(root, "rug")  # local uploads nothing
    strokes = [float(x) for x in re.findall(r"M([0-9.]+) ", rug.get("d") or "")]
    np.testing.assert_allclose(strokes, points(fedmf)[:, 0], atol=0.11)
    assert "s0" in (rug.get("class") or "").split()
    assert "s1" in (local.get("class") or "").split()


def test_a_step_at_guidance_rounds_is_seen(studies: Path, tmp_path: Path) -> None:
    shutil.copytree(studies / "local", tmp_path / "guided")
    values = [0.1] * 5 + [0.2] * 5 + [0.3] * 5
    lines = [{"round": n, "bytes_up": 100 * (n in (5, 10)), "valid": {"ndcg@10": v}} for n, v in enumerate(values)]
    (tmp_path / "guided" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawing = draw("convergence", tmp_path / "guided", rounds="log")
    root = parsed(drawing)
    (line,), (rug,) = of_class(root, "line"), of_class(root, "rug")
    drops = np.flatnonzero(np.abs(np.diff(points(line)[:, 1])) > 50)
    assert drops.tolist() == [4, 9]
    strokes = [float(x) for x in re.findall(r"M([0-9.]+) ", rug.get("d") or "")]
    np.testing.assert_allclose(strokes, points(line)[[5, 10], 0], atol=0.11)
    assert points(line)[:, 1].max() < min(float(y) for y in re.findall(r"M[0-9.]+ ([0-9.]+)v", rug.get("d") or "")) - 5
    gaps = np.diff(points(line)[:, 0])
    assert (np.diff(gaps) < 0).all()  # logarithmic
    assert drawing.tables[0].rows[0][2].startswith("2,")


def test_bars_are_means_over_seeds_by_protocol(studies: Path) -> None:
    drawing = draw("bars", studies / "dims", studies / "leaky", metric="recall@10")
    assert [panel.caption.split("; ")[1].split(", ", 1)[1] for panel in drawing.panels] == [
        "honest",
        "honest,neg_pool=leaked",
    ]
    root = parsed(drawing)
    tests = {
        dim: [
            json.loads((studies / "dims" / f"{dim}-{seed}" / "summary.json").read_text())["test"]["recall@10"]
            for seed in (0, 1)
        ]
        for dim in (4, 8)
    }
    order = sorted(tests, key=lambda dim: -np.mean(tests[dim]))
    assert [node.text for node in of_class(root, "value")] == [f"{np.mean(tests[dim]):.4f}" for dim in order]
    assert [node.text for node in of_class(root, "name")] == [f"fedmf dim={dim} rounds=4" for dim in order]
    wide = [float(node.get("width", 0)) for node in root.iter("rect")]
    assert wide[0] / wide[1] == pytest.approx(np.mean(tests[order[0]]) / np.mean(tests[order[1]]), rel=0.01)
    assert drawing.tables[0].rows[0][-1] == f"{np.mean(tests[4]):.4f} ± {np.std(tests[4], ddof=1):.4f}"


def test_sensitivity_finds_the_parameter_that_differs(studies: Path) -> None:
    drawing = draw("sensitivity", studies / "dims", metric="ndcg@10")
    assert drawing.title == "ndcg@10 on validation against dim"
    root = parsed(drawing)
    assert "dim" in [node.text for node in of_class(root, "axis")]
    titles = [node.findtext("title") or "" for node in of_class(root, "mark")]
    means = [
        np.mean(
            [
                json.loads((studies / "dims" / f"{dim}-{seed}" / "summary.json").read_text())["valid"]["ndcg@10"]
                for seed in (0, 1)
            ]
        )
        for dim in (4, 8)
    ]
    assert titles == [f"dim {dim}: {mean:.4g}" for dim, mean in zip((4, 8), means, strict=True)]
    (line,) = of_class(root, "line")
    np.testing.assert_allclose(y_value(root)(points(line)[:, 1]), means, atol=1e-3)
    chosen = draw("sensitivity", studies / "dims", studies / "local", parameter="dim")
    assert [row[0] for row in chosen.tables[0].rows] == ["fedmf", "fedmf", "local"]
    asked = draw("sensitivity", studies / "dims", metric="ndcg@10", on="test")
    assert asked.title == "ndcg@10 on test against dim"


def test_activity_shows_the_least_and_the_most_active(studies: Path) -> None:
    drawing = draw("activity", studies / "local", metric="recall@10")
    prepared = prepare_again(find_runs([studies / "local"])[0])
    counts = np.bincount(prepared.split.train.user, minlength=prepared.source.n_users)[prepared.test.users]
    group = by_activity(counts)
    table = per_user(find_runs([studies / "local"])[0])
    values = dict(zip(table["user"], np.array(table["recall@10"], float), strict=True))
    own = np.array([values[str(user)] for user in prepared.source.user_ids[prepared.test.users]])
    for panel, place in ((0, 0), (1, 2)):
        root = parsed(drawing, panel)
        assert [node.text for node in of_class(root, "value")] == [f"{own[group == place].mean():.4f}"]
    assert counts[group == 0].max() <= counts[group == 2].min()


def test_similarity_is_the_cosines_in_order_of_clusters(studies: Path) -> None:
    drawing = draw("similarity", studies / "cgfedrec", clients="0,1,2,3")
    tensors, _ = checkpoint.load(studies / "cgfedrec" / "checkpoint.safetensors")
    order = np.argsort(tensors["server.labels"].numpy(), kind="stable")
    cosines = [_cosines(tensors["client.all.item"][client].double().numpy()) for client in range(4)]
    away = ~np.eye(len(order), dtype=bool)
    limit = max(np.quantile(np.abs(cosine[away]), 0.99) for cosine in cosines)
    for panel, cosine in enumerate(cosines):
        expected = Shades(-limit, limit, DIVERGING)(cosine[order][:, order])
        assert np.abs(_pixels(parsed(drawing, panel)).astype(int) - expected).max() <= 1
    naive = np.corrcoef([cosine[away] for cosine in cosines])
    shown = np.array([[float(cell) for cell in row[1:]] for row in drawing.tables[0].rows])
    np.testing.assert_allclose(shown, naive, atol=6e-5)
    facts = dict(drawing.facts)
    assert facts["clusters"] == "labels broadcast by the server"
    assert float(facts["agreement of those shown"]) == pytest.approx(naive[np.triu_indices(4, 1)].mean(), abs=6e-5)


def test_heat_maps_are_the_rows_in_order_of_clusters(studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "LARGEST_OF_SQUARES", 1)  # pixels can be read back
    drawing = draw("heatmap", studies / "cgfedrec", clients="0,3", items="100000")
    tensors, _ = checkpoint.load(studies / "cgfedrec" / "checkpoint.safetensors")
    order = np.argsort(tensors["server.labels"].numpy(), kind="stable")
    rows = tensors["client.all.item"][[0, 3]].double().numpy()[:, order]
    shades = Shades(-np.quantile(np.abs(rows), 0.99), np.quantile(np.abs(rows), 0.99), DIVERGING)
    for panel, mine in enumerate(rows):
        assert np.abs(_pixels(parsed(drawing, panel)).astype(int) - shades(mine)).max() <= 1


def _cosines(table: np.ndarray) -> np.ndarray:
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def _pixels(root: Node) -> np.ndarray:
    (image,) = root.iter("image")
    data = base64.b64decode((image.get("href") or "").removeprefix("data:image/png;base64,"))
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    start = data.index(b"IDAT")
    size = int.from_bytes(data[start - 4 : start], "big")
    rows = np.frombuffer(zlib.decompress(data[start + 4 : start + 4 + size]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def test_large_maps_are_means_of_cells() -> None:
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 500, 6)))
    order = torch.from_numpy(np.random.default_rng(1).permutation(500))
    owner = np.arange(500) * 120 // 500
    naive = _cosines(table[0].numpy())[order][:, order]
    cells = np.array([[naive[owner == a][:, owner == b].mean() for b in range(120)] for a in range(120)])
    np.testing.assert_allclose(block_means(unit_rows(table)[0], order, 120), cells, atol=1e-12)
    away = ~np.eye(500, dtype=bool)
    expected = np.corrcoef([_cosines(own.numpy())[away] for own in table])
    np.testing.assert_allclose(structure_correlations(unit_rows(table)), expected, atol=1e-10)
    svg = heat_map(cells, Shades(-1, 1, DIVERGING), title="t", x_label="x", y_label="y")
    assert len(svg) < 90_000
    assert png(np.zeros((2, 3, 3))).startswith(b"\x89PNG")


def test_tsne_has_every_item_once_in_the_colour_of_its_cluster(studies: Path) -> None:
    drawing = draw("tsne", studies / "cgfedrec", clients="0,1", items="40", perplexity="5")
    assert len(drawing.panels) == 2
    counts = [[(node.get("d") or "").count("M") for node in of_class(parsed(drawing, k), "dots")] for k in (0, 1)]
    colours = [[node.get("stroke") for node in of_class(parsed(drawing, k), "dots")] for k in (0, 1)]
    assert sum(counts[0]) == 40
    assert counts[0] == counts[1]
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == len(colours[0]) > 1
    assert drawing == draw("tsne", studies / "cgfedrec", clients="0,1", items="40", perplexity="5")


def test_embeddings_lie_on_common_axes(studies: Path) -> None:
    drawing = draw("embeddings", studies / "local", studies / "dims" / "4-0", clients="0,1,2", items="20")
    local, common = (
        [[(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in group.iter("circle")] for group in groups]
        for groups in ([g for g in of_class(parsed(drawing, k), "ring") if g.tag == "g"] for k in (0, 1))
    )
    assert common[0] == common[1] == common[2]  # one table for all clients
    assert local[0] != local[1]
    models = [Model(run) for run in find_runs([studies / "local", studies / "dims" / "4-0"])]
    items = models[0].draw_clients(20, 1, 80)
    rows = np.concatenate([model.tables([0, 1, 2])[:, items].double().numpy().reshape(-1, 4) for model in models])
    rows = rows - rows.mean(0)
    axis = np.linalg.svd(rows, full_matrices=False)[2][0]
    drawn = [x for group in (*local, *common) for x, _ in group]
    assert abs(np.corrcoef(rows @ axis, drawn)[0, 1]) > 0.999
    assert drawing.tables[0].rows[1][-1] == "0"
    own = draw("embeddings", studies / "dims" / "4-0", studies / "dims" / "8-0", axes="own")
    assert [len(of_class(parsed(own, k), "axis")) for k in (0, 1)] == [2, 2]


def test_aggregation_shows_the_matrices_of_the_run(studies: Path) -> None:
    drawing = draw("aggregation", studies / "fedca")
    alike, _, weights = (np.array([[float(c) for c in row[1:]] for row in table.rows]) for table in drawing.tables)
    clients = [int(row[0]) for row in drawing.tables[0].rows]
    tensors, _ = checkpoint.load(studies / "fedca" / "checkpoint.safetensors")
    tables = tensors["client.all.item"].double().numpy()[clients]
    naive = 1 / (1 + ((tables[:, None] - tables[None]) ** 2).sum((2, 3)))
    np.testing.assert_allclose(alike, naive, atol=6e-5)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-3)
    assert len(clients) == 10
    squares = [node for node in parsed(drawing).iter("rect") if node.find("title") is not None]
    said = [float((node.findtext("title") or "").split(": ")[1]) for node in squares]
    np.testing.assert_allclose(said, naive.ravel(), rtol=1e-3)
    assert len(said) <= LARGEST_OF_SQUARES


def test_skew_starts_at_the_run_and_averages_as_told(studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = find_runs([studies / "local"])
    model = Model(run)
    values = skew.probe(model, [0, 5, 10], False)
    test = run.summary["test"]
    assert values[0, 1].tolist() == pytest.approx([test["recall@10"], test["ndcg@10"]], abs=1e-9)
    np.testing.assert_allclose(values[2], _naive_skew(model, 10), atol=1e-9)
    monkeypatch.setattr(skew, "BUDGET", 1)  # a client at a time
    np.testing.assert_allclose(skew.probe(model, [0, 5, 10], False), values, atol=1e-12)
    drawing = draw("skew", studies / "local", nearest="10", step="5")
    assert [float(cell) for cell in drawing.tables[0].rows[2][1:]] == pytest.approx(values[2].T.ravel(), abs=6e-5)
    train, held_out = of_class(parsed(drawing), "line")
    np.testing.assert_allclose(y_value(parsed(drawing))(points(train)[:, 1]), values[:, 0, 0], atol=4e-3)
    assert held_out is not None
    for words in ("averaged once, after training", "among all", "FedCA's figure averages in every round", "99 drawn"):
        assert words in drawing.lead, "in what it differs from the published figure"


def _naive_skew(model: Model, size: int) -> np.ndarray:
    """One client and one item at a time."""
    state, prepared = model.simulator.cohorts[0].state, model.run.prepared
    tables, users = state.per_client["item"].double().numpy(), state.per_user["user"].double().numpy()
    order = skew.neighbours(model, size)
    distances = ((tables[:, None] - tables[None]) ** 2).sum((2, 3))
    found: list[list[list[float]]] = [[], []]
    for client in range(len(tables)):
        nearest = set(np.argsort(distances[client] + np.where(np.arange(len(tables)) == client, np.inf, 0))[:size])
        assert set(order[client].tolist()) == nearest
        table = tables[[client, *order[client]]].mean(0).astype(np.float32)
        scores = (users[client].astype(np.float32) @ table.T).astype(float)
        split = [
            part.item[part.user == client] for part in (prepared.split.train, prepared.split.valid, prepared.split.test)
        ]
        pool = np.setdiff1d(np.arange(80), np.concatenate(split))
        for part, items in enumerate((split[0], split[2])):
            rank = [1 + (scores[pool] > scores[item]).sum() for item in items]
            hits = [[float(r <= 10), (r <= 10) / np.log2(r + 1)] for r in rank]
            found[part].append(np.mean(hits, axis=0).tolist())
    return np.array([np.mean(part, axis=0) for part in found])


def test_names_keep_what_tells_rows_apart() -> None:
    assert short_names(["fedca alpha=0.1 rounds=5", "fedca alpha=0.5 rounds=5", "local rounds=5"]) == [
        "fedca alpha=0.1",
        "fedca alpha=0.5",
        "local",
    ]
    both = [
        f"ifedrec {backbone} participation={share} rounds={rounds}"
        for backbone in ("ncf", "linear")
        for share, rounds in ((0.1, 1000), (0.5, 200))
    ]
    assert short_names(both) == [
        "ncf participation=0.1",
        "ncf participation=0.5",
        "linear participation=0.1",
        "linear participation=0.5",
    ]
    long = short_names([f"fedca {'x' * 30}={k}" for k in (1, 2)])
    assert long == ["fedca #1", "fedca #2"]
    assert all(len(name) <= LONGEST for name in long)


# -- pages and pictures --

SHOWN = {
    "convergence": ("local", "dims"),
    "bars": ("dims", "leaky"),
    "sensitivity": ("dims",),
    "activity": ("local", "fedca"),
    "joining": ("silos-local", "silos-fedavg"),
    "similarity": ("cgfedrec",),
    "heatmap": ("cgfedrec",),
    "tsne": ("local",),
    "embeddings": ("local", "dims/4-0"),
    "aggregation": ("fedca",),
    "skew": ("local",),
    "gates": ("fedrkg",),
}


@pytest.fixture(scope="session")
def pages(studies: Path) -> dict[str, Path]:
    assert set(SHOWN) == set(FIGURES)
    return {
        name: write_figure(
            FIGURES[name],
            {"items": "30"} if name == "tsne" else {},
            find_runs([studies / folder for folder in folders]),
            studies / f"{name}.html",
        )
        for name, folders in SHOWN.items()
    }


@pytest.mark.parametrize("name", SHOWN)
def test_pages_are_self_contained_and_small(pages: dict[str, Path], name: str) -> None:
    assert pages[name].stat().st_size < 300_000
    reader = Reader(pages[name])
    for tag, attributes in reader.tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "base", "form")
        for key in ("src", "href", "srcset", "xlink:href"):
            assert (attributes.get(key) or "data:").startswith("data:")
    assert FIGURES[name].name in reader.text
    assert ("Not an honest measurement" in reader.text) == ("leaky" in SHOWN[name])
    for svg in re.findall(r"<svg.*?</svg>", pages[name].read_text(encoding="utf-8"), flags=re.DOTALL):
        root = ElementTree.fromstring(svg)
        assert root.findtext("title")
        if name not in ("bars", "activity", "joining"):
            assert len(of_class(root, "axis")) == 2


def test_a_picture_stands_alone(studies: Path) -> None:
    path = write_figure(FIGURES["bars"], {}, find_runs([studies / "dims", studies / "leaky"]), studies / "bars.svg")
    text = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert text.count("<svg") == 1
    assert "var(" not in text
    assert "Not an honest measurement" in text
    drawing = draw("similarity", studies / "cgfedrec")
    assert as_svg(drawing, []).count("<image") == 4


@pytest.mark.skipif(BINARY is None, reason="no chromium or google-chrome on PATH: the page is not opened")
@pytest.mark.slow
def test_pages_open_alone_and_fit(pages: dict[str, Path]) -> None:
    with Browser() as browser:
        for name, path in pages.items():
            for width, dark in ((320, False), (1200, True)):
                browser.open(path, width, dark)
                assert browser.evaluate(OVERFLOW) == 0, name
                assert browser.evaluate(CONTRAST) >= 4.5, name
                assert browser.complaints() == []
                sent = [request for request in browser.requests() if not request.startswith("data:")]
                assert sent == [path.resolve().as_uri()]


# -- the command line --


def test_the_command_lists_and_writes(cli: Cli, studies: Path) -> None:
    listed = cli("report", "--figure", "list")
    assert (listed.code, listed.err) == (0, "")
    assert [line.split()[0] for line in listed.out.splitlines()] == list(FIGURES)
    outcome = cli("report", studies / "dims", "--figure", "bars", "--set", "metric=recall@5", "--out", "f.svg")
    assert (outcome.code, outcome.out, outcome.err) == (0, "f.svg written\n", "")
    assert "recall@5" in Path("f.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("dims/4-0", "--figure", "similarity"), "needs personal item tables"),
        (("dims/4-0", "--figure", "skew"), "needs personal item tables"),
        (("dims/4-0", "--figure", "similarty"), "did you mean 'similarity'"),
        (("dims/4-0", "--figure", "sensitivity"), "no parameter differs"),
        (("dims", "local", "--figure", "sensitivity", "--set", "parameter=lr"), "lr is the same in all runs"),
        (("dims", "leaky", "--figure", "sensitivity"), r"several parameters differ \(protocol, rounds, dim\)"),
        (("dims", "leaky", "--figure", "convergence"), "different protocols"),
        (("dims/4-0", "--figure", "convergence", "--set", "metric=hits"), "no hits by round"),
        (("dims/4-0", "--figure", "bars", "--set", "metric=ndgc@10"), "did you mean 'ndcg@10'"),
        (("dims/4-0", "--figure", "bars", "--set", "colour=red"), "unknown parameter of bars 'colour'"),
        (("dims/4-0", "--figure", "bars", "--out", "f.gif"), ".html, .svg, .pdf or .png"),
        (("local", "fedca", "--figure", "similarity"), "shows one run"),
        (("local", "--figure", "similarity", "--set", "clients=0,x"), "integers separated by commas"),
        (("local", "--figure", "similarity", "--set", "clients=0,999"), "no client 999"),
        (("local", "--figure", "aggregation"), "give one of fedca"),
        (("dims/4-0", "dims/8-0", "--figure", "embeddings"), "different widths .* set axes=own"),
        (("local", "--set", "metric=x"), "--figure NAME"),
        ((), "give the folder of a run"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, studies: Path, words: tuple[str, ...], says: str) -> None:
    folders = {"dims", "dims/4-0", "dims/8-0", "local", "fedca", "leaky"}
    outcome = cli("report", *(studies / word if word in folders else word for word in words))
    assert outcome.code == 2
    assert re.fullmatch(rf"error: .*({says}).*\n", outcome.err), outcome.err


def test_tsne_says_what_to_install(cli: Cli, studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    outcome = cli("report", studies / "local", "--figure", "tsne")
    assert (outcome.code, outcome.err) == (2, 'error: tsne needs scikit-learn: pip install "fedrec[figures]"\n')


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_a_sheet_is_as_wide_as_a_paper_wants(studies: Path, ending: str) -> None:
    """84 mm: 238.1 points, 992 dots at 300 per inch."""
    found = find_runs([studies / "dims"])
    path = write_figure(FIGURES["bars"], {}, found, studies / f"wide.{ending}", 84)
    if ending == "svg":
        assert 'width="84mm"' in path.read_text(encoding="utf-8")
    elif ending == "pdf":
        box = re.search(rb"/MediaBox \[ 0 0 ([0-9.]+)", path.read_bytes())
        assert box is not None
        assert float(box[1]) == pytest.approx(84 / 25.4 * 72, abs=0.1)
    else:
        image = pytest.importorskip("PIL.Image").open(path)
        assert image.width == pytest.approx(84 / 25.4 * 300, abs=2)
        assert len(image.convert("RGB").getcolors(1 << 24)) > 3, "something is drawn"


def test_a_sheet_has_no_title_and_keeps_its_warning(studies: Path) -> None:
    runs = find_runs([studies / "leaky"])
    drawing = FIGURES["bars"].build({}).draw(runs)
    text = write_figure(FIGURES["bars"], {}, runs, studies / "plain.svg").read_text(encoding="utf-8")
    assert f">{drawing.title}</text>" not in text
    assert "Not an honest measurement" in text
    with pytest.raises(fedrec.FedrecError, match="millimetres"):
        write_figure(FIGURES["bars"], {}, runs, studies / "page.html", 84)
