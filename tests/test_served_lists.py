"""Lists to serve: nobody is offered what they have, nobody is left without a list, and one list is one user's work."""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from torch import Tensor

import fedrec
from conftest import Cli
from fedrec.data import load
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, State
from fedrec.methods.average.fedmf import FedMF
from fedrec.serve import Recommender

SMALL = "synthetic@users=40+items=80+interactions=700+seed=1"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twenty users with 14 rated items each, ten with 3; item 0 is everybody's lowest rated."""
    rng = np.random.default_rng(0)
    lines = ["user,item,rating,timestamp"]
    for user in range(30):
        own = [0, *(1 + rng.permutation(49)[: 13 if user < 20 else 2]).tolist()]
        lines += [f"u{user},i{item},{1 if item == 0 else 4},{time}" for time, item in enumerate(own)]
    path = tmp_path / "logs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def owned(path: Path) -> dict[str, set[str]]:
    table = pl.read_csv(path)
    return {user: set(rows["item"]) for (user,), rows in table.group_by("user")}


@pytest.mark.parametrize(
    ("method", "served"), [("fedmf", "folded in"), ("ease", "folded in"), ("gpfedrec", "popularity")]
)
def test_nobody_is_offered_what_they_have_and_everybody_is_served(
    tmp_path: Path, table: Path, method: str, served: str
) -> None:
    settings = {} if method == "ease" else {"rounds": 2, "dim": 4}
    fedrec.run(method, str(table), out=tmp_path / "run", protocol="honest,min_rating=2", **settings)
    has, recommender = owned(table), Recommender(tmp_path / "run")
    lists: dict[str, set[str]] = {}
    how: dict[str, str] = {}
    for rec in recommender.for_all(20):
        lists.setdefault(rec.user, set()).add(rec.item)
        how[rec.user] = rec.served
    assert set(lists) == set(has)
    assert all(not lists[user] & has[user] for user in has), "neither tested nor disliked items are offered"
    assert {how[f"u{user}"] for user in range(20)} == {"trained"}
    assert {how[f"u{user}"] for user in range(20, 30)} == {served}


def test_as_tested_the_held_out_item_may_stand_in_the_list(tmp_path: Path) -> None:
    fedrec.run("fedmf", SMALL, out=tmp_path / "run", rounds=2, dim=4)
    split = Recommender(tmp_path / "run").run.prepared.split
    held = set(zip(split.test.user_ids[split.test.user], split.test.item_ids[split.test.item], strict=True))
    for as_tested in (False, True):
        recommender = Recommender(tmp_path / "run", as_tested=as_tested)
        offered = {(rec.user, rec.item) for rec in recommender.for_all(80)}
        assert bool(offered & held) == as_tested
        if as_tested:
            assert held <= offered


def test_a_run_says_what_its_lists_leave_out_and_why(cli: Cli) -> None:
    outcome = cli("run", "fedmf", "--data", SMALL, "--rounds", 1, "--set", "dim=4", "--out", "run", "-q")
    assert "tested lists leave out users' training and validation items" in outcome.out
    said = cli("recommend", "run", "--user", "3").err
    assert "items that users already have (training, validation and test) are left out of the lists" in said
    assert "fedrec fit run" in said
    assert "test items may appear in them" in cli("recommend", "run", "--user", "3", "--as-tested").err


@pytest.mark.parametrize(
    "config",
    [
        RunConfig("fedmf", data=SMALL, rounds=2, params={"dim": 4}),
        RunConfig("pfedrec", data=SMALL, rounds=2, params={"dim": 4}),
        RunConfig("fedavg", data=SMALL, rounds=2, params={"dim": 4}, backbone="ncf"),
        RunConfig("fedavg", data=SMALL, rounds=2, silos="4", params={"dim": 4, "loss": "bpr"}, backbone="lightgcn"),
        RunConfig("local", data=SMALL, rounds=2, silos="3", params={"dim": 4}),
        RunConfig("mf", data=SMALL, rounds=2, params={"dim": 4}),
        RunConfig("ease", data=SMALL),
        RunConfig("gfcf", data=SMALL),
        RunConfig("sasrec", data=SMALL, rounds=1, params={"dim": 4}),
        RunConfig("fedgram", data=SMALL),
        RunConfig("popularity", data=SMALL),
    ],
    ids=lambda config: f"{config.method}-{config.silos}",
)
@pytest.mark.parametrize("as_tested", [False, True])
def test_a_user_alone_gets_the_list_that_all_get_together(tmp_path: Path, config: RunConfig, as_tested: bool) -> None:
    execute(config, tmp_path / "run")
    recommender = Recommender(tmp_path / "run", as_tested=as_tested)
    together: dict[object, list[tuple[object, float]]] = {}
    for rec in recommender.for_all(5):
        together.setdefault(rec.user, []).append((rec.item, rec.score))
    assert len(together) > 30
    for user, wanted in together.items():
        alone = recommender.for_user(user, 5)
        assert [rec.item for rec in alone] == [item for item, _ in wanted]
        assert [rec.score for rec in alone] == pytest.approx([score for _, score in wanted], rel=1e-4, abs=1e-6)


