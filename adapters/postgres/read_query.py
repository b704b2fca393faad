"""A statement that selects a page of rows, with quoted names and with values as parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import ReplicatorError
from replicator.domain.read_query import InvalidReadQuery, ReadQuery, ReadTimeout

from .literals import plain_text
from .names import quote_name
from .types import AnyType

COMPARED = (
    *(sa.Integer, sa.Float, sa.Numeric, sa.Boolean, sa.LargeBinary, sa.DateTime, sa.Date, sa.Time, sa.Enum, sa.String),
    *(sa.Uuid, sa.Interval, pg.INTERVAL, pg.INET, pg.CIDR, pg.MACADDR, pg.OID),
)
"""Types that the server orders. All others are compared as their displayed text."""
CANCELLED = "57014"
NOT_NULL = (
    "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s AND a.attnotnull AND a.attnum > 0"
)


@dataclass
class PostgresReadQuery:
    """The rows of `wanted` in the table `name` of a schema, which has these `columns`."""

    schema: str
    name: str
    columns: Mapping[str, AnyType]
    wanted: ReadQuery
    values: list[object] = field(default_factory=list)

    def null_check(self) -> tuple[bytes, tuple[str, str]]:
        """The query for the columns without NULL, and its values."""
        return NOT_NULL.encode(), (self.schema, self.name)

    def render(self, selected: str, certain: Set[str]) -> tuple[bytes, list[object]]:
        """The statement for the expressions `selected`, and its values. Columns in `certain` contain no NULL."""
        self.values = []
        terms = [self._term(one.column, one.operator, one.value) for one in self.wanted.conditions]
        if self.wanted.start:
            terms.append(self._start_condition(certain))
        where = f"\nWHERE {' AND '.join(terms)}" if terms else ""
        order = ", ".join(self._column(name) for name in self.wanted.order)
        ordered = f"\nORDER BY {order}" if order else ""
        self.values.append(self.wanted.limit)
        table = _escape_pattern(quote_name(self.schema, self.name))
        return f"SELECT {_escape_pattern(selected)} FROM {table}{where}{ordered}\nLIMIT %s".encode(), self.values

    def _column(self, name: str) -> str:
        found = self.columns[name]
        kind = found.data_type if isinstance(found, pg.DOMAIN) else found
        column = _escape_pattern(quote_name(name))
        return column if isinstance(kind, COMPARED) else f"{column}::text"

    def _term(self, name: str, operator: str, value: pa.Scalar | None) -> str:
        if value is None:
            return f"{_escape_pattern(quote_name(name))} {operator.upper()}"
        return f"{self._column(name)} {operator} {self._parameter(value)}"

    def _parameter(self, value: pa.Scalar) -> str:
        """A parameter without a type: the server uses the type that it is compared with."""
        text = str(plain_text(pa.array([value], value.type))[0].as_py())
        if "\0" in text:
            raise InvalidReadQuery("text in PostgreSQL cannot have a NUL character", next_step="Use another value.")
        self.values.append(text)
        return "%s"

    def _start_condition(self, certain: Set[str]) -> str:
        """Rows at or after the start, compared column by column in the order."""
        pairs = list(zip(self.wanted.order, self.wanted.start, strict=True))
        if all(name in certain and value.is_valid for name, value in pairs):  # An index supports this form.
            columns = ", ".join(self._column(name) for name, _ in pairs)
            return f"({columns}) >= ({', '.join(self._parameter(value) for _, value in pairs)})"
        terms = [self._equality(pairs)]
        for at, (name, value) in enumerate(pairs):
            if value.is_valid:
                column = self._column(name)
                above = f"({column} > {self._parameter(value)} OR {column} IS NULL)"
                terms.append(f"({above} AND {self._equality(pairs[:at])})")
        return f"({' OR '.join(terms)})"

    def _equality(self, pairs: Sequence[tuple[str, pa.Scalar]]) -> str:
        terms = [self._term(name, "=" if v.is_valid else "is null", v if v.is_valid else None) for name, v in pairs]
        return " AND ".join(["true", *terms])


def _escape_pattern(text: str) -> str:
    return text.replace("%", "%%")


def comparison_error(error: BaseException, name: str) -> InvalidReadQuery | None:
    """The error for values that the server cannot compare; None for another error."""
    state = _sqlstate(error)
    if state.startswith("22") or state in {"42883", "42804"}:
        return InvalidReadQuery(
            f"a value cannot be compared with its column of table {name!r} (SQLSTATE {state})",
            next_step="Write it as the table shows it.",
        )
    return None


def timeout_error(error: BaseException, name: str, seconds: float) -> ReplicatorError | None:
    """The error for a statement that took too long; None for another error."""
    if _sqlstate(error) != CANCELLED:
        return None
    return ReadTimeout(
        f"reading table {name} takes longer than {seconds:g} s",
        next_step="Filter by the key, add an index for the filter, or allow more time (`serve.query_timeout`).",
    )


def _sqlstate(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None) or "")
