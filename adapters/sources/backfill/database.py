"""Databases that can be backfilled, and their rows as records of Debezium's connector."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from replicator.domain.errors import ConfigProblem
from replicator.ports.reads import ChecksumKind, KeyRange, TableSplit
from replicator.ports.runtime import ShowLine

# The parts of a backfill that differ between databases.

Schema = Mapping[str, Any]
DECIMAL, WIDEST = "org.apache.kafka.connect.data.Decimal", 38
"""Connect's type of exact numbers, and the most digits that are read."""
AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Row = tuple[str, str, Sequence[str]]
"""JSON text of the key columns, JSON text of the row, and key values as texts that the database can read."""


def named_schema(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    """The Connect schema with this type and name."""
    return {"type": kind, "name": name, "version": 1, **({"parameters": parameters} if parameters else {})}


def decimal_schema(precision: int, scale: int) -> Schema:
    """The Connect schema of exact numbers."""
    return named_schema("bytes", DECIMAL, **{"scale": str(scale), "connect.decimal.precision": str(precision)})


class SourceColumn(Protocol):
    """A column as it is sent. `sql`: its type in the database; `schema`: its Connect schema."""

    @property
    def name(self) -> str:
        """The name of the column."""

    @property
    def required(self) -> bool:
        """True if the column is never NULL."""

    @property
    def sql(self) -> str:
        """The type in the database, with parameters."""

    @property
    def schema(self) -> Schema:
        """The Connect schema of the values."""

    def to_masked(self: T) -> T:
        """The column with masked values, which are text."""


C = TypeVar("C", bound=SourceColumn)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BackfillTable(Generic[C]):
    """A table and its columns as they are sent. `keys`: in the order of the key."""

    database: str
    schema: str
    name: str
    columns: tuple[C, ...]
    keys: tuple[str, ...]

    @property
    def key_columns(self) -> tuple[C, ...]:
        """The key columns."""
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in self.keys)

    def to_masked(self, names: Container[str]) -> BackfillTable[C]:
        """The table with masked values in these columns."""
        return replace(self, columns=tuple(c.to_masked() if c.name in names else c for c in self.columns))

    @property
    def form(self) -> str:
        """A text that is equal as long as stored rows and rows read now have the same form."""
        return json.dumps([self.keys, [(c.name, c.required, c.sql, c.schema) for c in self.columns]])


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """The time at which rows were read. `place`: the part of the decoder's sequence for a read row that comparisons need.
    It is above every change that the rows contain and below every other change. `micros`: microseconds since 1970, by the
    source's clock."""

    place: tuple[int, ...]
    micros: int


