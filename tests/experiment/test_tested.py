"""A result says how many of the data's users it is about, and which setting changes that."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fedrec
from conftest import Cli
from deploy.town import Town
from fedrec.data import load
from fedrec.evaluation import protocol
from fedrec.experiment import read_run
from fedrec.experiment.config import make_config
from fedrec.experiment.prepare import prepare
from fedrec.experiment.run_summary import check_summary
from fedrec.experiment.tested import Tested, count_tested

USERS, REGULARS = 300, 24
SHARE = "24 of 300 users (8 %), those with at least 10 items; --protocol honest,min_interactions=3 tests more"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Most customers have one to four items, some of them rated low; a few have twelve."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(USERS):
        count = 12 if user < REGULARS else 1 + user % 4
        for day, item in enumerate(rng.choice(40, count, replace=False)):
            rows.append(f"c{user},s{item},2025-01-{day + 1:02},{1 + (user + day) % 5}")
    (tmp_path / "shop.csv").write_text("customer_id,sku,event_time,stars\n" + "\n".join(rows) + "\n")
    return tmp_path / "shop.csv"


def test_the_share_stands_in_every_result(cli: Cli, tmp_path: Path, shop: Path) -> None:
    outcome = cli("run", "popularity", "--data", shop, "--out", "run", "--quiet")
    assert outcome.out.splitlines()[1] == f"tested on {SHARE}"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["tested"] == {
        "users": REGULARS,
        "of": USERS,
        "who": "at least 10 items",
        "share": 0.08,
        "setting": "--protocol honest,min_interactions=3",
    }
    page = (tmp_path / "run" / "report.html").read_text()
    assert "of the 24 tested users (8 % of 300) find their held-out item" in page
    assert SHARE in page
    assert f"tested on {SHARE}" in cli("compare", "run", "--no-references").out.replace("\n", " ")
    assert json.loads(cli("compare", "run", "--no-references", "--format", "json").out)["tested"] == summary["tested"]
    assert "tested on 24 of 300 users (8 %)" in repr(fedrec.run("popularity", shop))


def test_the_setting_that_is_named_tests_more(cli: Cli, tmp_path: Path, shop: Path) -> None:
    before = cli("run", "popularity", "--data", shop, "--out", "run").out
    setting = re.search(r"--protocol (\S+) tests more", before)
    assert setting is not None
    after = cli("run", "popularity", "--data", shop, "--out", "more", "--protocol", setting[1]).out
    assert after.splitlines()[1] == "tested on 162 of 300 users (54 %), those with at least 3 items"


def test_where_all_users_are_tested_nothing_more_is_said(cli: Cli, tmp_path: Path) -> None:
    outcome = cli(
        "run",
        "popularity",
        "--data",
        "synthetic@users=30+items=80+seed=1",
        "--protocol",
        "honest,min_interactions=3",
        "--out",
        "run",
    )
    assert outcome.out.splitlines()[1] == "tested on all 30 users"
    assert "of all 30 users find their held-out item" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("spec", "users", "who", "setting"),
    [
        ("honest", 24, "at least 10 items", "--protocol honest,min_interactions=3"),
        ("honest,min_interactions=3", 162, "at least 3 items", ""),
        ("honest,min_interactions=2", 162, "at least 3 items", ""),
        ("honest,min_interactions=1", 162, "at least 3 items", ""),
        (
            "honest,min_rating=4,min_interactions=4",
            24,
            "at least 4 items and ratings from 4 on",
            "--protocol honest,min_interactions=3,min_rating=4.0 or a lower --min-rating",
        ),
        ("honest-time", 24, "at least 10 items", "--protocol honest-time,min_interactions=1"),
        ("honest-time,min_interactions=1", 24, "items in the test part", ""),
    ],
)
def test_who_is_tested_and_what_changes_it(shop: Path, spec: str, users: int, who: str, setting: str) -> None:
    found = count_tested(prepare(load(shop), protocol(spec)))
    assert found == Tested(users, USERS, who, setting)


@pytest.mark.parametrize(
    ("users", "of", "says"),
    [
        (1, 1, "the only user"),
        (999, 1000, "99.9 %"),
        (9999, 10_000, "99.9 %"),
        (1, 10_000, "0.1 %"),
        (5, 1000, "0.5 %"),
        (2880, 19_913, "2,880 of 19,913 users (14 %)"),
    ],
)
def test_a_share_is_never_all_or_nothing_where_it_is_not(users: int, of: int, says: str) -> None:
    assert says in Tested(users, of).count


def test_a_deployment_says_it_too(tmp_path: Path, shop: Path) -> None:
    config = make_config({"method": "fedmf", "data": str(shop), "rounds": 1, "params": {"dim": 4}})
    town = Town(config, tmp_path / "town")
    assert str(Tested.from_summary(town.server().run())) == SHARE


def test_runs_of_earlier_versions_do_not_say(cli: Cli, tmp_path: Path, shop: Path) -> None:
    assert cli("run", "popularity", "--data", shop, "--out", "run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    del summary["tested"]
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert Tested.from_summary(read_run(tmp_path / "run").summary) is None
    assert "tested on" not in cli("compare", "run", "--no-references").out
    assert cli("report", "run").code == 0
    assert "of 24 users find their held-out item" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(ValueError, match=r"summary.tested.users is not an integer"):
        check_summary(summary | {"tested": {"users": "many", "of": 3, "who": "", "setting": ""}})
