from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest

from fedrec import methods as registry
from fedrec.errors import FedrecError
from fedrec.methods import BUILT_IN, index, listings, method_class, methods
from fedrec.methods.kinds import kinds_of


def test_every_name_and_alias_finds_its_method():
    for method in BUILT_IN:
        assert method_class(method.info.name) == (method, {})
        for alias, implied in method.info.aliases.items():
            assert method_class(alias.upper()) == (method, implied)
            method(**implied)


@pytest.mark.parametrize("method", BUILT_IN)
def test_a_paper_is_named_by_its_authors_and_year(method):
    paper = method.info.paper
    assert not paper or re.match(r"[A-Z]\w+( & [A-Z]\w+| et al\.)?, .*\b(19|20)\d\d\b", paper), paper


def test_names_and_aliases_are_unique():
    spoken = [name.lower() for m in BUILT_IN for name in (m.info.name, *m.info.aliases)]
    assert len(spoken) == len(set(spoken))
    assert set(methods()) >= {m.info.name for m in BUILT_IN}


def test_unknown_method_offers_the_nearest():
    with pytest.raises(FedrecError, match="did you mean 'fedavg'"):
        method_class("fedavgg")


@pytest.mark.parametrize("method", BUILT_IN)
def test_methods_are_frozen_records_with_defaults(method):
    made = method()
    assert made == method()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.rounds = 3
    assert made.info.summary


def test_the_index_says_what_methods_declare():
    assert index.FILE.read_text(encoding="utf-8") == index.text(), "out of date: run `make index`"


def test_a_method_that_the_index_lacks_is_listed_all_the_same(monkeypatch, tmp_path):
    expected = [dataclasses.asdict(listing) for listing in listings()]
    kept = json.loads(index.FILE.read_text(encoding="utf-8"))[3:]
    monkeypatch.setattr(index, "FILE", tmp_path / "index.json")
    for text in (None, json.dumps(kept)):
        if text is not None:
            index.FILE.write_text(text, encoding="utf-8")
        registry._register.cache_clear()
        assert [dataclasses.asdict(listing) for listing in listings()] == expected
    registry._register.cache_clear()


def test_listings_have_the_names_of_all_kinds():
    by_name = {listing.name: listing for listing in listings()}
    for method in BUILT_IN:
        names = {name for kind in kinds_of(method) for name in (kind.info.name, *kind.info.aliases)}
        assert set(by_name[method.info.name].names) == names
    assert "fedlightgcn" in by_name["fedavg"].aliases


def test_one_method_is_imported_alone():
    code = (
        "import sys; from fedrec.methods import method_class, methods; method_class('WAA'); methods()['fedmf'];"
        "print(*sorted(name for name in sys.modules if name.startswith('fedrec.methods.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fedrec.methods.average.fedmf" in done.stdout.split()
    assert not {"fedrec.methods.silo.fedcia", "fedrec.methods.cold.gar"} & set(done.stdout.split())


def test_every_class_is_a_name_of_the_package():
    assert {method.__name__ for method in BUILT_IN} <= set(dir(registry))
    assert all(getattr(registry, method.__name__) is method for method in BUILT_IN)
    with pytest.raises(AttributeError, match="has no attribute 'FedNothing'"):
        _ = registry.FedNothing
