"""A short-lived PostgreSQL connection for checks."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psycopg

from replicator.ports.runtime import Diagnosis

from ...postgres.connection import TimeoutConnection
from ...postgres.errors import translate_error

TIMEOUT_SECONDS = 5
Look = Callable[[psycopg.Connection], Iterable[Diagnosis]]


def run_checks(name: str, dsn: str, look: Look) -> Iterator[Diagnosis]:
    """The diagnoses of `look` over a connection to `dsn`, and an error if the connection fails.

    The error contains the server's own sentence, which never contains the password. The connection has its own timeout:
    the server's statement timeout does not help if the server cannot be reached.
    """
    try:
        with TimeoutConnection.connect(
            dsn,
            connect_timeout=TIMEOUT_SECONDS,
            application_name="replicator doctor",
            autocommit=True,
            options=f"-c statement_timeout={TIMEOUT_SECONDS}s",
        ) as connection:
            yield from look(connection)
    except psycopg.Error as error:
        problem = translate_error(error, "connecting")
        step = problem.next_step or "Start the server, or correct host and port in `dsn`."
        yield Diagnosis("error", name, problem.sentence, step)


def fetch_rows(connection: psycopg.Connection, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return connection.execute(query.encode(), parameters or None).fetchall()


def check_transport(connection: psycopg.Connection, name: str) -> Iterator[Diagnosis]:
    """Check that no one on the network can read the connection or impersonate the server. Local connections are skipped."""
    if _is_local(connection.info.hostaddr):
        return
    mode = connection.info.get_parameters().get("sslmode", "prefer")
    if connection.pgconn.ssl_in_use and mode == "verify-full":
        yield Diagnosis("ok", name, "The connection is encrypted, and the server has proven its identity.")
        return
    risk = "the identity of the server is not checked" if connection.pgconn.ssl_in_use else "the connection is not encrypted"
    step = "Add sslmode=verify-full and sslrootcert=FILE to `dsn`; the server needs a certificate for the host in it."
    yield Diagnosis("warning", name, f"With sslmode {mode}, {risk}.", step)


def _is_local(address: str) -> bool:
    """True for loopback addresses, and for no address: a Unix socket."""
    return not address or ipaddress.ip_address(address).is_loopback
