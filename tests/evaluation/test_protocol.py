"""Protocols as text, as records, and what they confess."""

from __future__ import annotations

import pytest

from fedrec.errors import FedrecError
from fedrec.evaluation import PRESETS, protocol
from fedrec.evaluation.fields import KINDS, parse, text
from fedrec.evaluation.protocol import FIELDS

OTHER = {
    "min_interactions": "5",
    "min_interactions_at": "ml-1m:30+ml-100k:7",
    "min_rating": "3.5",
    "split": "ratio",
    "valid_share": "0.08",
    "test_share": "0.2",
    "train_fraction": "0.4",
    "time": "random",
    "time_missing": "line_order",
    "split_ties": "first",
    "partition": "100:taste",
    "negatives": "1",
    "neg_pool": "leaked",
    "neg_unique": "user",
    "candidates": "split198",
    "mask_val_at_test": "false",
    "mask_test_at_validation": "true",
    "history_at_test": "train",
    "ties": "item_id",
    "select_metric": "recall@20+recall@50",
    "select_on": "test",
    "select_last": "true",
    "patience": "10",
    "ks": "20+50+100",
    "metrics": "precision+recall",
}


def test_honest_is_the_default_and_leaks_nothing() -> None:
    assert protocol() == PRESETS["honest"]
    assert protocol().ks == (5, 10, 20)
    assert protocol().select_metric == "ndcg@10"
    assert all(PRESETS[name].leaks == () for name in ("honest", "honest-time"))
    assert protocol("honest-time").split == "global-time"


def test_the_minimum_depends_on_the_data_set_until_overridden() -> None:
    honest = protocol()
    assert [honest.min_interactions_for(name) for name in ("ml-1m", "ml-1m:official", "ml-100k")] == [20, 20, 10]
    assert protocol("honest,min_interactions=5").min_interactions_for("ml-1m") == 5


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_can_be_overridden_and_shows_in_the_label(key: str) -> None:
    spec = f"honest,{key}={OTHER[key]}"
    changed = protocol(spec)
    assert changed != protocol()
    assert changed.label == spec
    assert protocol(changed.label) == changed


@pytest.mark.parametrize("key", KINDS)
def test_text_is_the_inverse_of_parse(key: str) -> None:
    value = getattr(protocol(), key)
    assert parse(key, text(value)) == value


def test_label_is_sorted_and_names_only_differences() -> None:
    spec = protocol("honest, neg_pool=leaked, ks=5+10+20, candidates=sampled99")
    assert spec.label == "honest,candidates=sampled99,neg_pool=leaked"


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("neg_pool=leaked", "elimination"),
        ("select_on=test", "test value"),
        ("candidates=sampled99", "the same for validation and test"),
        ("candidates=split198", "99 sampled"),
        ("ties=first", "placed last"),
        ("time_missing=item_order", "first appearance"),
    ],
)
def test_leaks_are_confessed(override: str, word: str) -> None:
    sentence, *implied = protocol(f"honest,{override}").leaks
    assert word in sentence
    assert len(implied) == ("candidates" in override)  # sampled candidates lie outside the test items


def test_test_items_kept_from_validation_are_confessed() -> None:
    (sentence,) = protocol("honest,mask_test_at_validation=true").leaks
    assert "enters the choice of the round" in sentence


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        ("honest,candidates=sampled99", "mask_test_at_validation", True),
        ("honest,candidates=split198", "mask_test_at_validation", True),
        ("honest,split=cold-items", "history_at_test", "train"),
    ],
)
def test_what_follows_from_another_field_is_set_with_it(spec: str, field: str, value: object) -> None:
    found = protocol(spec)
    assert getattr(found, field) == value != getattr(protocol(), field)
    assert found.label == spec
    assert protocol(found.label) == found
    with pytest.raises(FedrecError, match=f"needs {field}={text(value)}"):
        protocol(f"{spec},{field}={text(getattr(protocol(), field))}")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("honset", "unknown protocol 'honset'; did you mean 'honest'?"),
        ("honest,negpool=leaked", "unknown protocol field 'negpool'; did you mean 'neg_pool'?"),
        ("honest,name=mine", "unknown protocol field 'name'"),
        ("honest,neg_pool", "write field=value"),
        ("honest,neg_pool=bad", "protocol field neg_pool cannot be 'bad'; legal: honest, leaked"),
        ("honest,ks=ten", "legal: an integer from 1; several joined by +"),
        ("honest,ks=none", "legal: an integer from 1; several joined by +"),
        ("honest,negatives=0", "legal: an integer from 1"),
        ("honest,select_last=yes", "legal: true, false"),
        ("honest,test_share=1.5", "legal: a number between 0 and 1"),
        ("honest,train_fraction=0", "legal: a number above 0, up to 1"),
        ("honest,patience=-1", "legal: an integer from 1, or none"),
        ("honest,select_metric=ndcg", "ndcg@10"),
        ("honest,partition=10:age", "K:taste"),
        ("honest,metrics=recall+ndgc", "unknown metric 'ndgc'; did you mean 'ndcg'?"),
        ("honest,metrics=foo", "unknown metric 'foo'; known: coverage, f1"),
        ("honest,metrics=foo", "registered by @fedrec.metric"),
        ("honest,metrics=Recall", "legal: names of metrics; several joined by +"),
        ("honest,select_metric=foo@10", "unknown metric 'foo'"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(spec: str, message: str) -> None:
    with pytest.raises(FedrecError) as caught:
        protocol(spec)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_time_falls_back_only_without_stamps() -> None:
    assert [protocol().time_rule(stamped) for stamped in (True, False)] == ["real", "random"]
    assert protocol("honest,time=line_order,time_missing=random").time_rule(False) == "line_order"
    assert protocol("honest-time").time_rule(True) == "real"
    with pytest.raises(FedrecError, match="'honest-time' needs timestamps"):
        protocol("honest-time").time_rule(False)


def test_selection_adds_metrics_up() -> None:
    asked = protocol("honest,select_metric=recall@20+recall@50")
    assert asked.selection_value({"recall@20": 0.25, "recall@50": 0.5}) == 0.75
    with pytest.raises(FedrecError, match="recall@50"):
        asked.selection_value({"recall@20": 0.25})
