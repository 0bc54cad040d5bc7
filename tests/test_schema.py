"""One module says what values and documents may hold: what is refused, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from fedrec.schema import COUNT, METRICS, NUMBER, SIZES, TEXT, TEXTS, check, json_line, kind_of, kinds_of_fields

from fedrec.schema import damage_error, optional, read_json  # isort: skip

SHAPE = {"name": TEXT, "size": {"rows": COUNT}, "share": optional(NUMBER), "parts": [{"label": TEXT}], "test": METRICS}
GOOD: dict[str, Any] = {
    "name": "a",
    "size": {"rows": 3, "more": None},
    "share": None,
    "parts": [{"label": "x"}],
    "test": {"ndcg@10": 0.5},
    "unknown": [],
}


def test_a_document_of_the_shape_passes() -> None:
    check("it", GOOD, SHAPE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "it.name is not text"),
        ({"size": []}, "it.size is not a table"),
        ({"size": {}}, "it.size has no rows"),
        ({"size": {"rows": -1}}, "it.size.rows is not an integer"),
        ({"size": {"rows": True}}, "it.size.rows is not an integer"),
        ({"share": float("nan")}, "it.share is not a number or null"),
        ({"share": 10**400}, "it.share is not a number or null"),
        ({"parts": {}}, "it.parts is not a list"),
        ({"parts": [{"label": "x"}, {"label": 1}]}, "it.parts.1.label is not text"),
        ({"test": {"ndcg": 1.0}}, "it.test is not metrics with numbers"),
        ({"test": {"ndcg@10": "1"}}, "it.test is not metrics with numbers"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        check("it", GOOD | change, SHAPE)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "3", 3),
        (int, 3.0, 3),
        (float, "1e-3", 1e-3),
        (float, 2, 2.0),
        (bool, "True", True),
        (str, "3", "3"),
        (int | None, "none", None),
        (float | None, "0.5", 0.5),
        (Optional[int], 4, 4),  # noqa: UP045
        (Literal["a", "b"], "b", "b"),
    ],
)
def test_a_setting_is_read_as_its_type(hint: Any, text: Any, value: Any) -> None:
    found = kind_of(hint).parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "2.5"),
        (int, 2.5),
        (int, True),
        (int, str(1 << 70)),
        (int, "x"),
        (float, "nan"),
        (float, "inf"),
        (bool, "1"),
        (str, 3),
        (int | None, "nothing"),
        (Literal["a", "b"], "c"),
        (float, None),
        (float, [1]),
    ],
)
def test_what_is_not_of_the_type_is_refused(hint: Any, text: Any) -> None:
    with pytest.raises(ValueError, match=r"^not "):
        kind_of(hint).parse(text)


def test_fields_of_a_record() -> None:
    @dataclass
    class Record:
        size: int
        share: float | None = None

    kinds = kinds_of_fields(Record)
    assert [kinds["size"].valid(value) for value in (1, True, 1.0, "1")] == [True, False, False, False]
    assert [kinds["share"].valid(value) for value in (1, None, 0.5, "1")] == [True, True, True, False]
    assert kinds["share"].words == "float or none"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for text in ("", "[" * 100_000, '{"a": "x"}', "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r".") as wrong:
            read_json(path, "file", {"a": COUNT})
        assert str(damage_error(path, wrong.value)).endswith("; remove it and run again")
    path.write_text('{"a": 1}')
    assert read_json(path, "file", {"a": COUNT}) == {"a": 1}
    assert json_line('{"a": 1, "b": 2}', {"a": COUNT}) == {"a": 1, "b": 2}
    assert [json_line(line, {"a": COUNT}) for line in ('{"a": 1', "3", '{"a": "x"}')] == [None] * 3


def test_lists_and_sizes() -> None:
    assert TEXTS.valid(["a", ""])
    assert not TEXTS.valid(["a", 1])
    assert SIZES.valid({"a": 0})
    assert not SIZES.valid({"a": -1})
