"""The HTTP server for events and rows: `POST /events` if there is an event store, and the read side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route

from replicator.domain.addresses import is_loopback
from replicator.domain.errors import ConfigProblem
from replicator.ports.read_side import ReadSide
from replicator.ports.server import Emit

from .commands import Commands
from .http_thread import ApplicationServer, list_local_hosts
from .read_side import EncodedSlashes, ReadSideRoutes, refuse_unrouted

DRAIN_SECONDS = 30


class HttpServerOptions(BaseModel):
    """`address`: HOST:PORT. `token`: required from every caller. `max_rows`: maximum rows of an answer. `message_bytes`:
    maximum bytes of an event's body."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    address: str = "127.0.0.1:8091"
    token: SecretStr | None = Field(None, min_length=1)
    max_rows: int = Field(10_000, ge=1)
    message_bytes: int = Field(16 * 1024 * 1024, ge=1)


class HttpServer:
    """`ports.server.Server` over HTTP; options as in `HttpServerOptions`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = HttpServerOptions.model_validate(dict(options))
        self._token = self._options.token.get_secret_value() if self._options.token else ""
        self._serving = ApplicationServer(self._options.address, "serve", DRAIN_SECONDS)

    def start(self, emit: Emit | None, reads: ReadSide) -> str:
        return self._serving.start(self.app(emit, reads))

    def close(self) -> None:
        self._serving.close()

    def app(self, emit: Emit | None, reads: ReadSide) -> Starlette:
        """The application, for a server or a test client."""
        self._refuse_strangers(emit)
        routes = [
            Route("/livez", lambda _: Response("ok\n", media_type="text/plain")),
            *ReadSideRoutes(reads, self._token, self._options.max_rows, takes_events=emit is not None).routes(),
            *(Commands(emit, self._token, self._options.message_bytes).routes() if emit else ()),
        ]
        slashes = Middleware(EncodedSlashes)
        here = Middleware(TrustedHostMiddleware, allowed_hosts=list_local_hosts(self._options.address))
        hosts = [] if self._token else [here]
        return Starlette(routes=routes, middleware=[*hosts, slashes], exception_handlers={HTTPException: refuse_unrouted})

    def _refuse_strangers(self, emit: Emit | None) -> None:
        if self._token:
            return
        if emit is not None:
            raise ConfigProblem(
                "`serve` accepts events from anyone who can reach it, so it needs a token",
                next_step='Add one, for example serve: {token: "${EVENTS_TOKEN}"}',
            )
        if not is_loopback(self._options.address):
            raise ConfigProblem(
                f"`serve` shows rows to anyone who can reach {self._options.address}, so it needs a token there",
                next_step='Add one, for example serve: {token: "${SERVE_TOKEN}"}, or listen on 127.0.0.1.',
            )
