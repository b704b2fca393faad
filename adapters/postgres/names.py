"""Connection strings, locations of tables, and names: any characters, but limited bytes, because the server truncates
longer names silently."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import describe_rename

MAX_BYTES = 63
SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})


def quote_name(*parts: str) -> str:
    """The parts as one qualified identifier."""
    return sql.Identifier(*parts).as_string(None)


def escape(text: str) -> str:
    """SQL text for a statement with parameters."""
    return text.replace("%", "%%")


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


def read_dsn(dsn: SecretStr) -> str:
    """A libpq connection string or `postgresql://` URL, in clear. Also accepts SQLAlchemy's form, with the driver's name in
    the scheme.

    Raises ConfigProblem if libpq cannot parse it. libpq's own error would quote the DSN with its password.
    """
    plain = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", dsn.get_secret_value())
    try:
        conninfo_to_dict(plain)
    except psycopg.ProgrammingError:
        sentence = "`dsn` is neither a libpq connection string nor a postgresql:// URL"
        raise ConfigProblem(sentence, next_step="Correct it.") from None
    return plain


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table of a database. `events`: it is the event store, which exists without a lane."""

    dsn: str
    schema: str
    table: str
    events: bool = False

    @property
    def relation(self) -> str:
        """Its name as SQL."""
        return quote_name(self.schema, self.table)

    @property
    def url(self) -> str:
        """Its name for people and for lineage: server, database and table, without the user."""
        settings = conninfo_to_dict(self.dsn)
        host, port = settings.get("host") or settings.get("hostaddr") or "localhost", settings.get("port") or 5432
        database = settings.get("dbname") or settings.get("user") or ""
        return f"postgres://{host}:{port}/{database}.{self.schema}.{self.table}"
