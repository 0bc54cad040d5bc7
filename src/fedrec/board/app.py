"""The board as a web application: pages, fragments of them, and events. It only reads."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse

from fedrec.board.comparison_view import view_comparison
from fedrec.board.federation_view import view_federation
from fedrec.board.folders import Entry, FolderIndex
from fedrec.board.listing import Query, list_entries
from fedrec.board.live_view import Follower, view_live
from fedrec.board.run_view import view_run
from fedrec.board.silo_view import view_silos
from fedrec.board.study_view import view_study
from fedrec.board.user_view import ModelShelf, view_user
from fedrec.board.words import FILTERS_OF_PAGES
from fedrec.errors import FedrecError
from fedrec.html import page_environment, render_page, style_sheet
from fedrec.serve.web_app import make_app, problem

PACKAGE = "fedrec.board"
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
# A report may come from anybody's folder, so it is shown without scripts and without an origin.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; sandbox"
STREAMS = 64  # pages that are told of news at once
BEAT = 1.0  # seconds between two looks at a run that somebody watches
FRESH = 1.0  # seconds for which a look at all folders serves who asks for the list
LOOK = 2.0  # seconds between two looks at all folders
QUIET = 15.0  # seconds after which a stream without news sends a comment, so that a closed page is noticed


class Board:
    """What the pages are made from: the index of a folder, and what was opened of it."""

    def __init__(self, root: Path) -> None:
        self.index = FolderIndex(root)
        self.models = ModelShelf()
        self.followers = Follower()
        self.streams = 0
        self._opening = threading.Lock()

    def entry(self, name: str) -> Entry:
        """Return the entry of an address; FedrecError, for a page that says so, where there is none."""
        found = self.index.look_at(name)
        if found is None:
            raise MissingPage(f"there is no run folder '{name}' here")
        return found

    def user_page(self, names: list[str], user: str) -> dict[str, Any]:
        """Make the page of a user; one at a time, because models are large."""
        self.index.refresh_after(FRESH)
        # Two at once could fill the memory, and the second would only wait for the same processor.
        with self._opening:
            return view_user(self.index, self.models, names, user)


class MissingPage(FedrecError):
    """An address that leads nowhere."""

    status = 404


def make_board(root: Path, local: bool = True, token: str | None = None) -> FastAPI:
    """Make the application over a folder, which is read once before it answers."""
    board = Board(root)
    # Before the first answer, so that the list is never empty for a moment.
    board.index.refresh()
    # Of several who watch, one look at a time serves all.
    looking = ThreadPoolExecutor(1, thread_name_prefix="look")
    app = make_app("fedrec board", lambda: {"folders": len(board.index.entries)}, local=local, token=token)
    app.state.board = board

    def page(template: str, content: Mapping[str, Any], status: int = 200) -> Response:
        return HTMLResponse(render(template, {"root": root.resolve().name or "/", **content}), status, page_headers())

    def stream_response(look: Callable[[], tuple[Any, str]], every: float) -> Response:
        events = stream(board, look, every, looking, app.state.stopping)
        return StreamingResponse(events, media_type="text/event-stream", headers=NO_STORE)

    def answer_mistake(request: Request, error: Exception) -> Response:
        status = getattr(error, "status", 400)
        # Programs get JSON, people a page.
        if "text/html" not in request.headers.get("accept", ""):
            return problem(status, str(error))
        return page("problem.html", {"title": "Not shown", "sentence": str(error)}, status)

    app.add_exception_handler(FedrecError, answer_mistake)

    @app.get("/style.css", include_in_schema=False)
    def send_style() -> Any:
        # Asked for again each time, which costs little and shows a new version after an update at once.
        return Response(style_sheet(), media_type="text/css", headers={"Cache-Control": "no-cache"})

    @app.get("/board.js", include_in_schema=False)
    def send_script() -> Any:
        return Response(read_script(), media_type="text/javascript", headers={"Cache-Control": "no-cache"})

    @app.get("/", summary="All runs of the folder")
    def show_list(request: Request) -> Any:
        return page("list.html", _list_content(board, request))

    @app.get("/rows", summary="The table of that page alone")
    def show_rows(request: Request) -> Any:
        return page("rows.html", _list_content(board, request))

    @app.get("/run/{name:path}", summary="One run, live while it goes on")
    def show_run(name: str) -> Any:
        entry = board.entry(name)
        if entry.kind == "study":
            return page("study.html", view_study(board.index, entry))
        return page("run.html", view_run(board.index, entry, board.followers))

    @app.get("/report/{name:path}", summary="The report of a run")
    def show_report(name: str) -> Any:
        path = board.index.path(board.entry(name).name) / "report.html"
        # A link would let a run folder show any file of this machine.
        if not path.is_file() or path.is_symlink():
            raise MissingPage(f"{name} has no report yet; a finished run gets one, or use fedrec report")
        return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})

    @app.get("/compare", summary="Runs side by side, as fedrec compare shows them")
    def show_comparison(request: Request) -> Any:
        words = request.query_params
        return page("comparison.html", view_comparison(board.index, words.getlist("run"), words.get("on", "")))

    @app.get("/user", summary="One user under one or two models")
    def show_user(request: Request) -> Any:
        words = request.query_params
        return page("user.html", board.user_page(words.getlist("run")[:2], words.get("user", "").strip()))

    @app.get("/silos/{name:path}", summary="Who gains by joining")
    def show_silos(name: str, request: Request) -> Any:
        words = request.query_params
        entry = board.entry(name)
        return page("silos.html", view_silos(board.index, entry, words.get("against", ""), words.get("metric", "")))

    @app.get("/events", summary="News of the list, as server-sent events")
    async def send_list_events() -> Any:
        return StreamingResponse(
            stream(board, lambda: look_at_list(board), LOOK, looking, app.state.stopping),
            media_type="text/event-stream",
            headers=NO_STORE,
        )

    @app.get("/events/{name:path}", summary="News of a run, as server-sent events")
    async def send_run_events(name: str) -> Any:
        # In a thread, since looking at a folder waits for the disk, and the loop serves everybody.
        entry = await asyncio.to_thread(board.entry, name)
        return stream_response(lambda: look_at_run(board, entry.name), BEAT)

    return app


NO_STORE = {"Cache-Control": "no-store"}


def page_headers() -> dict[str, str]:
    return {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", **NO_STORE}


def _list_content(board: Board, request: Request) -> dict[str, Any]:
    board.index.refresh_after(FRESH)
    query = Query.read(request.query_params)
    listing = list_entries(board.index.entries, query)
    words = {name: value for name, value in request.query_params.items() if name != "run"}
    return {
        "title": "Runs",
        "query": query,
        "listing": listing,
        "words": words,
        "truncated": board.index.truncated,
        "version": board.index.version,
    }


# -- events --


def look_at_list(board: Board) -> tuple[Any, str]:
    """Return what tells one state of the list from another, and the news of it."""
    board.index.refresh()
    return board.index.version, json.dumps({"version": board.index.version})


def look_at_run(board: Board, name: str) -> tuple[Any, str]:
    """Return what tells one state of a run from another, and its live part anew."""
    entry = board.entry(name)
    live = view_live(board.index, entry, board.followers)
    federation = view_federation(board.index.path(name), entry.state == "running") if entry.deployed else None
    news = {
        "html": render("live.html", {"live": live, "entry": entry}),
        "federation": "" if federation is None else render("federation.html", {"federation": federation}),
        "state": entry.state,
        "said": live["said"],
    }
    # Only what can be seen is compared, so that a page is not drawn anew for nothing.
    return (entry.state, live["rounds"], hash(news["federation"])), json.dumps(news)


async def stream(
    board: Board,
    look: Callable[[], tuple[Any, str]],
    every: float,
    pool: ThreadPoolExecutor,
    stopping: asyncio.Event,
) -> AsyncIterator[str]:
    """Send an event whenever a look finds something new. Who is one too many gets an end instead, and asks later."""
    if board.streams >= STREAMS:
        # The browser asks again by itself after this time, when somebody else may have gone.
        yield "retry: 30000\n\n"
        return
    board.streams += 1
    try:
        yield "retry: 3000\n\n"
        known, silence = None, 0.0
        while not stopping.is_set():
            # In the pool of one: a hundred pages would otherwise look at the same disk a hundred times.
            state, data = await asyncio.get_running_loop().run_in_executor(pool, look)
            if state != known:
                known, silence = state, 0.0
                yield f"data: {data}\n\n"
            elif silence >= QUIET:
                silence = 0.0
                # A comment is the only way to notice that the other end is gone.
                yield ": quiet\n\n"
            with suppress(TimeoutError):
                # Waiting for the end instead of sleeping: a stop does not have to wait for the beat.
                await asyncio.wait_for(stopping.wait(), every)
            silence += every
    finally:
        board.streams -= 1


# -- templates --


@cache
def _environment() -> Any:
    made = page_environment(PACKAGE)
    made.filters.update(FILTERS_OF_PAGES)
    return made


def render(template: str, content: Mapping[str, Any]) -> str:
    """Fill a template of the board."""
    # Called first, because it adds the filters that templates need.
    _environment()
    return render_page(template, PACKAGE, **content)


@cache
def read_script() -> str:
    return (files(PACKAGE) / "board.js").read_text(encoding="utf-8")
