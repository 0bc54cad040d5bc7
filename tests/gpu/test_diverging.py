"""On a GPU a run that diverges ends as on the processor: in one line. The process goes on.

An index that is out of range there ends everything that a process does afterwards, so runs have processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

from federation.absurd import DIVERGED, EXPLODING_MIXTURE, FINITE, NAMES, steps
from waiting import GENEROUS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TESTS = Path(__file__).parents[1]
AT_ONCE = max(1, min(12, (os.cpu_count() or 1) - 2))  # each compiles kernels


Ends = list[tuple[str, str]]
"""What was run, and how it ended."""


def ends_of(word: str) -> Ends:
    """Of all cases of a method, or of one as JSON, in a process of their own."""
    command, settings = [sys.executable, "-m", "federation.absurd", "cuda", word], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=TESTS, env=settings, capture_output=True, text=True, timeout=GENEROUS)
    lines = done.stdout.splitlines()
    cases, ended = ([line for line in lines if line.startswith(mark)] for mark in '{"')
    found = [json.loads(line) for line in ended]
    if done.returncode:
        found.append(f"the process ended with {done.returncode}: {done.stderr[-2000:]}")
    return list(zip_longest(cases, found, fillvalue=word))


@pytest.fixture(scope="module")
def endings() -> Iterator[Mapping[str, Future[Ends]]]:
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {name: pool.submit(ends_of, name) for name in NAMES}
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_ends_in_one_line_or_stays_finite(name: str, endings: Mapping[str, Future[Ends]]) -> None:
    ends = endings[name].result()
    broken = [f"{case}\n{ended}" for case, ended in ends if ended not in (DIVERGED, FINITE)]
    assert not broken, "\n".join(broken)
    assert (DIVERGED in [ended for _, ended in ends]) == steps(name)


def test_finite_tables_whose_products_are_not_end_in_one_line() -> None:
    (_, ended), *_ = ends_of(json.dumps(asdict(EXPLODING_MIXTURE)))
    assert ended == DIVERGED


@pytest.mark.skipif(
    not any(Path(place, "ml-100k/u.data").exists() for place in os.environ.get("FEDREC_DATA", "").split(os.pathsep)),
    reason="needs ml-100k in a folder of FEDREC_DATA",
)
def test_they_do_on_real_data() -> None:
    (_, ended), *_ = ends_of(json.dumps(asdict(replace(EXPLODING_MIXTURE, data="ml-100k"))))
    assert ended == DIVERGED