def test_one_list_scores_one_user_and_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else it needs was made for the first."""
    execute(RunConfig("fedmf", data=SMALL, rounds=1, params={"dim": 4}), tmp_path / "run")
    recommender = Recommender(tmp_path / "run")
    first, *others = recommender.user_ids.tolist()
    recommender.for_user(first)
    score, scored = FedMF.score, list[int]()

    def counted(self: FedMF, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        scored.append(len(chunk.users))
        return score(self, state, down, chunk, items)

    monkeypatch.setattr(FedMF, "score", counted)
    for owner, name in ((builtins, "open"), (Path, "open"), (os, "open")):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("a file is opened"))
    for user in others:
        recommender.for_user(user)
    monkeypatch.undo()
    assert scored == [1] * len(others)


def test_those_whom_a_run_left_out_get_the_same_alone_and_among_others(tmp_path: Path, table: Path) -> None:
    fedrec.run("fedmf", str(table), out=tmp_path / "run", rounds=2, dim=4)
    recommender = Recommender(tmp_path / "run")
    together = [rec for rec in recommender.for_all(5) if rec.user == "u25"]
    alone = recommender.for_user("u25", 5)
    assert [rec.item for rec in alone] == [rec.item for rec in together]
    assert [rec.score for rec in alone] == pytest.approx([rec.score for rec in together], rel=1e-4)


def test_a_model_outlives_its_file_and_serves_what_it_learned(cli: Cli, tmp_path: Path, table: Path) -> None:
    assert cli("run", "fedmf", "--data", table, "--rounds", 2, "--set", "dim=4", "--out", "run", "-q").code == 0
    before = cli("recommend", "run", "--user", "u3").out
    table.write_text(table.read_text() + "new,i1,4,99\n")
    assert cli("recommend", "run", "--user", "u3").out == before
    assert "not in this run's data" in cli("recommend", "run", "--user", "new").err
    table.rename(tmp_path / "elsewhere.csv")
    assert cli("recommend", "run", "--user", "u3").out == before


def test_a_model_is_opened_without_a_look_at_its_data(
    tmp_path: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedrec.run("fedmf", str(table), out=tmp_path / "run", rounds=1, dim=4)
    opened = Path.open

    def watched(path: Path, *words: object, **named: object) -> object:
        assert path.name != "logs.csv"
        return opened(path, *words, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", watched)
    assert len(Recommender(tmp_path / "run").for_user("u1", 3)) == 3


def test_ratings_are_said_and_a_threshold_can_be_set(cli: Cli, tmp_path: Path, table: Path) -> None:
    words = ("run", "popularity", "--data", table, "--rounds", 1)
    said = cli(*words, "--out", "all").err
    assert "ratings go from 1 to 4 and every one counts as a positive interaction" in said
    assert "--min-rating 3.25" in said
    said = cli(*words, "--out", "high", "--min-rating", 2).err
    assert "ratings go from 1 to 4: from 2 on they count as positive interactions" in said
    protocol = json.loads((tmp_path / "high" / "summary.json").read_text())["protocol"]
    assert protocol == "honest,min_rating=2.0"
    twice = cli(*words, "--out", "x", "--min-rating", 2, "--protocol", "honest,min_rating=3")
    assert twice.code == 2
    assert "--min-rating" in twice.err


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ('item\n"i1"\n"i2"\nnever\n', "1 item not in the model and skipped: never"),
        ('"i1"\n"a ""quoted"", id"\ni2\n', '1 item not in the model and skipped: a "quoted", id'),
        ("item_id\ni1\na,b\nc;d\ni2\n", "2 items not in the model and skipped: a,b, c;d"),
        ("i1\ni2\n", ""),
        ("user,item\nx,i1\nx,i2\ny,i3\ny,gone\n", "1 item of y not in the model and skipped: gone"),
    ],
)
def test_a_history_may_be_one_column_with_quotes_and_unknown_items(
    cli: Cli, tmp_path: Path, table: Path, text: str, skipped: str
) -> None:
    fedrec.run("ease", str(table), out=tmp_path / "run")
    (tmp_path / "history.csv").write_text(text)
    outcome = cli("recommend", "run", "--history", "history.csv", "--out", "recs.csv")
    assert outcome.code == 0, outcome.err
    assert (f"note: {skipped}\n" in outcome.err) if skipped else "skipped" not in outcome.err
    offered = set(pl.read_csv(tmp_path / "recs.csv").filter(pl.col("user") != "y")["item"])
    assert not offered & {"i1", "i2"}


def test_lists_of_some_users_with_titles(cli: Cli, tmp_path: Path, table: Path) -> None:
    (tmp_path / "items.csv").write_text("item,title\n" + "".join(f'i{n},"Film ""{n}"", Ü"\n' for n in range(50)))
    fedrec.run("fedmf", str(table), out=tmp_path / "run", rounds=1, dim=4, attributes=str(tmp_path / "items.csv"))
    (tmp_path / "users.txt").write_text("u4\nu25\nu4\n")
    for name in ("recs.parquet", "recs.json", "recs.jsonl", "recs.csv"):
        assert cli("recommend", "run", "--users", "users.txt", "-k", 3, "--out", name).code == 0
    recs = pl.read_parquet(tmp_path / "recs.parquet")
    assert set(recs["user"]) == {"u4", "u25"}
    assert recs["title"].to_list() == [f'Film "{item[1:]}", Ü' for item in recs["item"]]
    assert set(recs["served"]) == {"trained", "folded in"}
    assert json.loads((tmp_path / "recs.json").read_text()) == recs.to_dicts()
    assert [json.loads(line) for line in (tmp_path / "recs.jsonl").read_text().splitlines()] == recs.to_dicts()
    assert pl.read_csv(tmp_path / "recs.csv").drop("score").rows() == recs.drop("score").rows()
    (tmp_path / "users.txt").write_text("u4\nnobody\n")
    outcome = cli("recommend", "run", "--users", "users.txt", "--out", "none.csv")
    assert (outcome.code, (tmp_path / "none.csv").exists()) == (2, False)
    assert "'nobody' is not in this run's data" in outcome.err


@pytest.mark.parametrize(
    ("method", "kind"), [("mf", "item vectors"), ("fedmf", "item vectors"), ("ease", "users in common")]
)
def test_items_beside_an_item(cli: Cli, tmp_path: Path, method: str, kind: str) -> None:
    settings = {} if method == "ease" else {"rounds": 2, "dim": 4}
    fedrec.run(method, SMALL, out=tmp_path / "run", **settings)
    outcome = cli("similar", "run", "--item", "7", "-k", 5)
    assert outcome.code == 0
    assert f"note: by {kind}\n" in outcome.err
    found = Recommender(tmp_path / "run").similar("7", 5)
    assert [str(one.item) for one in found] == [line.split()[1] for line in outcome.out.splitlines()[1:]]
    assert "7" not in {str(one.item) for one in found}
    if kind == "users in common":
        train = Run(plan_run(RunConfig("ease", data=SMALL))).prepared.split.train
        who = train.matrix().toarray()
        ids = [str(name) for name in train.item_ids.tolist()]
        one, other = who[:, ids.index("7")], who[:, ids.index(str(found[0].item))]
        assert found[0].score == pytest.approx(one @ other / np.sqrt(one.sum() * other.sum()))
    assert cli("similar", "run", "--item", "nothing").code == 2


def test_new_items_are_ranked_among_all(cli: Cli, tmp_path: Path) -> None:
    spec = "synthetic@users=60+items=300+interactions=1200+seed=1"
    execute(
        RunConfig("ifedrec", data=spec, protocol="ifedrec,ks=3,select_metric=ndcg@3", rounds=1, params={"dim": 4}),
        tmp_path / "run",
    )
    names = load(spec).info.tag_names  # type: ignore[union-attr]
    (tmp_path / "new.csv").write_text(f"item,tags\nnew1,{names[0]}\nnew2,{names[1]}\n")
    user = str(load(spec).user_ids[5])
    assert cli("cold-add", "run", "new.csv", "--user", user, "--out", "new_ranks.csv").code == 0
    assert cli("cold-add", "run", "new.csv", "--user", user, "--whole", "-k", 250, "--out", "whole.csv").code == 0
    ranks = {str(row["item"]): row["rank"] for row in pl.read_csv(tmp_path / "new_ranks.csv").to_dicts()}
    whole = {str(row["item"]): row["rank"] for row in pl.read_csv(tmp_path / "whole.csv").to_dicts()}
    assert set(ranks) == {"new1", "new2"}
    assert max(ranks.values()) > 2, "not among themselves"
    assert all(whole.get(item, 251) == min(rank, 251) for item, rank in ranks.items())


def test_the_newcomer_without_any_known_item_is_told_so(tmp_path: Path) -> None:
    fedrec.run("ease", SMALL, out=tmp_path / "run")
    with pytest.raises(FedrecError, match="item 'x' is not in this run's data"):
        Recommender(tmp_path / "run").for_history(["x", "y"])
