"""`fedrec protocols`: the list, one of them, and one that somebody made up."""

from __future__ import annotations

import pytest

from conftest import Cli
from fedrec.evaluation import PRESETS


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_list_names_all_and_says_which_leak(cli: Cli) -> None:
    found = cli("protocols")
    assert found.code == 0
    rows = [line.split() for line in found.out.splitlines() if line and not line.startswith(" ")]
    leaks = {row[0]: row[1] for row in rows if row[0] in PRESETS}
    assert leaks == {name: "yes" if preset.leaks else "no" for name, preset in PRESETS.items()}


@pytest.mark.parametrize("name", PRESETS)
def test_one_is_shown_with_all_it_leaks(cli: Cli, name: str) -> None:
    found = cli("protocols", name)
    assert found.code == 0
    assert all(f"not honest: {leak}" in words(found.out) for leak in PRESETS[name].leaks)
    assert ("no known leak" in found.out) is not bool(PRESETS[name].leaks)
    assert "select_metric" in found.out


def test_overrides_are_shown_too(cli: Cli) -> None:
    found = cli("protocols", "honest,neg_pool=leaked")
    assert found.out.startswith("honest,neg_pool=leaked\n")
    assert "by elimination" in words(found.out)


def test_a_mistake_is_one_line(cli: Cli) -> None:
    found = cli("protocols", "fedrgk")
    assert (found.code, found.err) == (2, "error: unknown protocol 'fedrgk'; did you mean 'fedrkg'?\n")
