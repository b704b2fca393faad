"""The HTTP server for events and rows: `POST /events` if there is an event store, and the read side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from replicator.domain.errors import ConfigProblem, ReplicatorError, Retryable
from replicator.domain.events import AppendedEvent, InvalidEvent, NewEvent, VersionConflict, json_to_texts, make_event
from replicator.domain.plain_values import is_loopback
from replicator.ports.reads import ReadSide
from replicator.ports.runtime import Emit, Endpoints

from .http_thread import ApplicationServer, has_token, list_local_hosts
from .read_side import EncodedSlashes, ReadSideRoutes
from .request import refuse_unrouted

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
    """`ports.runtime.Server` over HTTP; options as in `HttpServerOptions`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = HttpServerOptions.model_validate(dict(options))
        self._token = self._options.token.get_secret_value() if self._options.token else ""
        self._serving = ApplicationServer(self._options.address, "serve", DRAIN_SECONDS)

    def start(self, served: Endpoints) -> str:
        return self._serving.start(self.app(served.emit, served.reads))

    def close(self) -> None:
        self._serving.close()

    def app(self, emit: Emit | None, reads: ReadSide) -> Starlette:
        """The application, for a server or a test client."""
        if emit is not None and not self._token:
            raise ConfigProblem(
                "`serve` accepts events from anyone who can reach it, so it needs a token",
                next_step='Add one, for example serve: {token: "${EVENTS_TOKEN}"}',
            )
        if not self._token and not is_loopback(self._options.address):
            raise ConfigProblem(
                f"`serve` shows rows to anyone who can reach {self._options.address}, so it needs a token there",
                next_step='Add one, for example serve: {token: "${SERVE_TOKEN}"}, or listen on 127.0.0.1.',
            )
        routes = [
            Route("/livez", lambda _: Response("ok\n", media_type="text/plain")),
            *ReadSideRoutes(reads, self._token, self._options.max_rows, takes_events=emit is not None).routes(),
            *(Commands(emit, self._token, self._options.message_bytes).routes() if emit else ()),
        ]
        slashes = Middleware(EncodedSlashes)
        host_check = Middleware(TrustedHostMiddleware, allowed_hosts=list_local_hosts(self._options.address))
        hosts = [] if self._token else [host_check]
        return Starlette(routes=routes, middleware=[*hosts, slashes], exception_handlers={HTTPException: refuse_unrouted})


# The command side: `POST /events` stores an event.

RETRY_SECONDS = "1"


class Body(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The body of a request."""

    aggregate_id: str
    aggregate_type: str
    event_type: str
    event_data: dict[str, msgspec.Raw]
    metadata: dict[str, msgspec.Raw] | None = None
    expected_version: int | None = None
    event_id: str | None = None


_body = msgspec.json.Decoder(Body).decode


class RequestRefused(Exception):
    """Answers the request with this HTTP status and error."""

    def __init__(self, status: int, error: str, **more: object) -> None:
        super().__init__(error)
        self.status = status
        self.said = {"error": error, **more}


class Commands:
    """Stores events from callers with the token. A body has at most `message_bytes`."""

    def __init__(self, emit: Emit, token: str, message_bytes: int) -> None:
        self._emit, self._token, self._most = emit, token, message_bytes

    def routes(self) -> list[Route]:
        """The routes of the command side."""
        return [Route("/events", self._post, methods=["POST"])]

    async def _post(self, request: Request) -> Response:
        try:
            if not has_token(request, self._token):
                raise RequestRefused(401, "a token is needed: Authorization: Bearer ...")
            # Pages of other sites cannot send this type without a CORS preflight.
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise RequestRefused(415, "the body is to be JSON: Content-Type: application/json")
            body = bytearray()
            async for piece in request.stream():
                body += piece
                if len(body) > self._most:
                    raise RequestRefused(413, f"the body is longer than {self._most} bytes (limits.message_bytes)")
            new = _to_event(bytes(body))
            (entry,) = await run_in_threadpool(_store_event, self._emit, new)
        except RequestRefused as refused:
            headers = {"retry-after": RETRY_SECONDS} if refused.status == 503 else None
            return _to_response(refused.said, refused.status, headers)
        return _to_response({**asdict(entry.event), "is_new": entry.is_new}, 201 if entry.is_new else 200)


def _to_event(body: bytes) -> NewEvent:
    try:
        fields = _body(body)
        data = json_to_texts("event_data", fields.event_data)
        more = None if fields.metadata is None else json_to_texts("metadata", fields.metadata)
        identity = fields.aggregate_id, fields.aggregate_type, fields.event_type
        return make_event(*identity, data, more, expected_version=fields.expected_version, event_id=fields.event_id)
    except msgspec.ValidationError as wrong:
        raise RequestRefused(422, str(wrong)) from None
    except InvalidEvent as wrong:
        raise RequestRefused(422, wrong.sentence) from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise RequestRefused(400, "the body is not JSON") from None


def _store_event(emit: Emit, new: NewEvent) -> list[AppendedEvent]:
    try:
        return list(emit([new]))
    except VersionConflict as conflict:
        raise RequestRefused(409, conflict.sentence, expected=conflict.expected, found=conflict.found) from None
    except InvalidEvent as wrong:
        raise RequestRefused(422, wrong.sentence) from None
    except Retryable as away:
        raise RequestRefused(503, "the events cannot be stored now; repeat the request with the same event_id") from away
    except ReplicatorError as problem:
        raise RequestRefused(500, f"the events cannot be stored ({type(problem).__name__})") from problem


def _to_response(body: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")
