"""Errors of SQLAlchemy and drivers as the program's errors: retryable or not. Messages contain no value of a row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import DecimalException

import psycopg
import sqlalchemy as sa

from replicator.domain.errors import ConfigProblem, Fatal, ReplicatorError, Retryable

from ...postgres.query import translate_query_error
from .. import mysql_errors
from ..mysql_errors import driver_message

CORRECT = "Correct `table`, `query` or `cursor_column` of the source."
CAST = "Correct the row; or write a `query` that casts the column, to text for example, or leaves it out."


@contextmanager
def translate_errors(doing: str, dialect: sa.Dialect) -> Iterator[None]:
    """Translate database errors while `doing`."""
    try:
        yield
    except ReplicatorError:
        raise
    except sa.exc.DBAPIError as error:
        raise _translate_error(error, doing, dialect) from error
    except psycopg.Error as error:
        raise translate_query_error(error, doing) from error
    except sa.exc.SQLAlchemyError as error:
        raise ConfigProblem(f"SQLAlchemy refused while {doing}: {type(error).__name__}.", next_step=CORRECT) from error
    except (TypeError, ValueError, OverflowError, DecimalException) as error:
        # From a driver or SQLAlchemy; its message contains the value. TypeError: text in a numeric column of
        # SQLite.
        raise Fatal(f"While {doing}: a value cannot be read ({type(error).__name__}).", next_step=CAST) from None


def _translate_error(error: sa.exc.DBAPIError, doing: str, dialect: sa.Dialect) -> ReplicatorError:
    cause = error.orig
    if isinstance(cause, psycopg.Error):
        if isinstance(cause, psycopg.DataError) and cause.sqlstate is None:
            return Fatal(f"While {doing}: a date or time is beyond what is read here.", next_step=CAST)
        return translate_query_error(cause, doing)
    if dialect.name in ("mysql", "mariadb") and cause is not None and cause.args and isinstance(cause.args[0], int):
        return mysql_errors.translate_mysql_error(cause, doing, CORRECT)
    if error.connection_invalidated or isinstance(error, sa.exc.InterfaceError):
        return Retryable(f"The database is not reachable while {doing}: {driver_message(cause)}")
    if isinstance(error, sa.exc.DataError):
        return Fatal(f"While {doing}: {type(cause).__name__}.", next_step=CAST)
    return ConfigProblem(f"The database said while {doing}: {driver_message(cause)}", next_step=CORRECT)
