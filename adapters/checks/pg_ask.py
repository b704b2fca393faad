"""A short-lived connection for questions, and what it means when there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from replicator.ports.diagnosis import Diagnosis

from ..sql.pg_errors import translated

TIMEOUT_SECONDS = 5
Look = Callable[[psycopg.Connection], Iterable[Diagnosis]]


def asking(name: str, dsn: str, look: Look) -> Iterator[Diagnosis]:
    """What `look` finds over a connection to `dsn`; when there is none, or it breaks, that as an error.

    The server's own sentence is given, which never holds the password.
    """
    try:
        with psycopg.connect(
            dsn,
            connect_timeout=TIMEOUT_SECONDS,
            application_name="replicator doctor",
            autocommit=True,
            options=f"-c statement_timeout={TIMEOUT_SECONDS}s",
        ) as connection:
            yield from look(connection)
    except psycopg.Error as error:
        problem = translated(error, "connecting")
        step = problem.next_step or "Start the server, or correct host and port in `dsn`."
        yield Diagnosis("error", name, problem.sentence, step)


def ask(connection: psycopg.Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return connection.execute(query.encode(), parameters or None).fetchall()
