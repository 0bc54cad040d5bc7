"""`fedrec serve`: a model's lists over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from fedrec.errors import FedrecError
from fedrec.html import render_page
from fedrec.serve.item_filter import ItemFilter, UnknownId
from fedrec.serve.openers import Lists, open_lists
from fedrec.serve.served_model import ServedModel, version_of_folder
from fedrec.serve.web_app import PROBLEMS, WebLimits, encode_json, make_app

if TYPE_CHECKING:
    from fastapi import FastAPI

    from fedrec.serve import Recommendation, SimilarItem

T = TypeVar("T")
Q = TypeVar("Q", bound=BaseModel)
SEVERAL = ("allow", "deny", "category")  # parameters of an address that may be repeated
LENGTH, LONGEST = 10, 1000  # of a list: where none is asked for, and at most
LONGEST_HISTORY, LARGEST_BATCH = 10_000, 1000
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'self'; connect-src 'self'"


def _as_whole(value: Any) -> Any:
    """Take 3.0 for 3, as JSON Schema does, but neither true nor "3"."""
    # Only floats are converted: int() alone would also take true for 1 and read text.
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[StrictInt, BeforeValidator(_as_whole)]
Id = Annotated[StrictStr | StrictInt, BeforeValidator(_as_whole)]


class Question(BaseModel):
    """What the address of a list may ask for."""

    k: int = Field(LENGTH, ge=1, le=LONGEST, description="Length of the list; shorter where there are fewer items")
    allow: list[str] | None = Field(None, description="Only these items; repeat it for several")
    deny: list[str] = Field([], description="None of these items")
    category: list[str] = Field([], description="Only items of one of these categories")


class Shorter(BaseModel):
    """What the address of a list of similar items may ask for."""

    k: int = Field(LENGTH, ge=1, le=LONGEST, description="Length of the list; shorter where there are fewer items")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    k: Whole = Field(LENGTH, ge=1, le=LONGEST, description="Length of a list; shorter where there are fewer items")
    allow: list[Id] | None = Field(None, max_length=100_000, description="Only these items")
    deny: list[Id] = Field([], max_length=100_000, description="None of these items")
    category: list[str] = Field([], max_length=1000, description="Only items of one of these categories")

    def item_filter(self) -> ItemFilter:
        return make_filter(self.allow, self.deny, self.category)


class History(_Body):
    """The items of somebody new."""

    items: list[Id] = Field(min_length=1, max_length=LONGEST_HISTORY, description="Oldest first")


class Batch(_Body):
    """Several users at once."""

    users: list[Id] = Field(min_length=1, max_length=LARGEST_BATCH)


class Line(BaseModel):
    item: str | int
    rank: int
    score: float
    title: str | None = None


class UserList(BaseModel):
    user: str | int
    served: Literal["trained", "folded in", "popularity"]
    items: list[Line]


class UserLists(BaseModel):
    lists: list[UserList]
    unknown: list[str] = Field(description="Users that the model does not know")


class SimilarItems(BaseModel):
    item: str | int
    items: list[Line]


class NewUserList(BaseModel):
    served: Literal["folded in"]
    items: list[Line]
    unknown: list[str] = Field(description="Items of the history that the model does not know")


def make_filter(allow: Sequence[Any] | None, deny: Sequence[Any], categories: Sequence[str]) -> ItemFilter:
    allowed = None if allow is None else tuple(str(item).strip() for item in allow)
    return ItemFilter(allowed, tuple(str(item).strip() for item in deny), tuple(categories))


@dataclass
class Service:
    """A recipe of the application: called once in every worker. It can be pickled if what it opens can be."""

    open_model: Callable[[], Lists]
    find_version: Callable[[], Hashable] | None = None
    local: bool = True
    token: str | None = None
    limits: WebLimits = field(default_factory=WebLimits)
    check_every: float = 5.0
    """Seconds between two looks for a newer model."""

    @classmethod
    def from_folder(cls, folder: Path, **options: Any) -> Service:
        """Serve a run or a fitted model, and the newer one that takes its place."""
        return cls(partial(open_lists, folder), partial(version_of_folder, folder), **options)

    def __call__(self) -> FastAPI:
        """Open the model and make the application that serves it."""
        return self.load()()

    def load(self) -> Callable[[], FastAPI]:
        """Open the model, so that what is wrong with it is said before anybody is served."""
        app = _Paths(ServedModel(self.open_model, self.find_version), self).app
        return lambda: app


class _Paths:
    """What is answered at which path, with the model of the moment."""

    def __init__(self, model: ServedModel, service: Service) -> None:
        self.model, self.check_every = model, service.check_every
        # lists that take long are made beside the loop; more threads than cores would only wait for each other
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="lists")
        self.folding_in = Lock()  # folding in trains, and trains on all cores
        app = make_app(
            "fedrec",
            model.describe,
            local=service.local,
            token=service.token,
            limits=service.limits,
            lifespan=self._live,
            description="Recommendations of a fedrec model.",
        )
        self.app = app
        self.page = render_page("try.html", "fedrec.serve", title="Recommendations", **_describe_page(model.lists))
        self._count_model()
        app.get("/", include_in_schema=False)(self.show_page)
        app.get("/try.js", include_in_schema=False)(self.send_script)
        app.get(
            "/recommendations/{user:path}",
            response_model=UserList,
            responses=PROBLEMS,
            openapi_extra={"parameters": _describe_parameters("user", Question)},
        )(self.recommend)
        # Routes are tried in turn, and most ask for this one.
        app.router.routes.insert(0, app.router.routes.pop())
        app.post("/recommendations", response_model=UserLists, responses=PROBLEMS)(self.recommend_many)
        app.get(
            "/similar/{item:path}",
            response_model=SimilarItems,
            responses=PROBLEMS,
            openapi_extra={"parameters": _describe_parameters("item", Shorter)},
        )(self.find_similar)
        app.post("/fold-in", response_model=NewUserList, responses=PROBLEMS)(self.fold_in)

    async def show_page(self) -> Response:
        return HTMLResponse(self.page, headers={"Content-Security-Policy": POLICY})

    async def send_script(self) -> Response:
        from importlib.resources import files

        script = files("fedrec.serve").joinpath("templates", "try.js").read_text(encoding="utf-8")
        return Response(script, media_type="text/javascript")

    async def recommend(self, request: Request) -> Response:
        """Recommend items to a user, none of which they already have."""
        user, asked = request.path_params["user"], _read_query(request, Question)
        if not user:
            raise FedrecError("name the user: /recommendations/USER")
        only, lists = make_filter(asked.allow, asked.deny, asked.category), self.model.lists
        k = self.model.shorten(asked.k)
        # Answered on the loop: handing over to a thread takes longer than a list from vectors.
        if self.model.answers_at_once(user):
            return _as_json(_list_for(lists, user, k, only))
        return _as_json(await self._in_thread(lambda: _list_for(lists, user, k, only)))

    async def recommend_many(self, batch: Batch) -> Response:
        """Recommend items to several users."""
        only, lists, k = batch.item_filter(), self.model.lists, self.model.shorten(batch.k)

        # All users in one thread, with one model: it may be replaced while the answer is made.
        def answer() -> dict[str, Any]:
            found: list[dict[str, Any]] = []
            unknown: list[str] = []
            for user in batch.users:
                try:
                    found.append(_list_for(lists, user, k, only))
                # Unknown users are listed and do not fail the others of the batch.
                except UnknownId:
                    unknown.append(str(user))
            return {"lists": found, "unknown": unknown}

        return _as_json(await self._in_thread(answer))

    async def find_similar(self, request: Request) -> Response:
        """List the items that are similar to an item."""
        item, k = request.path_params["item"], _read_query(request, Shorter).k
        if not item:
            raise FedrecError("name the item: /similar/ITEM")
        # The item itself is not in its list.
        lists, most = self.model.lists, max(1, self.model.items - 1)
        found = await self._in_thread(lambda: lists.similar(item, min(k, most)))
        return _as_json({"item": item, "items": [_line(one) for one in found]})

    async def fold_in(self, history: History) -> Response:
        """Recommend items to somebody new, from the items that they have."""
        only, lists, k = history.item_filter(), self.model.lists, self.model.shorten(history.k)

        def answer() -> dict[str, Any]:
            with self.folding_in:
                folded = lists.fold_in(history.items, k, **_pass_filter(only))
            return {"served": "folded in", "items": [_line(rec) for rec in folded.offers], "unknown": folded.unknown}

        return _as_json(await self._in_thread(answer))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    @asynccontextmanager
    async def _live(self, _: FastAPI) -> AsyncIterator[None]:
        """Look for newer models for as long as the application lives."""
        looking = asyncio.create_task(self._look())
        yield
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        # Requests that still wait have nobody to answer to, so they are dropped instead of awaited.
        self.pool.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.check_every)
            before = self.model.failure
            # In a thread, because opening a model takes seconds in which lists go on being served.
            if await asyncio.to_thread(self.model.renew):
                self.reloads.labels("taken").inc()
                self.page = render_page(
                    "try.html", "fedrec.serve", title="Recommendations", **_describe_page(self.model.lists)
                )
            elif self.model.failure != before:
                self.reloads.labels("refused").inc()

    def _count_model(self) -> None:
        """Count newer models, and say when the present one was loaded."""
        from prometheus_client import Counter, Gauge

        registry = self.app.state.metrics.registry
        self.reloads = Counter("fedrec_model_reloads", "Newer models", ["result"], registry=registry)
        loaded = Gauge(
            "fedrec_model_loaded_timestamp_seconds",
            "When the model was loaded",
            registry=registry,
            # The oldest model that is still served.
            multiprocess_mode="min",
        )
        loaded.set(self.model.loaded)
        self.loaded = loaded


@cache
def _use_defaults(kind: type[Q]) -> Q:
    return kind()


def _read_query(request: Request, kind: type[Q]) -> Q:
    """Read what an address asks for; FastAPI itself takes as long for declared parameters as a list takes."""
    # Most requests have no query, and the defaults need to be validated only once.
    if not request.scope["query_string"]:
        return _use_defaults(kind)
    values: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name in SEVERAL:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [{**one, "loc": ("query", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(problems) from None


def _describe_parameters(name: str, kind: type[BaseModel]) -> list[dict[str, Any]]:
    """Describe the parameters of an address in the words of OpenAPI."""
    place = {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    schemas = kind.model_json_schema()["properties"]
    return [place, *({"name": field, "in": "query", "schema": schema} for field, schema in schemas.items())]


def _list_for(lists: Lists, user: Any, k: int, only: ItemFilter) -> dict[str, Any]:
    found = lists.for_user(user, k, **_pass_filter(only))
    served = found[0].served if found else "trained"
    return {"user": found[0].user if found else user, "served": served, "items": [_line(rec) for rec in found]}


def _pass_filter(only: ItemFilter) -> dict[str, Any]:
    """Pass a filter on where one is asked for: models of others may know none."""
    return {"only": only} if only else {}


def _line(found: Recommendation | SimilarItem) -> dict[str, Any]:
    return {"item": found.item, "rank": found.rank, "score": found.score, "title": found.title}


def _as_json(value: Any) -> Response:
    return Response(encode_json(value), media_type="application/json")


def _describe_page(lists: Lists) -> dict[str, Any]:
    about = lists.about()
    return {"about": about, "examples": about.get("examples", {})}
