"""The status page: `/` for people, `/status.json`, `/metrics`, `/livez`, `/readyz` for machines, POST for control."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from replicator.domain.errors import ReplicatorError
from replicator.domain.plain_values import format_count
from replicator.ports.runtime import Views
from replicator.ports.source import Pace

from .http_thread import ApplicationServer, has_token, list_local_hosts


class MetricsText(Protocol):
    """Source of the metrics page."""

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""


class PageOptions(BaseModel):
    """`address`: HOST:PORT. Without `token`, only requests to host names of this machine are accepted."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    address: str = "127.0.0.1:8090"
    token: SecretStr | None = Field(None, min_length=1)


class PageMonitor:
    """`ports.runtime.Server` over HTTP, in its own thread."""

    def __init__(self, options: Mapping[str, Any], metrics: MetricsText) -> None:
        self._options = PageOptions.model_validate(dict(options))
        self._metrics = metrics
        self._serving = ApplicationServer(self._options.address, "http")

    def start(self, served: Views) -> str:
        return self._serving.start(self.app(served))

    def close(self) -> None:
        self._serving.close()

    def app(self, views: Views) -> Starlette:
        """The application, for a server or a test client."""
        hosts = list_local_hosts(self._options.address) if self._options.token is None else ["*"]
        routes = [
            Route("/", self._guard(lambda _: HTMLResponse(render(views.status())))),
            Route("/status.json", self._guard(lambda _: JSONResponse(views.status()))),
            Route("/metrics", self._guard(lambda _: Response(self._metrics.text(), media_type="text/plain; version=0.0.4"))),
            Route("/livez", lambda _: _render_health(views.alive())),
            Route("/healthz", lambda _: _render_health(views.alive())),
            Route("/readyz", lambda request: self._check_ready(views, request)),
            Route("/lanes/{lane:path}", self._guard(lambda request: _handle_control(views, request)), methods=["POST"]),
        ]
        return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)])

    def _check_ready(self, views: Views, request: Request) -> Response:
        """The readiness, with one reason per line. Reasons name lanes, so only callers with access get them."""
        status = views.status()
        return _render_health(bool(status["ready"]), () if self._is_refused(request) else status.get("unready", ()))

    def _is_refused(self, request: Request) -> bool:
        token = self._options.token
        return token is not None and not has_token(request, token.get_secret_value())

    def _guard(self, view: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def check(request: Request) -> Response:
            if self._is_refused(request):
                return JSONResponse({"error": "a token is needed: Authorization: Bearer ..."}, status_code=401)
            return view(request)

        return check


def _render_health(good: bool, reasons: Sequence[str] = ()) -> Response:
    text = "ok\n" if good else "".join(f"{line}\n" for line in ("not ok", *reasons))
    return Response(text, status_code=200 if good else 503, media_type="text/plain")


def _handle_control(views: Views, request: Request) -> Response:
    """POST /lanes/LANE?action=pause. The required header blocks forms of other sites, which cannot set headers."""
    if "x-replicator" not in request.headers:
        return JSONResponse({"error": "the header X-Replicator is missing"}, status_code=403)
    try:
        action = request.query_params.get("action", "")
        views.control(action, request.path_params["lane"], request.query_params.get("until"))
    except ReplicatorError as problem:
        body = {"error": problem.sentence, "next_step": problem.next_step, "code": int(problem.exit_code)}
        return JSONResponse(body, status_code=409)
    return JSONResponse({"ok": True})


# The page as one self-contained HTML document: no script, all values escaped, readable at any width.

STYLE = """
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif}
body{margin:0 auto;max-width:70rem;padding:1rem}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #8884}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.running{color:#087f3a}.suspended{color:#c22}.retrying,.paused,.catching_up{color:#a60}
.wide{overflow-x:auto}
@media (prefers-color-scheme:dark){.running{color:#5d9}.suspended{color:#f88}.retrying,.paused,.catching_up{color:#fc6}}
"""
NUMBERS = ("lag_records", "lag_seconds", "applied", "rejected", "dead_letters")
COLUMNS = ("id", "table", "policy", "status", *NUMBERS, "error")


def render(status: Mapping[str, Any]) -> str:
    """The page for one status. It reloads itself every two seconds."""
    rows = ""
    for lane in status.get("lanes", ()):
        cells = "".join(f"<td{_cell_class(c)}>{_render_cell(lane, c)}</td>" for c in COLUMNS)
        rows += f'<tr class="{escape(str(lane.get("status", "")))}">{cells}</tr>'
    paced = [source for source in status.get("sources", ()) if source.get("pace")]
    paces = "".join(f"<p>{escape(Pace(**source['pace']).to_text(source['name']))}</p>" for source in paced)
    differences = ""
    for one in status.get("comparisons", ()):
        count = one["missing"] + one["extra"] + one["different"]
        if count or one["error"]:
            result = one["error"] or f"{format_count(count, 'row')} different"
            line = f"lane {one['lane']}, compared {one['begun']}: {result}"
            differences += f"<p class=suspended>{escape(line)}</p>"
    heads = "".join(f"<th{_cell_class(c)}>{c.replace('_', ' ')}</th>" for c in COLUMNS)
    name = escape(str(status.get("pipeline", "")))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<meta http-equiv=refresh content=2><title>replicator {name}</title><style>{STYLE}</style>"
        f"<h1>replicator: {name}</h1>{_render_away(status)}{_render_warnings(status)}{paces}{differences}"
        f"<div class=wide><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
        "<p><a href=/status.json>status.json</a> <a href=/metrics>metrics</a></p></html>"
    )


