"""Which URL is answered by what."""

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

from replicator.domain.plain import plain
from replicator.domain.plain import rows as plain_rows
from replicator.domain.timeline import told
from replicator.ports.read_side import Page, ReadSide, Target

from ..serving import has_password, has_token
from .asked import Asked, link, segments
from .openapi import document
from .pages import docs, failed, page_headers, timeline
from .problems import SAFE, Problem, problem_of

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
HTML = "text/html"
CHALLENGE = 'Bearer, Basic realm="replicator", charset="UTF-8"'
View = Callable[[Request], Response]


class Key(PathConvertor):
    """The rest of a path, line ends and all."""

    regex = "(?s:.*)"


register_url_convertor("key", Key())


class EncodedSlashes:
    """Has routes see %2F as part of a name: servers decode the path before its parts are told apart."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            parts = scope["raw_path"].partition(b"?")[0].decode("ascii").split("/")
            scope = {**scope, "path": "/".join(unquote(part).replace("/", "%2F") for part in parts)}
        await self._app(scope, receive, send)


class Reads:
    """The routes of the read side; with a `token` it is asked of every caller. `max_rows`: in one answer."""

    def __init__(self, reads: ReadSide, token: str, max_rows: int, *, takes_events: bool) -> None:
        self._reads, self._token, self._most = reads, token, max_rows
        self._takes_events = takes_events

    def routes(self) -> list[Route]:
        """What is answered."""
        views: Mapping[str, View] = {
            "/": lambda _: RedirectResponse("/docs"),
            "/docs": self._docs,
            "/openapi.json": lambda _: _json(self._document()),
            "/tables": self._tables,
            "/tables/{table}": self._table,
            "/tables/{table}/rows": self._rows,
            "/tables/{table}/rows/{key:key}": self._rows,
            "/tables/{table}/history/{key:key}": self._history,
            "/tables/{table}/timeline/{key:key}": self._timeline,
        }
        return [
            Route(path, self._answering(view, page=view in (self._docs, self._timeline))) for path, view in views.items()
        ]

    def _answering(self, view: View, *, page: bool) -> View:
        def answer(request: Request) -> Response:
            try:
                self._admit(request)
                return view(request)
            except Exception as error:
                problem = problem_of(error)
                if page and problem.status != 401:
                    return Response(failed(problem), problem.status, {**page_headers(), **problem.headers}, HTML)
                return problem.response()

        return answer

    def _admit(self, request: Request) -> None:
        if self._token and not has_token(request, self._token) and not has_password(request, self._token):
            raise Problem(
                401,
                "a token is needed: Authorization: Bearer ...",
                "A browser asks for it: it is the password, under any name.",
                {"www-authenticate": CHALLENGE},
            )

    def _document(self) -> dict[str, Any]:
        return document(self._reads.targets(), self._most, takes_events=self._takes_events, has_token=bool(self._token))

    def _docs(self, request: Request) -> Response:
        Asked.of(request).refuse_others()
        return Response(docs(self._document(), self._reads.targets()), 200, page_headers(), HTML)

    def _tables(self, request: Request) -> Response:
        Asked.of(request).refuse_others()
        _accepted(request, JSON)
        return _json({"tables": [_described(target) for target in self._reads.targets()]})

    def _table(self, request: Request) -> Response:
        Asked.of(request).refuse_others()
        _accepted(request, JSON)
        target, schema = self._reads.columns(segments(request)[1])
        columns = [{"name": field.name, "type": str(field.type)} for field in schema]
        return _json({**_described(target), "columns": columns})

    def _rows(self, request: Request) -> Response:
        _, name, _, *key = segments(request)
        form = _accepted(request, JSON, ARROW)
        page = self._reads.rows(name, Asked.of(request).wanted(self._most, tuple(key)))
        following = None if page.after is None else link(request, after=page.after)
        headers = {} if following is None else {"link": f'<{following}>; rel="next"'}
        if form == ARROW:
            return Response(_arrow(page.rows), 200, {**SAFE, "vary": "accept", **headers}, ARROW)
        return _json(_told(name, page, following), {"vary": "accept", **headers})

    def _history(self, request: Request) -> Response:
        _, name, _, *key = segments(request)
        _accepted(request, JSON)
        asked = Asked.of(request)
        asked.refuse_others("limit", "after")
        limit, passed = asked.limit(self._most), asked.passed()
        found = self._reads.history(name, key)
        entries = found.entries[passed : passed + limit]
        more = passed + limit < len(found.entries)
        following = link(request, after=str(passed + limit)) if more else None
        body = {"table": name, "source_table": found.target.source_table, "key": key, "rejected": found.rejected}
        body["notes"] = list(found.notes)
        return _json({**body, "changes": [plain(told(entry)) for entry in entries], "next": following})

    def _timeline(self, request: Request) -> Response:
        _, name, _, *key = segments(request)
        asked = Asked.of(request)
        asked.refuse_others("limit", "after")
        limit, passed = asked.limit(self._most), asked.passed()
        found = self._reads.history(name, key)
        newest = list(reversed(found.entries))
        earlier = link(request, after=str(passed + limit)) if passed + limit < len(newest) else None
        shown = newest[passed : passed + limit]
        raw = request.scope["raw_path"].decode("ascii").replace("/timeline/", "/history/", 1)
        return Response(timeline(found, key, shown, raw, earlier), 200, page_headers(), HTML)


def _described(target: Target) -> dict[str, Any]:
    return {**asdict(target), "key": list(target.key)}


def _told(name: str, page: Page, following: str | None) -> dict[str, Any]:
    rows = [{column: plain(value) for column, value in row.items()} for row in plain_rows(page.rows)]
    return {"table": name, "rows": rows, "next": following, "notes": list(page.notes)}


def _json(said: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(said, enc_hook=str), 200, {**SAFE, **(headers or {})}, JSON)


def _arrow(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def _accepted(request: Request, *forms: str) -> str:
    """The form that the caller likes best of these, the first where it says nothing."""
    wanted = _preferred(request.headers.get("accept", ""))
    for media in wanted or ["*/*"]:
        for form in forms:
            if media in ("*/*", form, f"{form.partition('/')[0]}/*"):
                return form
    raise Problem(406, "the answer has none of the forms that `Accept` names", f"There are: {', '.join(forms)}.")


def _preferred(accept: str) -> Sequence[str]:
    """Media types, best first; those of quality 0 left out."""
    found = []
    for at, part in enumerate(accept.split(",")):
        media, *parameters = (text.strip().lower() for text in part.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            found.append((-float(quality), at, media))
        except ValueError:
            continue
    return [media for quality, _, media in sorted(found) if media and quality < 0]
