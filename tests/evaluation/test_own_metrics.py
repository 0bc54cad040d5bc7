"""Metrics of one's own: registered in Python or by a package, exact where ties allow, refused by name where wrong."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
import torch

import fedrec
from fedrec.errors import FedrecError, FedrecWarning
from fedrec.evaluation import Metric, Targets, chance, evaluate, own_metrics, parse_protocol, protocol, with_chance
from fedrec.testing import MetricTests

KS = (1, 3, 5)


def gain(ranks: Any, relevance: Any, held_out: Any) -> Any:
    """DCG over that of a perfect list, as fedrec's own ndcg computes it from positions."""
    discounts = 1 / np.log2(ranks + 1)
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])
    return (relevance * discounts).sum(1) / ideal[np.minimum(held_out, len(ranks))]


def first(ranks: Any, relevance: Any, held_out: Any) -> Any:
    return (relevance / ranks).max(1)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it, and packages are looked for again."""
    monkeypatch.setattr(own_metrics, "_REGISTERED", {})
    own_metrics._load_packaged.cache_clear()
    yield
    own_metrics._load_packaged.cache_clear()


@pytest.fixture
def own() -> None:
    fedrec.metric("my_ndcg")(gain)
    fedrec.metric("my_mrr")(first)


class TestGain(MetricTests):
    metric = Metric("my_ndcg", "", gain)

    def reference(self, ranks: list[int], relevance: list[int], held_out: int) -> float:
        ideal = sum(1 / np.log2(rank + 1) for rank in ranks[:held_out])
        return float(sum(hit / np.log2(rank + 1) for rank, hit in zip(ranks, relevance, strict=True)) / ideal)


def world(held_out: int, levels: int) -> tuple[torch.Tensor, Targets]:
    """Scores of few levels, so that many are equal; 40 users, 12 items."""
    rng = np.random.default_rng(3)
    users = np.repeat(np.arange(40), held_out)
    items = np.concatenate([rng.choice(12, held_out, replace=False) for _ in range(40)])
    scores = torch.from_numpy(rng.integers(0, levels, (40, 12)).astype(np.float32))
    return scores, Targets.build((users, items), [], 12)


@pytest.mark.usefixtures("own")
class TestValues:
    @pytest.mark.parametrize("levels", [1, 3, 1000])
    def test_ties_of_a_single_item_are_exact(self, levels: int) -> None:
        scores, targets = world(1, levels)
        found = evaluate(scores, targets, ks=KS, metrics=("ndcg", "mrr", "my_ndcg", "my_mrr")).per_user
        for k in KS:
            assert found[f"my_ndcg@{k}"] == pytest.approx(found[f"ndcg@{k}"], abs=1e-12)
            assert found[f"my_mrr@{k}"] == pytest.approx(found[f"mrr@{k}"], abs=1e-12)

    @pytest.mark.parametrize("ties", ["first", "item_id"])
    def test_settled_ties_are_exact(self, ties: str) -> None:
        scores, targets = world(4, 3)
        found = evaluate(scores, targets, ks=KS, ties=ties, metrics=("ndcg", "mrr", "my_ndcg", "my_mrr")).per_user
        for k in KS:
            assert found[f"my_ndcg@{k}"] == pytest.approx(found[f"ndcg@{k}"], abs=1e-12)
            assert found[f"my_mrr@{k}"] == pytest.approx(found[f"mrr@{k}"], abs=1e-12)

    def test_ties_of_several_items_are_averaged_over_drawn_orders(self) -> None:
        scores, targets = world(4, 3)
        found = evaluate(scores, targets, ks=KS, metrics=("ndcg", "mrr", "my_ndcg", "my_mrr"))
        means = found.mean()
        for k in KS:
            assert means[f"my_ndcg@{k}"] == pytest.approx(means[f"ndcg@{k}"], abs=0.02)
            assert means[f"my_mrr@{k}"] == pytest.approx(means[f"mrr@{k}"], abs=0.02)
        again = evaluate(scores, targets, ks=KS, metrics=("my_mrr",))
        assert np.array_equal(found.per_user["my_mrr@3"], again.per_user["my_mrr@3"])

    def test_chance_is_that_of_a_constant_scorer(self) -> None:
        scores, targets = world(1, 1)
        luck = chance(targets, KS, with_chance(("recall", "my_ndcg")))
        assert luck["my_ndcg@3"] == pytest.approx(luck["ndcg@3"], abs=1e-12)
        assert "my_mrr@3" not in luck
        assert luck["my_ndcg@3"] == pytest.approx(
            evaluate(scores, targets, ks=(3,), metrics=("my_ndcg",)).mean()["my_ndcg@3"]
        )


MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "no hit is divided by": (lambda r, x, h: x.sum(1) / x.sum(1), "NaN or infinity for"),
    "not summed": (lambda r, x, h: x, r"shape \[.*\] for .* users; give one number per user"),
    "one number for all": (lambda r, x, h: 0.5, "give one number per user"),
    "above its range": (lambda r, x, h: 3 * x.sum(1), "gave 3, outside 0 to 1; declare its largest value with most="),
    "below its range": (lambda r, x, h: -x.sum(1), "gave -1, outside 0 to 1"),
    "wrong arguments": (lambda r, x: x.sum(1), "failed: TypeError"),
    "changes its input": (lambda r, x, h: x.sort(1), "failed: ValueError"),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_refused_by_name_before_a_run(mistake: str) -> None:
    function, message = MISTAKES[mistake]
    fedrec.metric("mine")(function)
    with pytest.raises(FedrecError, match=f"metric 'mine' .*{message}") as caught:
        own_metrics.rehearse(("recall", "mine"), (3,))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "most", "message"),
    [
        ("recall", 1.0, "'recall' comes with fedrec"),
        ("hr", 1.0, "'hr' comes with fedrec"),
        ("My Metric", 1.0, "cannot be called 'My Metric'"),
        ("mine", 0.0, "most=0"),
        ("mine", float("nan"), "most=nan"),
    ],
)
def test_names_and_ranges_that_cannot_be(name: str, most: float, message: str) -> None:
    with pytest.raises(FedrecError, match=message):
        fedrec.metric(name, most=most)(first)


def test_defining_it_again_replaces_it() -> None:
    fedrec.metric("mine")(first)
    fedrec.metric("mine", most=2)(first)
    assert own_metrics.own_metrics()["mine"].most == 2


def test_the_protocol_of_a_run_is_read_without_its_metric() -> None:
    spec = "honest,metrics=recall+ndcg+forgotten"
    assert parse_protocol(spec).label == spec
    with pytest.raises(FedrecError, match="unknown metric 'forgotten'"):
        protocol(spec)
    fedrec.metric("forgotten")(first)
    assert protocol(spec) == parse_protocol(spec)


class TestPackages:
    def points(self, monkeypatch: pytest.MonkeyPatch, **loaded: Any) -> None:
        made = {name: EntryPoint(name, f"package:{name}", "fedrec.metrics") for name in loaded}
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(made.values()))
        monkeypatch.setattr(EntryPoint, "load", lambda self: loaded[self.name])

    def test_they_are_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.points(monkeypatch, mine=Metric("mine", "of a package", first))
        assert protocol("honest,metrics=recall+mine").metrics == ("recall", "mine")

    def test_what_is_none_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.points(monkeypatch, mine=first, recall=Metric("recall", "", first))
        with pytest.warns(FedrecWarning, match="cannot be used") as told:
            assert own_metrics.own_metrics() == {}
        assert "put @fedrec.metric" in str(told[0].message)
        assert "belongs to another metric; rename it" in str(told[1].message)
        with pytest.raises(FedrecError, match="the metric 'mine' cannot be used"):
            protocol("honest,metrics=recall+mine")


def test_code_decides_what_kept_figures_are_worth() -> None:
    fedrec.metric("mine")(first)
    before = own_metrics.fingerprint(("recall", "mine"))
    fedrec.metric("mine")(gain)
    assert before != own_metrics.fingerprint(("recall", "mine")) != own_metrics.fingerprint(("recall",)) == ""