def _render_away(status: Mapping[str, Any]) -> str:
    """A line per unavailable source, per slow call of a source or sink, and for a slow call of the dead-letter store."""
    away = [source for source in status.get("sources", ()) if source.get("away_since")]
    lines = [f"source {s['name']} is away since {s['away_since']}: {s['error']}" for s in away]
    calls = {lane["sink"]: lane["call"] for lane in status.get("lanes", ()) if lane.get("call")}
    lines += [
        f"source {source['name']}: {source['call']['doing']}, since {source['call']['since']}"
        for source in status.get("sources", ())
        if source.get("call")
    ]
    lines += [f"sink {sink}: {call['doing']}, since {call['since']}" for sink, call in calls.items()]
    if call := status.get("dead_letter_call"):
        lines.append(f"dead-letter store: {call['doing']}, since {call['since']}: {call['error'] or 'no answer yet'}")
    return "".join(f"<p class=suspended>{escape(line)}</p>" for line in lines)


def _render_warnings(status: Mapping[str, Any]) -> str:
    """A line per source whose connector may lose rows, and per kind of records rejected since the start. Also one per group
    of dead letters that no lane row shows."""
    losses = [(source["name"], source["row_loss"]) for source in status.get("sources", ()) if source.get("row_loss")]
    lines = [f"source {name}: {loss['sentence']} {loss['next_step']}" for name, loss in losses]
    lines += [
        f"source {one['source']}: {format_count(one['records'], 'record')} of table {one['table'] or '?'} "
        f"rejected since the start ({one['code']}, stage {one['stage']})"
        for one in status.get("rejects", ())
    ]
    lane_tables = {lane["table"] for lane in status.get("lanes", ())}
    lines += [
        f"source {group['source']}: {format_count(group['open'], 'open dead letter')} of table {group['table'] or '?'}"
        for group in status.get("dead_letters") or ()
        if not group["lane"] and group["table"] not in lane_tables - {""}
    ]
    return "".join(f"<p class=retrying>{escape(line)}</p>" for line in lines)


def _cell_class(column: str) -> str:
    return " class=n" if column in NUMBERS else ""


def _render_cell(lane: Mapping[str, Any], column: str) -> str:
    value = lane.get(column, (lane.get("counts") or {}).get(column))
    if value is None:
        return ""
    return escape(f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else str(value))
