"""Settings of the process: logs, open files, and the garbage collector."""

from __future__ import annotations

import gc
import logging
import resource
import sys
import threading
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from replicator.domain.plain_values import to_printable

# Logs on stderr: lines for people on a terminal, JSON objects otherwise. Never a row's values.

NORMAL_LEVEL = logging.INFO
"""The log level of a daemon. Other commands log warnings only."""
MAX_EQUAL_LINES, BURST_SECONDS = 20, 10.0
"""Maximum number of equal lines, and the seconds in which they are counted."""
MOST_LINES = 10_000
"""Maximum number of different lines that are counted."""


def configure_logs(verbosity: int, normal: int = NORMAL_LEVEL) -> None:
    """Configure logging for the whole program. Libraries and adapters that use `logging` get the same format.

    `verbosity`: -1 errors, 0 `normal`, 1 everything, but only warnings of libraries, 2 everything.
    """
    level = {-1: logging.ERROR, 0: normal}.get(verbosity, logging.DEBUG)
    _log_to_stderr(level)
    # Records of `logging`: those of adapters from `level` on.
    root = logging.getLogger()
    root.handlers = [*(h for h in root.handlers if not isinstance(h, _ForwardHandler)), _ForwardHandler(level)]
    root.setLevel(level if verbosity > 1 else max(level, logging.WARNING))
    for package in ("adapters", "replicator"):
        logging.getLogger(package).setLevel(level)


def log_to_stderr_by_default(level: int = logging.WARNING) -> None:
    """For programs that embed a pipeline: log the pipeline to stderr from `level` on, unless `structlog` is
    configured.

    Other loggers stay unchanged.
    """
    if not structlog.is_configured():
        _log_to_stderr(level)


def _log_to_stderr(level: int) -> None:
    people: list[Any] = [escape_control_characters, structlog.dev.ConsoleRenderer()]
    renderers = people if sys.stderr.isatty() else [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            RepeatedLines(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            reduce_exception,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looks up stderr for each logger, because programs that run commands in process may replace it.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


class _ForwardHandler(logging.Handler):
    """Forwards records of `logging` to `structlog`."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        log = structlog.get_logger()
        log.log(record.levelno, record.getMessage(), logger=record.name, **({"exc_info": error} if error else {}))


class RepeatedLines:
    """A processor that passes `MAX_EQUAL_LINES` equal lines within `BURST_SECONDS` and drops the others.

    The first line after that time adds a summary of the dropped lines. Lines are equal if their level, event and
    other text fields are equal; numbers may differ.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[tuple[str, str], ...], int] = {}
        self._ends = 0.0

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The event; DropEvent for a dropped line."""
        line = tuple((name, value) for name, value in sorted(event.items()) if isinstance(value, str))
        with self._lock:
            ended = {} if monotonic() < self._ends and len(self._counts) < MOST_LINES else self._counts
            if ended or not self._counts:
                self._counts, self._ends = {}, monotonic() + BURST_SECONDS
            count = self._counts[line] = self._counts.get(line, 0) + 1
        for fields, times in ended.items():
            if times > MAX_EQUAL_LINES:
                again = {f"line_{name}" if name in ("event", "level") else name: text for name, text in fields}
                structlog.get_logger().warning("lines were left out", times=times - MAX_EQUAL_LINES, **again)
        if count > MAX_EQUAL_LINES:
            raise structlog.DropEvent
        return event


def reduce_exception(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace an exception by its classes and code positions. Its message and variables may contain rows or
    secrets; the event's `sentence` describes it."""
    exception = event.pop("exc_info", None)
    error = exception if isinstance(exception, BaseException) else sys.exc_info()[1] if exception else None
    seen: set[int] = set()
    chain = []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        lines = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)]
        chain.append({"class": type(error).__qualname__, "at": lines})
        error = error.__cause__ or error.__context__
    if chain:
        event["exception"] = chain
    return event


def escape_control_characters(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event as one line for a terminal, with its exception in the lines below.

    Table names may contain terminal control characters or line breaks. Other values than text are printed with
    `repr`, which escapes them.
    """
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = to_printable(value).replace("\n", "\\n")
    if chain := event.get("exception"):
        event["exception"] = "\n".join(f"{link['class']} at {', '.join(link['at'])}" for link in chain)
    return event


# The limit of open files for long-running processes.

WANTED_LIMIT = 65_536


def raise_limit() -> None:
    """Raise the soft limit of open files towards the hard limit. Services often start with 1,024, and a lane needs
    several."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_LIMIT if hard == resource.RLIM_INFINITY else min(hard, WANTED_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# The garbage collector settings of the daemon, set once after everything is built.

GENERATIONS = (100_000, 50, 100)


def tune_collector() -> None:
    """Prevent the garbage collector from scanning the whole heap for every few hundred short-lived objects.

    Each batch of messages makes tens of thousands of tuples (headers) that reference counting frees at once. With
    Python's default thresholds a third of all CPU time went into collections that found nothing (0.7 s of 2.25 s
    per 100,000 records). Objects loaded so far stay, so the collector ignores them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GENERATIONS)
