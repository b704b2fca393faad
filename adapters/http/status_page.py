"""The status page: `/` for people, `/status.json`, `/metrics`, `/livez`, `/readyz` for machines, POST for control."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from replicator.domain.errors import ReplicatorError
from replicator.ports.monitor import Views

from .http_thread import ApplicationServer, has_token, list_local_hosts
from .status_html import render


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
    """`ports.monitor.Monitor` over HTTP, in its own thread."""

    def __init__(self, options: Mapping[str, Any], metrics: MetricsText) -> None:
        self._options = PageOptions.model_validate(dict(options))
        self._metrics = metrics
        self._serving = ApplicationServer(self._options.address, "http")

    def start(self, views: Views) -> str:
        return self._serving.start(self.app(views))

    def close(self) -> None:
        self._serving.close()

    def app(self, views: Views) -> Starlette:
        """The application, for a server or a test client."""
        hosts = list_local_hosts(self._options.address) if self._options.token is None else ["*"]
        guarded = self._guard
        routes = [
            Route("/", guarded(lambda _: HTMLResponse(render(views.status())))),
            Route("/status.json", guarded(lambda _: JSONResponse(views.status()))),
            Route("/metrics", guarded(lambda _: Response(self._metrics.text(), media_type="text/plain; version=0.0.4"))),
            Route("/livez", lambda _: _render_health(views.alive())),
            Route("/healthz", lambda _: _render_health(views.alive())),
            Route("/readyz", lambda request: self._check_ready(views, request)),
            Route("/lanes/{lane:path}", guarded(lambda request: _handle_control(views, request)), methods=["POST"]),
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
        said = {"error": problem.sentence, "next_step": problem.next_step, "code": int(problem.exit_code)}
        return JSONResponse(said, status_code=409)
    return JSONResponse({"ok": True})
