"""What of a backfill is of one kind of database."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from replicator.domain.errors import ConfigProblem

Schema = Mapping[str, Any]
Tell = Callable[[str], None]
AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Row = tuple[str, str, Sequence[str]]
"""The JSON text of a row's key columns, that of the row, and the key's values as texts that the database reads."""


class SourceColumn(Protocol):
    """A column as it is sent. `sql`: its type as the database calls it; `schema`: as Connect does."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def required(self) -> bool:
        """Whether it is never NULL."""

    @property
    def sql(self) -> str:
        """Its type in the database, with parameters."""

    @property
    def schema(self) -> Schema:
        """Connect's schema of its values."""

    def to_masked(self: T) -> T:
        """The column of what a mask has made of its values: text."""


C = TypeVar("C", bound=SourceColumn)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BackfillTable(Generic[C]):
    """A table and its columns, as they are sent. `keys`: in the key's order."""

    database: str
    schema: str
    name: str
    columns: tuple[C, ...]
    keys: tuple[str, ...]

    @property
    def key_columns(self) -> tuple[C, ...]:
        """The columns of the key."""
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.keys)

    def to_masked(self, names: Container[str]) -> BackfillTable[C]:
        """The table with what masks make of these columns."""
        return replace(self, columns=tuple(c.to_masked() if c.name in names else c for c in self.columns))

    @property
    def form(self) -> str:
        """Equal while rows that were written down before and rows that are read now look alike."""
        return json.dumps([self.keys, [(c.name, c.required, c.sql, c.schema) for c in self.columns]])


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """When rows were read. `place`: the sequence that the decoder gives to a row that was read, as far as it has to be
    compared: above every change that the rows show and below every one that they do not. `micros`: since 1970, by the
    source's clock."""

    place: tuple[int, ...]
    micros: int


class TableSnapshot(Protocol):
    """A table as it was at one moment."""

    @property
    def point(self) -> SnapshotPoint:
        """The moment."""

    def count(self) -> int | None:
        """About how many rows it has; None where the database does not know."""

    def rows(self, after: Sequence[str] | None) -> Iterator[Row]:
        """All rows, or those whose key comes after one, in the order of their keys."""


class ConnectorLog(Protocol):
    """How change events of a connector say where they are from."""

    @property
    def name(self) -> str:
        """The connector's name."""

    @property
    def fields(self) -> Sequence[tuple[str, str, bool]]:
        """Name, type in Connect and optionality of the source block's fields."""

    def block(self, table: BackfillTable[Any], moment: SnapshotPoint) -> Mapping[str, Any]:
        """Those of its values that depend on where the event is from."""

    def transaction(self, moment: SnapshotPoint) -> Mapping[str, Any] | None:
        """The transaction block of a delete, where the source block alone does not place it as it does a row."""


class SourceDatabase(Protocol[C]):
    """A database whose tables are read whole; see `ports.backfill.Backfill` for the errors that its methods raise."""

    @property
    def log(self) -> ConnectorLog:
        """Its connector's events."""

    def describe_table(self, table: str, keys: Sequence[str] | None) -> BackfillTable[C]:
        """The table, whose rows can be read and whose changes are sent; with these keys, or else its primary one."""

    def identity(self) -> str:
        """Equal while rows that were read before are of the database that is there now."""

    def open_snapshot(self, table: BackfillTable[C], report: Tell) -> AbstractContextManager[TableSnapshot]:
        """The table as it is now."""

    def locate_rows(
        self, table: BackfillTable[C], keys: pa.Table, borders: Sequence[Sequence[str]]
    ) -> Iterable[tuple[str, int]]:
        """Of each row of `keys` (the key's columns, as targets hold them) the JSON text, and the number of the first of the
        keys `borders` that it does not come after; their count for one that comes after all."""


def refuse_keyless(table: str, columns: Sequence[SourceColumn], keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys, which have to be columns."""
    if not keys:
        raise ConfigProblem(
            f"Table {table} has no primary key, so rows that are read could not be told from those that are there.",
            next_step="Name the columns of its key with `keys` in its entry under `tables`.",
        )
    missing = [name for name in keys if name not in {column.name for column in columns}]
    if missing:
        raise ConfigProblem(
            f"{missing[0]!r} of the key of {table} is no column that is sent.", next_step="Correct `keys` of the table."
        )
    return keys


def refuse_names(table: BackfillTable[Any]) -> None:
    """Columns whose names Avro does not allow: the stream has them under others, which only the connector knows."""
    found = [column.name for column in table.columns if not AVRO_NAME.fullmatch(column.name)]
    if found:
        raise ConfigProblem(
            f"{found[0]!r} of {table.schema}.{table.name} is no name in Avro, so the stream has that column under another.",
            next_step="Use Debezium's own incremental snapshot for this table (docs/debezium.md).",
        )


def split_name(table: str) -> tuple[str, str]:
    """What stands before and behind the dot of a table's name."""
    schema, dot, name = table.partition(".")
    if not dot:
        raise ConfigProblem(f"{table!r} is no table of a schema.", next_step="Name it as `match` does: SCHEMA.TABLE.")
    return schema, name


def unsupported_type_error(table: str, name: str, sql: str) -> ConfigProblem:
    """That values of a column have no exact form here."""
    return ConfigProblem(
        f"Column {name} of {table} is of the type {sql}, which a backfill does not read.",
        next_step="Use Debezium's own incremental snapshot for this table (docs/debezium.md).",
    )
