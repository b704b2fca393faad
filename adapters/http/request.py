"""Requests of the read side: key, filters and parameters from their URLs, and errors as problem documents."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from replicator.domain.errors import EnvironmentProblem, ReplicatorError, Retryable
from replicator.domain.read_query import InvalidReadQuery, ReadTimeout, parse_time
from replicator.ports.reads import Busy, Filter, NotFound, PageRequest

LIMIT = 100
MOST_FILTERS = 100
FILTER = re.compile(r"(.*)\[(\w*)\]", re.DOTALL)
WORDS = ("limit", "after", "as_of", "from_log")
"""Parameters that are not columns. A filter on a column of that name needs a comparison: `limit[eq]`."""


@dataclass
class RowsRequest:
    """The parameters of a request, each once, and its filters."""

    words: dict[str, str] = field(default_factory=dict)
    filters: list[Filter] = field(default_factory=list)

    @classmethod
    def from_request(cls, request: Request) -> RowsRequest:
        """Parse the URL of a request. HttpProblem if that fails."""
        query = cls()
        for name, text in _read_pairs(request):
            match = FILTER.fullmatch(name)
            column, operator = (name, None) if match is None else (match[1], match[2])
            if operator is not None or name not in WORDS:
                query.filters.append(Filter(column, operator or "eq", text))
            elif name in query.words:
                raise HttpProblem(400, f"`{name}` is given twice", "Say it once.")
            else:
                query.words[name] = text
        return query

    def refuse_others(self, *words: str) -> None:
        """Raise HttpProblem for filters and for all parameters except `words`."""
        others = [word for word in self.words if word not in words] + [one.column for one in self.filters]
        if others:
            names = f"There are: {', '.join(words)}." if words else "There are none."
            raise HttpProblem(400, f"the parameter {others[0]!r} is unknown here", names)

    def read_limit(self, most: int) -> int:
        """The maximum number of results."""
        text = self.words.get("limit", str(min(LIMIT, most)))
        if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
            raise HttpProblem(400, f"`limit` is not a number from 1 to {most}", "Read several pages.")
        return int(text)

    def read_skipped(self) -> int:
        """The number of changes on earlier pages."""
        text = self.words.get("after", "0")
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise HttpProblem(400, "`after` is not a number", "It is the number of changes on the pages before.")
        return int(text)

    def to_wanted(self, most: int, key: tuple[str, ...] = ()) -> PageRequest:
        """The request for a page of rows."""
        text = self.words.get("from_log", "false")
        if text not in ("true", "false"):
            raise HttpProblem(400, "`from_log` is neither true nor false", "Use one of these two.")
        try:
            as_of = parse_time(self.words["as_of"]) if "as_of" in self.words else None
        except ValueError:
            example = "Write it as 2026-05-15T12:00:00Z; a plus is %2B in a URL."
            raise HttpProblem(400, "`as_of` is not a time", example) from None
        return PageRequest(self.read_limit(most), tuple(self.filters), key, as_of, text == "true", self.words.get("after"))


def _read_pairs(request: Request) -> list[tuple[str, str]]:
    try:
        query = request.scope["query_string"].decode("ascii")
        return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MOST_FILTERS)
    except ValueError:
        raise HttpProblem(
            400, f"the parameters are not UTF-8, or more than {MOST_FILTERS}", "Percent-encode them, and ask for less."
        ) from None


def path_segments(request: Request) -> list[str]:
    """The segments of the path, decoded one by one: a key may contain slashes. HttpProblem if one is not UTF-8."""
    try:
        raw = request.scope["raw_path"].partition(b"?")[0]
        return [unquote_to_bytes(part).decode() for part in raw.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise HttpProblem(400, "the path is not UTF-8", "Percent-encode its bytes.") from None


def make_link(request: Request, **words: str) -> str:
    """The request's URL without host, with `words` in place of parameters of the same name."""
    pairs = [(name, text) for name, text in _read_pairs(request) if name not in words]
    path = request.scope["raw_path"].partition(b"?")[0].decode("ascii")
    return f"{path}?{urlencode([*pairs, *words.items()])}"


# Errors in the format of RFC 9457: application/problem+json.

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
        fields: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body = msgspec.json.encode(fields | {"detail": self.detail, "next_step": self.next_step})
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