class TableSnapshot(Protocol):
    """A table as it was at one point in time."""

    @property
    def point(self) -> SnapshotPoint:
        """The point in time."""

    def describe_point(self) -> str:
        """The position in the database's log, for people."""

    def count(self) -> int | None:
        """The approximate number of rows; None if the database does not know it."""

    def rows(self, after: Sequence[str] | None) -> Iterator[Row]:
        """All rows, or the rows with a key above `after`, in key order."""

    def rows_with_keys(self, keys: pa.Table) -> Iterator[Row]:
        """The rows with these keys (key columns as decoded)."""

    def list_kinds(self) -> dict[str, ChecksumKind | None]:
        """See `ports.reads.SourceSnapshot.kinds`."""

    def list_ranges(self, rows: int) -> Sequence[KeyRange]:
        """The ranges of `ports.reads.SourceSnapshot.list_ranges`."""

    def sum(self, split: TableSplit) -> pa.Table:
        """See `ports.reads.SourceSnapshot.sum`."""

    def rows_in(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[Row]:
        """The rows of a split, in these buckets or in all, in any order."""

    def is_delivered(self) -> bool | None:
        """True once the connector has sent everything that the snapshot contains. None if the database does not know."""


class ConnectorLog(Protocol):
    """The source block and transaction block of a connector's change events."""

    @property
    def name(self) -> str:
        """The connector's name."""

    @property
    def fields(self) -> Sequence[tuple[str, str, bool]]:
        """Fields of the source block: name, Connect type, and whether it is optional."""

    def block(self, table: BackfillTable[Any], point: SnapshotPoint) -> Mapping[str, Any]:
        """The values of the source block that depend on table and snapshot."""

    def transaction(self, point: SnapshotPoint) -> Mapping[str, Any] | None:
        """The transaction block of a delete, if the source block alone does not give a delete the sequence of a row."""


class SourceDatabase(Protocol[C]):
    """A database whose tables can be backfilled. For errors of its methods see `ports.source.Backfill`."""

    @property
    def log(self) -> ConnectorLog:
        """The format of its connector's events."""

    def describe_table(self, table: str, keys: Sequence[str] | None) -> BackfillTable[C]:
        """The table, which must be readable and part of the stream, with these keys or else its primary key."""

    def describe_comparable(self, table: str, keys: Sequence[str] | None) -> tuple[BackfillTable[C], Mapping[str, str]]:
        """As `describe_table`, without the columns of types that are not read. Also these columns, with their types."""

    def identity(self) -> str:
        """A text that is equal as long as the database is the one that was read before."""

    def open_snapshot(self, table: BackfillTable[C], report: ShowLine) -> AbstractContextManager[TableSnapshot]:
        """A snapshot of the table as it is now."""

    def locate_rows(
        self, table: BackfillTable[C], keys: pa.Table, last_keys: Sequence[Sequence[str]]
    ) -> Iterable[tuple[str, int]]:
        """The JSON text of each row in `keys` (key columns as in targets), each with an index. It is the index of the first
        key in `last_keys` that is not below the row. A row above all of them has the number of `last_keys` as index."""


def divide_range(column: str, low: int, high: int, parts: int) -> list[KeyRange]:
    """Ranges of equal width that together contain every value. `low`, `high`: the first and the last value there is."""
    bounds = sorted({low + (high - low) * number // parts for number in range(1, parts)})
    return [KeyRange(column, above, upto) for above, upto in pairwise([None, *bounds, None])]


def refuse_keyless(table: str, columns: Sequence[SourceColumn], keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys, which must be columns. Raises ConfigProblem otherwise."""
    if not keys:
        raise ConfigProblem(
            f"Table {table} has no primary key, so its rows could not be compared with the rows in the targets.",
            next_step="Name the columns of its key with `keys` in its entry under `tables`.",
        )
    missing = [name for name in keys if name not in {column.name for column in columns}]
    if missing:
        raise ConfigProblem(
            f"{missing[0]!r} of the key of {table} is not a column of its records.", next_step="Correct `keys` of the table."
        )
    return keys


def refuse_names(table: BackfillTable[Any]) -> None:
    """Raise ConfigProblem for column names that Avro does not allow: only the connector knows their names in the
    stream."""
    names = [column.name for column in table.columns if not AVRO_NAME.fullmatch(column.name)]
    if names:
        raise ConfigProblem(
            f"{names[0]!r} of {table.schema}.{table.name} is no name in Avro, so the stream has that column under another.",
            next_step="Use Debezium's own incremental snapshot for this table (docs/reference/debezium.md).",
        )


def split_name(table: str) -> tuple[str, str]:
    """The parts of a table name before and after the dot."""
    schema, dot, name = table.partition(".")
    if not dot:
        raise ConfigProblem(f"{table!r} is no table of a schema.", next_step="Name it as `match` does: SCHEMA.TABLE.")
    return schema, name


def refuse_unread_columns(table: str, unread: Mapping[str, str]) -> None:
    """Raise ConfigProblem if there are columns whose values have no exact form here. `unread`: their types."""
    for name, sql in unread.items():
        raise ConfigProblem(
            f"Column {name} of {table} is of the type {sql}, which a backfill does not read.",
            next_step="Use Debezium's own incremental snapshot for this table (docs/reference/debezium.md).",
        )


# Rows as change events of Debezium's connectors, in Connect's JSON with schemas.

SOURCE = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
)
"""The first fields of source blocks of all connectors."""
TRANSACTION = (("id", "string", False), ("total_order", "int64", False), ("data_collection_order", "int64", False))
NAME = "replicator.backfill"


class DebeziumEvents:
    """The records of one table. `name`: of the connector that they name."""

    def __init__(self, table: BackfillTable[Any], log: ConnectorLog, name: str = NAME) -> None:
        self._table, self._log, self._name = table, log, name
        name = f"{NAME}.{table.schema}.{table.name}"
        row = [_to_field(column) for column in table.columns]
        key = [_to_field(column) for column in table.key_columns]
        source = _to_struct(
            _strip_fields((*SOURCE, *log.fields)), f"io.debezium.connector.{log.name}.Source", field="source"
        )
        envelope = [
            _to_struct(row, f"{name}.Value", field="before"),
            _to_struct(row, f"{name}.Value", field="after"),
            {**source, "optional": False},
            _to_struct(_strip_fields(TRANSACTION), "event.block", field="transaction"),
            *_strip_fields((("op", "string", False), ("ts_ms", "int64", True))),
        ]
        self._key_head = _to_text({"schema": _to_struct(key, f"{name}.Key", optional=False)})[:-1] + ',"payload":'
        self._head = _to_text({"schema": _to_struct(envelope, f"{name}.Envelope", optional=False)})[:-1] + ',"payload":{'

    def encode_key(self, columns: str) -> bytes:
        """The key of a record, from the JSON text of its columns."""
        return f"{self._key_head}{columns}}}".encode()

    def encode_read(self, row: str, point: SnapshotPoint) -> bytes:
        """The event of a row that was read."""
        return f'{self._head}"before":null,"after":{row},{self._encode_tail("r", point)}}}}}'.encode()

    def encode_delete(self, columns: str, point: SnapshotPoint) -> bytes:
        """The delete event of a row that is missing in the snapshot, from its key columns."""
        return f'{self._head}"before":{columns},"after":null,{self._encode_tail("d", point)}}}}}'.encode()

    def _encode_tail(self, op: str, point: SnapshotPoint) -> str:
        source = {
            "version": "1",
            "connector": self._log.name,
            "name": self._name,
            "ts_ms": point.micros // 1_000,
            "snapshot": "true" if op == "r" else "false",
            "db": self._table.database,
            "sequence": None,
            "ts_us": point.micros,
            **dict.fromkeys(name for name, _, _ in self._log.fields),
            **self._log.block(self._table, point),
        }
        transaction = self._log.transaction(point) if op == "d" else None
        return (
            f'"source":{_to_text(source)},"transaction":{_to_text(transaction)},"op":"{op}","ts_ms":{point.micros // 1_000}'
        )


def _to_field(column: SourceColumn) -> dict[str, Any]:
    return {**column.schema, "optional": not column.required, "field": column.name}


def _strip_fields(fields: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in fields]


def _to_struct(fields: Sequence[Any], name: str, *, field: str = "", optional: bool = True) -> dict[str, Any]:
    struct = {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
    return {**struct, "field": field} if field else struct


def _to_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
