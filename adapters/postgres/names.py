"""Names in PostgreSQL: any characters, but limited bytes, because the server truncates longer names silently."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from psycopg import sql

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import describe_rename

MAX_BYTES = 63
SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def quote_name(*parts: str) -> str:
    """The parts as one qualified identifier."""
    return sql.Identifier(*parts).as_string(None)


def check_table(name: str, kind: str = "table") -> None:
    """Raises ConfigProblem for a name that PostgreSQL would refuse, or truncate and so perhaps confuse with
    another."""
    fault = _describe_fault(name)
    if fault:
        raise ConfigProblem(
            f"{kind} name {name!r} {fault}",
            next_step=f"Give the target another name with `into` (at most {MAX_BYTES} bytes).",
        )


def check_columns(names: Iterable[str], table: str) -> None:
    """Raises Fatal for a column name that PostgreSQL would refuse or truncate."""
    for name in names:
        fault = _describe_fault(name) or ("is the name of a system column of PostgreSQL" if name in SYSTEM_COLUMNS else "")
        if fault:
            raise Fatal(
                f"column {name!r} of table {table} {fault}",
                next_step=describe_rename(name),
            )


def has_relation(cursor: psycopg.Cursor, name: str) -> bool:
    """True if the table or view `name` (as SQL) exists."""
    return cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone() == (True,)


def _describe_fault(name: str) -> str:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if "\0" in name or not name:
        return "is empty or holds a NUL character"
    return f"takes {size} bytes, and PostgreSQL keeps {MAX_BYTES}" if size > MAX_BYTES else ""
