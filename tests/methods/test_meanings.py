"""Every parameter and every preset of every method says what it means."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from conftest import Cli
from fedrec.federation.contract import Method, MethodInfo
from fedrec.methods import built_in
from fedrec.methods.index import listing_of
from fedrec.methods.kinds import kinds_of
from fedrec.methods.meanings import SHARED, meanings_of

KINDS = [kind for method in built_in() for kind in kinds_of(method)]


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.__name__)
def test_nothing_is_left_unsaid(cls: type[Method]) -> None:
    assert [name for name, meaning in meanings_of(cls).items() if not meaning.endswith(".")] == []
    assert [name for name, preset in cls.info.presets.items() if not getattr(preset, "meaning", "").endswith(".")] == []


def test_the_shared_table_names_only_what_methods_have() -> None:
    assert set(SHARED) <= {name for cls in KINDS for name in meanings_of(cls)}


@dataclass(frozen=True)
class Own(Method):
    info: ClassVar[MethodInfo] = MethodInfo("own", presets={"plain": {"width": 2}})

    width: int = 1
    """How wide it is."""
    untold: int = 1
    dim: int = 4
    """Not what others call by this name."""


def test_a_method_of_ones_own_is_listed_with_what_it_says() -> None:
    (kind,) = listing_of(Own).kinds
    told = {parameter.name: (parameter.default, parameter.takes, parameter.meaning) for parameter in kind.parameters}
    assert told["width"] == ("1", "int >= 0", "How wide it is.")
    assert told["untold"][2] == ""
    assert told["dim"][2] == "Not what others call by this name."
    assert told["rounds"][2].startswith("Communication rounds")
    assert kind.presets[0].settings == {"width": 2}


@pytest.mark.parametrize(
    "words", [("methods", "fedcia"), ("run", "FedCIA", "--help"), ("run", "--rounds", 2, "fedcia", "-h")]
)
def test_the_command_line_shows_them(words: tuple[str, ...], cli: Cli) -> None:
    outcome = cli(*words)
    assert outcome.code == 0
    flat = " ".join(outcome.out.split())
    if words[0] == "run":
        assert "align_steps=100 Steps of that alignment in a round." in flat
        assert "released As its released code does it: the defaults." in flat
    else:
        assert "align_steps 100 int >= 0" in flat


def test_help_without_a_method_says_how_to_see_its_parameters(cli: Cli) -> None:
    outcome = cli("run", "--help")
    assert "fedrec run METHOD --help shows the parameters of a method." in outcome.out
    assert "\\[" not in outcome.out
    assert "See `fedrec methods`." in outcome.out


def test_descriptions_and_completion_are_shown_without_torch() -> None:
    """Of methods without variants in other packages: these are imported to be described."""
    code = (
        "import sys; from fedrec.cli import app; from fedrec.commands import completion\n"
        "for words in (['methods', 'fedmf'], ['run', 'fedmf', '--help'], ['methods'], ['protocols']):\n"
        "    app(words, standalone_mode=False)\n"
        "assert completion.methods('WA') == ['WAA'] and completion.datasets('ml-1') == ['ml-100k', 'ml-1m']\n"
        "assert completion.protocols('hone')[0] == 'honest'\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shell_completes_methods() -> None:
    shell = {"_FEDREC_COMPLETE": "complete_bash", "COMP_WORDS": "fedrec run fedc", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['fedrec']; from fedrec.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **shell})
    assert done.stdout.split() == ["fedca", "fedcia"]
