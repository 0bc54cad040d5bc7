"""What the tests of this room must not leave to others."""

from __future__ import annotations

import urllib.request

import pytest


@pytest.fixture(autouse=True)
def no_lasting_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """urlopen keeps for the whole process the proxies that were set when it was first called."""
    monkeypatch.setattr(urllib.request, "_opener", None)
