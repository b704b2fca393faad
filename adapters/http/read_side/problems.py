"""HTTP errors in the format of RFC 9457: application/problem+json."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from replicator.domain.errors import EnvironmentProblem, ReplicatorError, Retryable
from replicator.domain.read_query import InvalidReadQuery, ReadTimeout
from replicator.ports.read_side import Busy, NotFound

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = "1"
STATUS: tuple[tuple[type[ReplicatorError], int], ...] = (
    (InvalidReadQuery, 400),
    (NotFound, 404),
    (Busy, 503),
    (ReadTimeout, 504),
)
"""HTTP status of errors whose own sentence the caller gets."""
SAFE = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of all answers: no caching, no other sites, no guessing of the type."""


class HttpProblem(Exception):
    """Answers the request with this HTTP status, a sentence and the next step."""

    def __init__(self, status: int, detail: str, next_step: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.next_step, self.headers = status, detail, next_step, dict(headers or {})

    def to_response(self) -> Response:
        """The HTTP response."""
        said: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body = msgspec.json.encode(said | {"detail": self.detail, "next_step": self.next_step})
        return Response(body, self.status, {**SAFE, **self.headers}, MEDIA_TYPE)


def to_problem(error: Exception) -> HttpProblem:
    """The caller's view of an error. Details about servers and files go to the log only."""
    if isinstance(error, HttpProblem):
        return error
    for kind, status in STATUS:
        if isinstance(error, kind):
            return HttpProblem(status, error.sentence, error.next_step, _retry_headers(status))
    if isinstance(error, Retryable | EnvironmentProblem):
        log.warning("a target cannot be read: %s", error)
        return HttpProblem(
            503, "the table cannot be read now", "Repeat the request. The cause is in the log.", _retry_headers(503)
        )
    if isinstance(error, ReplicatorError):
        return HttpProblem(422, error.sentence, error.next_step)
    log.error("a request failed", exc_info=error)
    return HttpProblem(500, f"the request failed ({type(error).__name__})", "The cause is in the log.")


def _retry_headers(status: int) -> dict[str, str]:
    return {"retry-after": RETRY_SECONDS} if status == 503 else {}


def refuse_unrouted(_: Request, error: Exception) -> Response:
    """The answer to requests without a route."""
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    return HttpProblem(
        status, HTTPStatus(status).description or HTTPStatus(status).phrase, "/docs lists the paths.", headers
    ).to_response()
