"""Growth: worlds of any size made directly, exponents, and rounds that several processes share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Cli
from fedrec.federation.clients import ClientData
from fedrec_studies.bench import scale
from fedrec_studies.bench.machine import in_a_process
from fedrec_studies.bench.scale import Point, measure_point, random_clients, series, slope
from fedrec_studies.bench.scale_page import BEGIN, END, the_largest, with_tables

ROOT = Path(__file__).parents[3]


def test_a_world_made_directly_is_what_building_gives() -> None:
    data = random_clients(50, 40, 600)
    user = np.repeat(np.arange(50), np.diff(data.user_ptr))
    built = ClientData.build(data.world, user, data.items, users=data.users, client_ptr=data.client_ptr)
    for name in ("clients", "users", "client_ptr", "user_ptr", "items", "history"):
        assert np.array_equal(getattr(data, name), getattr(built, name)), name
    assert np.array_equal(data.pool.gap, built.pool.gap)
    assert np.array_equal(data.pool.indptr, built.pool.indptr)
    assert data.longest == built.longest
    assert 400 < len(data.items) <= 600


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_is_the_slope(power: float) -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert slope(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_series_differ_in_their_axis_alone() -> None:
    for one in series(quick=False):
        assert len({getattr(point, one.axis) for point in one.points}) == len(one.points)
        others = {"clients": "items", "items": "clients", "interactions": "clients"}[one.axis]
        assert len({getattr(point, others) for point in one.points}) == 1
    assert scale.MILLION in {
        (p.method, p.clients, p.items, p.interactions) for one in series(False) for p in one.points
    }


def test_a_point_says_what_it_took() -> None:
    found = measure_point("fedmf", 100, 50, 1_000)
    assert found is not None
    assert found["processes"] == 1
    assert found["seconds_round"] > 0
    assert sum(found["phases"].values()) == pytest.approx(found["seconds_all"][-1])


def test_what_does_not_fit_is_part_of_the_answer() -> None:
    found = measure_point("fedgram", 100, 1_000_000, 1_000)
    assert found is not None
    assert "fedgram needs at least" in found["refused"]


def test_two_processes_share_a_point() -> None:
    found = in_a_process(Point("fedmf", 100, 50, 1_000, processes=2).command_words())
    assert found["processes"] == len(found["peak_gib_each"]) == 2


def test_growth_is_measured_from_the_command_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SIZES", {("fedgram", "clients"): ((0, 60), (40, 400))})
    done = cli("bench", "--scale", "--methods", "fedgram", "--out", "scale.json")
    assert done.code == 0, done
    assert "fedgram (closed form) against clients: time grows as clients^" in done.out
    found = json.loads((tmp_path / "scale.json").read_text())
    (grown,) = found["series"]
    assert [row["clients"] for row in grown["points"]] == [40, 400]
    assert set(grown["exponents"]) == {"seconds_round", "memory"}
    monkeypatch.setattr(scale, "in_a_process", lambda words: pytest.fail("nothing is measured twice"))
    assert cli("bench", "--scale", "--methods", "fedgram", "--out", "scale.json", "--resume").code == 0


def test_tables_stand_between_their_marks() -> None:
    found = json.loads((ROOT / "results/scale.json").read_text(encoding="utf-8"))
    page = with_tables(f"before\n{BEGIN}\noutdated\n{END}\nafter\n", found, "x.json")
    assert page.startswith("before\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "outdated" not in page


def test_the_page_is_what_the_measurement_says() -> None:
    found: dict[str, Any] = json.loads((ROOT / "results/scale.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    assert page == with_tables(page, found, "results/scale.json")
    million = the_largest(found)
    assert {row["processes"] for row in million} == {1, 2}
    assert all(sum(row["peak_gib_each"]) < 16 and row["clients"] == 1_000_000 for row in million)
