"""Logs on stderr: lines for people on a terminal, JSON objects otherwise. Never a row's values."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

LEVELS = {-1: logging.ERROR, 0: logging.INFO}


def configure(verbosity: int) -> None:
    """Set the log up once, for the whole program. `verbosity` -1 is quiet, 0 normal, above that everything."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            where_it_failed,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(verbosity, logging.DEBUG)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def where_it_failed(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An exception as its classes and places only: its words and its variables may hold rows or secrets. What people need to
    know of it is in the event's `sentence`."""
    given = event.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
    seen: set[int] = set()
    chain = []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        chain.append({"class": type(error).__qualname__, "at": _places(error.__traceback__)})
        error = error.__cause__ or error.__context__
    if chain:
        event["exception"] = chain
    return event


def _places(trace: TracebackType | None) -> list[str]:
    return [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(trace)]
