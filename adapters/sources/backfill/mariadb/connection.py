"""MariaDB connections that return values unconverted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql
import sqlalchemy as sa
from pymysql.converters import encoders

from replicator.domain.errors import ConfigProblem, Retryable

from ... import mysql_errors

SESSION = (
    # TIMESTAMP values are returned in the session's time zone.
    "SET SESSION time_zone = '+00:00', sql_mode = '', max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0, wait_timeout = 28800"
)
CORRECT = "Correct the table's name, or `database` of the source."
Record = tuple[Any, ...]


def connect(dsn: str, seconds: int = mysql_errors.MY_ANSWER_SECONDS) -> pymysql.Connection[Any]:
    """A connection in autocommit mode: text in UTF-8, times in UTC, no conversions. `seconds`: the timeout for answers,
    if `dsn` has none. Raises the driver's errors, and ConfigProblem for a URL option that the driver does not support."""
    _, _, rest = dsn.partition("://")
    url = sa.make_url(f"mysql+pymysql://{rest}")
    _, options = sa.create_engine(url).dialect.create_connect_args(url)
    more = {
        "connect_timeout": 10,
        "read_timeout": seconds,
        "write_timeout": seconds,
        "charset": "utf8mb4",
        "init_command": SESSION,
        "program_name": "replicator backfill",
    }
    try:
        return pymysql.connect(**{**more, **options, "autocommit": True, "conv": dict(encoders)})
    except TypeError as error:
        raise ConfigProblem(
            "The driver of MariaDB does not know an option in the URL.", next_step="Correct `database.dsn` of the source."
        ) from error


def fetch_rows(connection: pymysql.Connection[Any], query: str, parameters: Sequence[Any] = ()) -> list[Record]:
    """The rows of a query; values are text, bytes or None."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return list(cursor.fetchall())


def quote_name(*parts: str) -> str:
    """The parts as one qualified identifier."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Translate errors of the driver while `doing`."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise mysql_errors.translate_mysql_error(error, doing, CORRECT) from error
    except OSError as error:
        raise Retryable(f"The server is not reachable while {doing}: {type(error).__name__}.") from error
