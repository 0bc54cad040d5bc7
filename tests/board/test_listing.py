"""Filters, order and groups of the list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrec.board.folders import Entry
from fedrec.board.listing import Query, list_entries

BLANK = Entry("", "run", "finished", 0.0)
ENTRIES = [
    replace(BLANK, name=f"runs/{method}{seed}", label=method, method=method, data=data, protocol="honest", seed=seed)
    for method, data in (("ease", "ml-100k"), ("fedmf", "ml-100k"), ("fedmf", "filmtrust"))
    for seed in (0, 1)
]
ENTRIES = [replace(entry, changed=float(at), test={"ndcg@10": at / 10}) for at, entry in enumerate(ENTRIES)]
ENTRIES.append(replace(BLANK, name="holiday", state="foreign", changed=9.0))


def names(**words: str) -> list[str]:
    return [entry.name for _, entries in list_entries(ENTRIES, Query.read(words)).groups for entry in entries]


def test_the_newest_stands_first() -> None:
    assert names()[0] == "holiday"
    assert names(sort="changed", up="1")[-1] == "holiday"


def test_what_has_no_figure_stands_last_in_either_direction() -> None:
    for up in ("", "1"):
        assert names(sort="ndcg@10", up=up)[-1] == "holiday"
    assert names(sort="ndcg@10")[0] == "runs/fedmf1"


def test_every_word_must_match_somewhere() -> None:
    assert names(text="FEDMF film") == ["runs/fedmf1", "runs/fedmf0"]
    assert names(text="fedmf ease") == []


@pytest.mark.parametrize(
    ("words", "count"),
    [({"state": "foreign"}, 1), ({"method": "ease"}, 2), ({"data": "ml-100k"}, 4), ({"text": ""}, 7)],
)
def test_filters_keep_exact_values(words: dict[str, str], count: int) -> None:
    assert len(names(**words)) == count


def test_groups_have_their_rows_in_the_order_asked_for() -> None:
    found = list_entries(ENTRIES, Query.read({"group": "data", "sort": "ndcg@10"}))
    assert [head for head, _ in found.groups] == ["", "filmtrust", "ml-100k"]
    assert [entry.name for entry in found.groups[2][1]] == ["runs/fedmf1", "runs/fedmf0", "runs/ease1", "runs/ease0"]


def test_the_best_is_that_of_its_data_and_protocol() -> None:
    best = list_entries(ENTRIES, Query()).best
    assert best["ml-100k", "honest", "ndcg@10"] == "runs/fedmf1"


@pytest.mark.parametrize("words", [{"sort": "nonsense"}, {"most": "-3"}, {"most": "9" * 40}, {"group": "seed"}])
def test_words_that_make_no_sense_are_left_out(words: dict[str, str]) -> None:
    assert len(names(**words)) == len(ENTRIES)


def test_a_page_has_an_end() -> None:
    found = list_entries(ENTRIES, Query.read({"most": "2"}))
    assert (found.shown, found.matching, found.total) == (2, 7, 7)
