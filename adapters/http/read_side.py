"""Routes of the read side, and its pages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from replicator.domain.plain_values import format_count, to_json_value
from replicator.domain.plain_values import to_rows as plain_rows
from replicator.domain.timeline import HistoryEntry, to_json
from replicator.ports.reads import ReadSide, ReadTarget, RowHistory

from .http_thread import has_password, has_token
from .openapi import build_document
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
                if self._token and not has_token(request, self._token) and not has_password(request, self._token):
                    next_step = "A browser asks for it: it is the password, under any name."
                    challenge = {"www-authenticate": CHALLENGE}
                    raise HttpProblem(401, "a token is needed: Authorization: Bearer ...", next_step, challenge)
                return view(request)
            except Exception as error:
                problem = to_problem(error)
                if page and problem.status != 401:
                    return Response(render_failure(problem), problem.status, {**page_headers(), **problem.headers}, HTML)
                return problem.to_response()

        return answer

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
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, page.rows.schema) as stream:
                stream.write_table(page.rows)
            return Response(bytes(sink.getvalue()), 200, {**SAFE, "vary": "accept", **headers}, ARROW)
        rows = [{column: to_json_value(value) for column, value in row.items()} for row in plain_rows(page.rows)]
        body = {"table": name, "rows": rows, "next": following, "notes": list(page.notes)}
        return _to_response(body, {"vary": "accept", **headers})

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
        page = newest[passed : passed + limit]
        raw = request.scope["raw_path"].decode("ascii").replace("/timeline/", "/history/", 1)
        return Response(render_timeline(history, key, page, raw, earlier), 200, page_headers(), HTML)


def _describe_target(target: ReadTarget) -> dict[str, Any]:
    return {**asdict(target), "key": list(target.key)}


def _to_response(body: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body, enc_hook=str), 200, {**SAFE, **(headers or {})}, JSON)


def _choose_form(request: Request, *forms: str) -> str:
    """The media type of `forms` that the caller prefers; the first if it has no `Accept` header."""
    media_ranges = []
    for at, part in enumerate(request.headers.get("accept", "").split(",")):
        media, *parameters = (text.strip().lower() for text in part.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        try:
            media_ranges.append((-float(quality), at, media))
        except ValueError:
            continue
    # The best first. A caller refuses media types of quality 0.
    media_types = [media for quality, _, media in sorted(media_ranges) if media and quality < 0]
    for media in media_types or ["*/*"]:
        for form in forms:
            if media in ("*/*", form, f"{form.partition('/')[0]}/*"):
                return form
    raise HttpProblem(406, "the answer has none of the forms that `Accept` names", f"There are: {', '.join(forms)}.")


# HTML pages. Each is self-contained: no script, no external resources, all values escaped.

STYLE = """
:root{color-scheme:light dark;--line:#8885;--soft:#8882;--dim:#666;--c:#087f3a;--u:#1d5fbf;--d:#b3261e;--r:#6b5bd2;--t:#850
;font:15px/1.5 system-ui,sans-serif}
@media (prefers-color-scheme:dark){:root{--dim:#aaa;--c:#5d9;--u:#8bf;--d:#f88;--r:#b9aefc;--t:#fc6}}
body{margin:0 auto;max-width:60rem;padding:1rem 1rem 4rem}
h1{font-size:1.4rem;margin:.5rem 0 0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2rem 0 .5rem}
.dim{color:var(--dim)}
code{font:13px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
ol{list-style:none;margin:1.5rem 0 0;padding:0 0 0 1.4rem;border-left:2px solid var(--line)}
ol>li{position:relative;margin:0 0 1.2rem;padding:.1rem 0 0}
ol>li::before{content:"";position:absolute;left:calc(-1.4rem - 7px);top:.5rem;width:12px;height:12px;border-radius:50%;
background:var(--of)}
.c{--of:var(--c)}.u{--of:var(--u)}.d{--of:var(--d)}.r{--of:var(--r)}.t{--of:var(--t)}
.what{color:var(--of);font-weight:600}
time{font-variant-numeric:tabular-nums}
.where{font-size:.85rem;color:var(--dim);overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;margin:.4rem 0 0;width:100%;table-layout:fixed}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere;
white-space:pre-wrap}
th{font-weight:600;width:25%}
td bdi{display:inline-block;max-width:100%;max-height:12rem;overflow:auto;vertical-align:top}
thead th{font-size:.8rem;color:var(--dim);font-weight:400}
del{text-decoration:none;color:var(--d)}ins{text-decoration:none;color:var(--c)}
i{color:var(--dim)}
summary{cursor:pointer;color:var(--dim)}
ul{padding-left:1.2rem}
"""
DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
WORDS = {"c": "created", "u": "updated", "d": "deleted", "r": "read by a snapshot", "t": "truncated"}
SHOWN = 2_000
"""Maximum characters of a value on a page."""


def page_headers() -> dict[str, str]:
    """Security headers: a browser may only show the page."""
    return {**SAFE, "content-security-policy": POLICY, "x-frame-options": "DENY"}


def render_timeline(
    row: RowHistory, key: Sequence[str], page: Sequence[HistoryEntry], json_url: str, earlier: str | None
) -> str:
    """The timeline page of a row. `page`: the changes on this page, newest first."""
    target, count = row.target, len(row.entries)
    title = ", ".join(f"{name} = {value}" for name, value in zip(target.key, key, strict=False)) or " / ".join(key)
    ended = row.entries[-1].after is None
    now = "The row is gone." if ended else "The row is there now."
    rejected = f"<p>Left out: {format_count(row.rejected, 'rejected record')} of the table.</p>" if row.rejected else ""
    notes = "".join(f"<p>{_escape_text(note)}</p>" for note in row.notes)
    more = f'<p><a href="{escape(earlier)}">Earlier changes</a></p>' if earlier else ""
    items = "".join(_render_item(entry) for entry in page)
    return _render_page(
        f"{target.name} {title}",
        f"<h1>{_escape_text(title)}</h1><p class=dim>{_escape_text(target.name)}, a copy of "
        f"{_escape_text(str(target.source_table))}: "
        f"{format_count(count, 'change')}, newest first. {now} Times are those of the source, in UTC. "
        f'<a href="{escape(json_url)}">JSON</a></p>{rejected}{notes}<ol>{items}</ol>{more}',
    )


def _render_item(entry: HistoryEntry) -> str:
    at = "(no time)" if entry.at is None else str(entry.at).removesuffix("+00:00")
    transaction = f"transaction {_escape_text(entry.transaction)}, " if entry.transaction else ""
    where = f"{transaction}record {_escape_text(f'{entry.topic}:{entry.partition}:{entry.offset}')}"
    change = escape(WORDS.get(entry.operation, entry.operation))
    if entry.moved_away:
        change = "got another key"
    elif entry.moved_from is not None:
        old_key = (f"{_escape_text(name)} = {_render_cell(value)}" for name, value in entry.moved_from.items())
        change = f"had the key {', '.join(old_key)}"
    head = f"<span class=what>{change}</span> <time>{escape(at)}</time> <div class=where>{where}</div>"
    return f"<li class={escape(entry.operation)}>{head}{_render_values(entry)}</li>"


def _render_values(entry: HistoryEntry) -> str:
    before, after = entry.before, entry.after
    if before is not None and after is not None:
        if not entry.changed:
            return "<p class=dim>No value on this page has changed.</p>"
        cells = ""
        for name in entry.changed:
            old = _render_cell(before[name]) if name in before else "<i>not known</i>"
            new = _render_cell(after.get(name))
            cells += f"<tr><th scope=row>{_escape_text(name)}</th><td><del>{old}</del></td><td><ins>{new}</ins></td></tr>"
        heads = "<thead><tr><th>column</th><th>before</th><th>after</th></tr></thead>"
        return f"<div class=wide><table>{heads}<tbody>{cells}</tbody></table></div>"
    row = before if after is None else after
    if not row:
        return ""
    cells = "".join(
        f"<tr><th scope=row>{_escape_text(name)}</th><td>{_render_cell(value)}</td></tr>" for name, value in row.items()
    )
    title = "What it was" if after is None else "The row"
    attribute = "" if after is None else " open"
    return f"<details{attribute}><summary>{title}</summary><div class=wide><table>{cells}</table></div></details>"


def _render_cell(value: Any) -> str:
    if value is None:
        return "<i>NULL</i>"
    plain = to_json_value(value)
    text = msgspec.json.encode(plain, enc_hook=str).decode() if isinstance(plain, bool | list | dict) else str(plain)
    if not text:
        return "<i>empty</i>"
    cut = f"{_escape_text(text[:SHOWN])} <i>... {len(text):,} characters</i>" if len(text) > SHOWN else _escape_text(text)
    return cut if text == text.strip() else f"{cut}<i> (with spaces around it)</i>"


def _escape_text(text: str) -> str:
    """The escaped text with its own direction: a right-to-left value cannot turn the text around it."""
    return f"<bdi>{escape(text.replace(chr(0), chr(0xFFFD)))}</bdi>"


def render_docs(document: Mapping[str, Any], targets: Sequence[ReadTarget]) -> str:
    """The page with the tables and the requests."""
    tables = "".join(_render_table(target) for target in targets) or "<p class=dim>None has been written yet.</p>"
    calls = "".join(
        _render_call(path, method, call) for path, methods in document["paths"].items() for method, call in methods.items()
    )
    return _render_page(
        "replicator: tables",
        f"<h1>Tables</h1>{tables}<h2>Requests</h2><p>The same for programs: <a href=/openapi.json>openapi.json</a> "
        f"(OpenAPI {escape(document['openapi'])}).</p>{calls}",
    )


def _render_table(target: ReadTarget) -> str:
    url = f"/tables/{quote(target.name, safe='')}"
    parts = [f"of {_escape_text(target.source_table)}"] if target.source_table else []
    parts += [f"policy {_escape_text(target.policy)}"] if target.policy else []
    parts += [f"key {_escape_text(', '.join(target.key))}"] if target.key else ["no key"]
    links = f'<a href="{url}">columns</a> <a href="{url}/rows">rows</a>'
    return f"<p><b>{_escape_text(target.name)}</b> <span class=dim>{', '.join(parts)}</span><br>{links}</p>"


def _render_call(path: str, method: str, call: Mapping[str, Any]) -> str:
    parameters = ""
    for one in call.get("parameters", ()):
        if one["name"] == "table":
            continue
        parts = enumerate(one.get("description", "").split("`"))  # Backticks mark code.
        prose = "".join(f"<code>{escape(part)}</code>" if at % 2 else escape(part) for at, part in parts)
        schema = one["schema"]
        kind = escape(str(schema.get("format", schema["type"])))
        bounds = f" {schema['minimum']} to {schema['maximum']:,}" if "maximum" in schema else ""
        default = f", {schema['default']} when nothing is said" if "default" in schema else ""
        parameters += f"<li><code>{escape(one['name'])}</code> {prose} <span class=dim>({kind}{bounds}{default})</span></li>"
    forms = ", ".join(f"<code>{escape(media)}</code>" for media in call["responses"]["200"]["content"])
    return (
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2><p>{escape(call['summary'])}: {forms}</p>"
        f"<ul>{parameters}</ul>"
    )


def render_failure(problem: HttpProblem) -> str:
    """The page for an error."""
    return _render_page(
        "replicator",
        f"<h1>{_escape_text(problem.detail)}</h1><p>{_escape_text(problem.next_step)}</p><p><a href=/docs>Tables</a></p>",
    )


def _render_page(title: str, body: str) -> str:
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>"
    )
