"""Routes of the read side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from replicator.domain.plain_values import to_json_value
from replicator.domain.plain_values import to_rows as plain_rows
from replicator.domain.timeline import to_json
from replicator.ports.reads import Page, ReadSide, ReadTarget

from ..http_thread import has_password, has_token
from .openapi import build_document
from .pages import page_headers, render_docs, render_failure, render_timeline
from .request import SAFE, HttpProblem, RowsRequest, make_link, path_segments, to_problem

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
HTML = "text/html"
CHALLENGE = 'Bearer, Basic realm="replicator", charset="UTF-8"'
View = Callable[[Request], Response]


class KeyConvertor(PathConvertor):
    """Matches the rest of a path, including line ends."""

    regex = "(?s:.*)"


register_url_convertor("key", KeyConvertor())


class EncodedSlashes:
    """Middleware that keeps %2F inside a path segment: servers decode the path before routing splits it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            parts = scope["raw_path"].partition(b"?")[0].decode("ascii").split("/")
            scope = {**scope, "path": "/".join(unquote(part).replace("/", "%2F") for part in parts)}
        await self._app(scope, receive, send)


class ReadSideRoutes:
    """The routes of the read side. Every caller needs the `token`, unless it is empty. `max_rows`: rows of one answer."""

    def __init__(self, reads: ReadSide, token: str, max_rows: int, *, takes_events: bool) -> None:
        self._reads, self._token, self._most = reads, token, max_rows
        self._takes_events = takes_events

    def routes(self) -> list[Route]:
        """The routes, for an application."""
        views: Mapping[str, View] = {
            "/": lambda _: RedirectResponse("/docs"),
            "/docs": self._docs,
            "/openapi.json": lambda _: _to_response(self._document()),
            "/tables": self._tables,
            "/tables/{table}": self._table,
            "/tables/{table}/rows": self._rows,
            "/tables/{table}/rows/{key:key}": self._rows,
            "/tables/{table}/history/{key:key}": self._history,
            "/tables/{table}/timeline/{key:key}": self._timeline,
        }
        return [
            Route(path, self._answer_with(view, page=view in (self._docs, self._timeline))) for path, view in views.items()
        ]

    def _answer_with(self, view: View, *, page: bool) -> View:
        def answer(request: Request) -> Response:
            try:
                self._check_request(request)
                return view(request)
            except Exception as error:
                problem = to_problem(error)
                if page and problem.status != 401:
                    return Response(render_failure(problem), problem.status, {**page_headers(), **problem.headers}, HTML)
                return problem.to_response()

        return answer

    def _check_request(self, request: Request) -> None:
        if self._token and not has_token(request, self._token) and not has_password(request, self._token):
            raise HttpProblem(
                401,
                "a token is needed: Authorization: Bearer ...",
                "A browser asks for it: it is the password, under any name.",
                {"www-authenticate": CHALLENGE},
            )

    def _document(self) -> dict[str, Any]:
        return build_document(
            self._reads.targets(), self._most, takes_events=self._takes_events, has_token=bool(self._token)
        )

    def _docs(self, request: Request) -> Response:
        RowsRequest.from_request(request).refuse_others()
        return Response(render_docs(self._document(), self._reads.targets()), 200, page_headers(), HTML)

    def _tables(self, request: Request) -> Response:
        RowsRequest.from_request(request).refuse_others()
        _choose_form(request, JSON)
        return _to_response({"tables": [_describe_target(target) for target in self._reads.targets()]})

    def _table(self, request: Request) -> Response:
        RowsRequest.from_request(request).refuse_others()
        _choose_form(request, JSON)
        target, schema = self._reads.columns(path_segments(request)[1])
        columns = [{"name": field.name, "type": str(field.type)} for field in schema]
        return _to_response({**_describe_target(target), "columns": columns})

    def _rows(self, request: Request) -> Response:
        _, name, _, *key = path_segments(request)
        form = _choose_form(request, JSON, ARROW)
        page = self._reads.rows(name, RowsRequest.from_request(request).to_wanted(self._most, tuple(key)))
        following = None if page.after is None else make_link(request, after=page.after)
        headers = {} if following is None else {"link": f'<{following}>; rel="next"'}
        if form == ARROW:
            return Response(_to_arrow(page.rows), 200, {**SAFE, "vary": "accept", **headers}, ARROW)
        return _to_response(_to_page(name, page, following), {"vary": "accept", **headers})

    def _history(self, request: Request) -> Response:
        _, name, _, *key = path_segments(request)
        _choose_form(request, JSON)
        query = RowsRequest.from_request(request)
        query.refuse_others("limit", "after")
        limit, passed = query.read_limit(self._most), query.read_skipped()
        history = self._reads.history(name, key)
        entries = history.entries[passed : passed + limit]
        more = passed + limit < len(history.entries)
        following = make_link(request, after=str(passed + limit)) if more else None
        body = {"table": name, "source_table": history.target.source_table, "key": key, "rejected": history.rejected}
        body["notes"] = list(history.notes)
        return _to_response({**body, "changes": [to_json_value(to_json(entry)) for entry in entries], "next": following})

    def _timeline(self, request: Request) -> Response:
        _, name, _, *key = path_segments(request)
        query = RowsRequest.from_request(request)
        query.refuse_others("limit", "after")
        limit, passed = query.read_limit(self._most), query.read_skipped()
        history = self._reads.history(name, key)
        newest = list(reversed(history.entries))
        earlier = make_link(request, after=str(passed + limit)) if passed + limit < len(newest) else None
        shown = newest[passed : passed + limit]
        raw = request.scope["raw_path"].decode("ascii").replace("/timeline/", "/history/", 1)
        return Response(render_timeline(history, key, shown, raw, earlier), 200, page_headers(), HTML)


def _describe_target(target: ReadTarget) -> dict[str, Any]:
    return {**asdict(target), "key": list(target.key)}


def _to_page(name: str, page: Page, following: str | None) -> dict[str, Any]:
    rows = [{column: to_json_value(value) for column, value in row.items()} for row in plain_rows(page.rows)]
    return {"table": name, "rows": rows, "next": following, "notes": list(page.notes)}


def _to_response(body: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body, enc_hook=str), 200, {**SAFE, **(headers or {})}, JSON)


def _to_arrow(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def _choose_form(request: Request, *forms: str) -> str:
    """The media type of `forms` that the caller prefers; the first if it has no `Accept` header."""
    wanted = _list_preferred(request.headers.get("accept", ""))
    for media in wanted or ["*/*"]:
        for form in forms:
            if media in ("*/*", form, f"{form.partition('/')[0]}/*"):
                return form
    raise HttpProblem(406, "the answer has none of the forms that `Accept` names", f"There are: {', '.join(forms)}.")


def _list_preferred(accept: str) -> Sequence[str]:
    """Media types, best first, without those of quality 0."""
    media_ranges = []
    for at, part in enumerate(accept.split(",")):
        media, *parameters = (text.strip().lower() for text in part.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            media_ranges.append((-float(quality), at, media))
        except ValueError:
            continue
    return [media for quality, _, media in sorted(media_ranges) if media and quality < 0]
