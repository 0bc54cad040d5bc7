"""What somebody who writes a first method gets for the usual mistakes: a sentence with the function and the name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import fedrec
from fedrec.errors import FedrecError
from fedrec.federation.contract import Disclosure, Down, Gather, Mean, Method, MethodInfo, State
from fedrec.federation.tryout import try_out
from fedrec.methods import built_in
from fedrec.testing import tiny_world
from fedrec.training.local_training import LocalMethod


@dataclass(frozen=True)
class Right(LocalMethod):
    """That of CONTRIBUTING.md."""

    info: ClassVar[MethodInfo] = MethodInfo("right", summary="as it should be", backbones={"mf": {}})

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user",))

    def init_server(self, world, attributes=None):
        return {"item": self.trainer.init_items(world)}

    def init_clients(self, world, chunk):
        return State(per_user={"user": self.trainer.init_users(world, chunk.users)})

    def broadcast(self, server, clients, round):
        return Down(shared=server)

    def local(self, state, down, chunk, round):
        fitted = self.trainer.fit(chunk, round, state.per_user["user"], down.shared["item"])
        return State(per_user={"user": fitted.user}), {"item": Mean(fitted.table)}

    def aggregate(self, server, ups, round):
        return {"item": 0.5 * server["item"] + 0.5 * ups["item"]}

    def score(self, state, down, chunk, items):
        return self.model.scores(state.per_user["user"], down.shared["item"][items], {})


def but(**functions: Any) -> Method:
    """The right method with some functions written in another way."""
    return dataclass(frozen=True)(type("Mine", (Right,), {"__module__": __name__, **functions}))(dim=4)


def local(wrong: Any) -> Any:
    """Training as it should be, which returns something else: a function of the state and the trained table."""

    def train(self, state, down, chunk, round):
        after, uploads = Right.local(self, state, down, chunk, round)
        return wrong(after, uploads["item"].value)

    return train


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "an upload that nobody sent": (
        {"aggregate": lambda self, server, ups, round: {"item": ups["items"]}},
        r"Mine\.aggregate: unknown upload 'items'; did you mean 'item'\?",
    ),
    "a name that the server lacks": (
        {"aggregate": lambda self, server, ups, round: {"item": server["table"]}},
        r"Mine\.aggregate asks for 'table', which is not there: server has item; ups has item \(test_tryout\.py, line",
    ),
    "a name that was not sent down": (
        {"score": lambda self, state, down, chunk, items: down.shared["q"]},
        r"Mine\.score asks for 'q', which is not there: state\.per_user has user; down\.shared has item",
    ),
    "something of the server forgotten": (
        {
            "init_server": lambda self, world, attributes=None: {
                "item": self.trainer.init_items(world),
                "v": torch.ones(1),
            }
        },
        r"Mine\.aggregate returned no 'v', which init_server made; return it, changed or not",
    ),
    "something new in the server": (
        {"aggregate": lambda self, server, ups, round: {**server, "count": torch.ones(1)}},
        r"Mine\.aggregate returned 'count', which is new; make it in init_server",
    ),
    "another shape": (
        {"aggregate": lambda self, server, ups, round: {"item": ups["item"].sum(0)}},
        r"Mine\.aggregate returned 'item' as \[4\]; init_server made it \[40, 4\]",
    ),
    "a tensor alone": (
        {"aggregate": lambda self, server, ups, round: ups["item"]},
        r"Mine\.aggregate returned \[40, 4\]; it must be a dictionary of tensors by name",
    ),
    "nothing returned": (
        {"aggregate": lambda self, server, ups, round: server.update(item=ups["item"])},
        r"Mine\.aggregate returned nothing; it must be a dictionary",
    ),
    "a number in the server": (
        {"init_server": lambda self, world, attributes=None: {"step": 0}},
        r"Mine\.init_server returned 'step' as an int; it must be a tensor",
    ),
    "a state that is none": (
        {"init_clients": lambda self, world, chunk: {"user": torch.zeros(len(chunk.users), 4)}},
        r"Mine\.init_clients returned a dict; it must be State\(per_user=\{\.\.\.\}, per_client=\{\.\.\.\}\)",
    ),
    "a state of other users": (
        {"init_clients": lambda self, world, chunk: State(per_user={"user": torch.zeros(7, 4)})},
        r"Mine\.init_clients returned per_user\['user'\] as \[7, 4\]; its first axis must be the 3 users of the chunk",
    ),
    "a broadcast that is none": (
        {"broadcast": lambda self, server, clients, round: server},
        r"Mine\.broadcast returned a dict; it must be Down\(shared=\{\.\.\.\}, own=\{\.\.\.\}\)",
    ),
    "uploads alone": (
        {"local": local(lambda after, table: {"item": Mean(table)})},
        r"Mine\.local returned a dict; it must be two things: the new State, the uploads by name",
    ),
    "a trained state forgotten": (
        {"local": local(lambda after, table: (State(), {"item": Mean(table)}))},
        r"Mine\.local returned no per_user\['user'\], which init_clients made",
    ),
    "an upload as it is": (
        {"local": local(lambda after, table: (after, {"item": after.per_user["user"]}))},
        r"Mine\.local uploads 'item' as \[3, 4\]; wrap it in Mean\(\.\.\.\), Sum\(\.\.\.\) or Gather\(\.\.\.\)",
    ),
    "an upload without clients": (
        {"local": local(lambda after, table: (after, {"item": Mean(after.per_user["user"].sum(0))}))},
        r"Mine\.local uploads 'item' as \[4\]; its first axis must be the 3 clients of the chunk",
    ),
    "every table of a sum": (
        {"local": local(lambda after, table: (after, {"item": Gather(table)}))},
        r"Mine\.local: a gathered upload is each client's own, .*fit\(\.\.\., fold=False\)",
    ),
    "scores of other items": (
        {"score": lambda self, state, down, chunk, items: Right.score(self, state, down, chunk, torch.arange(40))},
        r"Mine\.score returned \[3, 40\]; it must be \[3, 20\]: a row for each of 3 users, a column for each of 20",
    ),
    "scores of one user": (
        {"score": lambda self, state, down, chunk, items: down.shared["item"][items].sum(1)},
        r"Mine\.score returned \[40\]; it must be \[3, 40\]",
    ),
    "too few arguments": (
        {"score": lambda self, state, down, items: None},
        r"Mine\.score failed: TypeError: .* takes 4 positional arguments but 5 were given",
    ),
    "a misspelled function": (
        {"agregate": lambda self, server, ups, round: server, "aggregate": Method.aggregate},
        r"Mine\.agregate is never called; did you mean aggregate\?",
    ),
    "no aggregation": (
        {"aggregate": Method.aggregate},
        r"Mine uploads item but has no aggregate, .*write aggregate\(self, server, ups, round\)",
    ),
    "no scores": ({"score": Method.score}, r"Mine has no score; see `Method\.score`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_sentence(mistake: str) -> None:
    functions, message = MISTAKES[mistake]
    with pytest.raises(FedrecError, match=message) as caught:
        try_out(but(**functions), tiny_world())
    assert "\n" not in str(caught.value)


def test_what_is_right_passes_and_nothing_is_kept() -> None:
    data = tiny_world()
    before = Right(dim=4).init_server(data.world)["item"].clone()
    try_out(but(), data)
    assert torch.equal(Right(dim=4).init_server(data.world)["item"], before)


@pytest.mark.parametrize("method", built_in(), ids=lambda method: method.info.name)
def test_methods_of_this_package_would_pass(method: type[Method]) -> None:
    """So what is asked of others is asked of nobody in vain."""
    if method.info.name == "fedmvmf":
        method = dataclasses.make_dataclass("Small", [("dim", int, 4)], bases=(method,), frozen=True)
    elsewhere = dataclass(frozen=True)(type(method.__name__, (method,), {"__module__": "elsewhere"}))()
    data = tiny_world(silos=(12,) if method.info.centralised else None)
    described = elsewhere.disclosure.attributes != "none"
    try_out(elsewhere, data, torch.randn(47, 5, dtype=torch.float64) if described else None)


def test_rows_are_counted_even_where_a_few_clients_look_right() -> None:
    three = but(init_clients=lambda self, world, chunk: State(per_user={"user": torch.zeros(3, 4)}))
    with pytest.raises(FedrecError, match=r"Mine\.init_clients made per_user\['user'\] as \[3, 4\]; .* the 54 users"):
        fedrec.run(three, "synthetic@users=80+items=60", rounds=1)


class TestClasses:
    """What is wrong with a class shows before it is asked anything."""

    def refused(self, cls: Any, message: str) -> None:
        with pytest.raises(FedrecError, match=message):
            fedrec.run(cls, "synthetic@users=80+items=60", rounds=1)

    def test_no_info(self) -> None:
        @dataclass(frozen=True)
        class Nameless(LocalMethod):
            score = Right.score

        self.refused(Nameless, r"Nameless has no name; write info: ClassVar\[MethodInfo\] = MethodInfo\(name, \.\.\.\)")

    def test_a_name_that_is_taken(self) -> None:
        @dataclass(frozen=True)
        class Taken(Right):
            info: ClassVar[MethodInfo] = MethodInfo("fedmf", backbones={"mf": {}})

        self.refused(Taken, "Taken: the name 'fedmf' belongs to another method")

    def test_no_decorator(self) -> None:
        class Plain(Right):
            mix: float = 0.5

        self.refused(Plain, r"Plain\.mix is no parameter yet: put @dataclass\(frozen=True\) above the class")

    def test_no_method_at_all(self) -> None:
        class Nothing: ...

        self.refused(Nothing, "Nothing is not a method: derive it from LocalMethod, or from Method")
