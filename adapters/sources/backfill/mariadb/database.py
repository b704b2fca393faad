"""MariaDB servers as source of backfills."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from replicator.domain.errors import Fatal, Retryable
from replicator.ports.comparison import CHECKSUMS, ChecksumKind, KeyRange, TableSplit

from ....kafka.connect_worker import read_offsets
from ....sql.checksums import SummedColumn, kind_of_mariadb, render_bucket_condition, render_sums
from ....sql.dialect import MARIADB
from ..comparison import DatabaseComparison
from ..database import BackfillTable, Row, SnapshotPoint, Tell, divide_range, refuse_unread_columns
from ..snapshot_reader import TableBackfill
from .columns import INTEGERS, MariaDbColumn, Raw
from .connection import connect, fetch_rows, quote_name, translate_errors
from .snapshot import is_passed, open_snapshot
from .table import describe_readable_table, describe_table

FIRST_FETCH, MOST_FETCHED = 100, 5_000
"""Rows per fetch: at first, and at most."""
FETCHED_BYTES = 8 << 20
COMPARED = 200
COMPARED_CHARACTERS = 256 << 10
"""The number of keys that one statement compares, and the most SQL for them."""
IDENTITY = "SELECT concat_ws('/', @@server_id, @@hostname, @@port, @@log_bin_basename)"


class MariaDbLog:
    """`ConnectorLog` of Debezium's connector for MariaDB. `SnapshotPoint.place` has the number of a binlog file, a
    position in it, and a row."""

    name = "mariadb"
    fields = (
        ("table", "string", True),
        ("server_id", "int64", False),
        ("gtid", "string", True),
        ("file", "string", False),
        ("pos", "int64", False),
        ("row", "int64", False),
        ("thread", "int64", True),
        ("query", "string", True),
    )

    def block(self, table: BackfillTable[Any], moment: SnapshotPoint) -> Mapping[str, Any]:
        file, position, row = moment.place
        return {"table": table.name, "server_id": 0, "file": f"binlog.{file:06}", "pos": position, "row": row}

    def transaction(self, moment: SnapshotPoint) -> Mapping[str, Any]:
        """See `ConnectorLog.transaction`: changes are ordered by their count in the transaction, read rows by `row`."""
        return {"id": None, "total_order": moment.place[-1], "data_collection_order": 0}


class MariaDbDatabase:
    """`SourceDatabase`. Options: `dsn`; `bigint_unsigned`, as in the connector; `connect`: `url` and `connector`, if they
    are known."""

    log = MariaDbLog()

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._dsn = str(options["dsn"])
        self._precise = options.get("bigint_unsigned") == "precise"
        self._connect: Mapping[str, str] | None = options.get("connect")

    def describe_comparable(
        self, table: str, keys: Sequence[str] | None
    ) -> tuple[BackfillTable[MariaDbColumn], Mapping[str, str]]:
        with translate_errors(f"reading {table}"), closing(connect(self._dsn)) as connection:
            return describe_readable_table(connection, table, keys, precise=self._precise)

    def describe_table(self, table: str, keys: Sequence[str] | None) -> BackfillTable[MariaDbColumn]:
        found, unread = self.describe_comparable(table, keys)
        refuse_unread_columns(table, unread)
        return found

    def identity(self) -> str:
        with translate_errors("reading the source"), closing(connect(self._dsn)) as connection:
            return str(fetch_rows(connection, IDENTITY)[0][0])

    @contextmanager
    def open_snapshot(self, table: BackfillTable[MariaDbColumn], report: Tell) -> Iterator[_MariaDbSnapshot]:  # noqa: ARG002
        name = f"{table.schema}.{table.name}"
        with translate_errors(f"reading {name}"), open_snapshot(self._dsn) as (connection, moment):
            # From here on the table cannot be altered; and the user may read all of its columns.
            fetch_rows(connection, f"SELECT * FROM {quote_name(table.schema, table.name)} LIMIT 0")
            now, _ = describe_table(connection, table.schema, table.name, table.keys, precise=self._precise)
            if now != table:
                raise Retryable(f"Columns of {name} were changed while its snapshot was taken.")
            yield _MariaDbSnapshot(connection, table, moment, self._connect)

    def locate_rows(
        self, table: BackfillTable[MariaDbColumn], keys: pa.Table, borders: Sequence[Sequence[str]]
    ) -> Iterator[tuple[str, int]]:
        columns = table.key_columns
        values = [[column.to_raw(value) for value in keys[column.name].to_pylist()] for column in columns]
        rows = list(zip(*values, strict=True))
        written = _JsonWriter(table, columns)
        numbers = self._find_numbers(table, rows, borders) if borders else [0] * len(rows)
        for row, number in zip(rows, numbers, strict=True):
            yield written.to_json(row), number

    def _find_numbers(
        self, table: BackfillTable[MariaDbColumn], rows: Sequence[Sequence[Raw]], borders: Sequence[Sequence[str]]
    ) -> Iterator[int]:
        with translate_errors(f"reading {table.schema}.{table.name}"), closing(connect(self._dsn)) as connection:
            last = [_key_expressions(connection, table, border) for border in borders]
            for first in range(0, len(rows), COMPARED):
                cases = []
                for row in rows[first : first + COMPARED]:
                    key = _key_expressions(connection, table, list(map(_to_typed_text, row)))
                    which = (f"WHEN {_compare_keys(key, one, '<=')} THEN {i}" for i, one in enumerate(last))
                    cases.append(f"CASE {' '.join(which)} ELSE {len(last)} END")
                [found] = fetch_rows(connection, f"SELECT {', '.join(cases)}")
                yield from map(int, found)


class MariaDbBackfill(TableBackfill):
    """`ports.backfill.Backfill` of a MariaDB table. Options of `TableBackfill` and `MariaDbDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(MariaDbDatabase(options), options)


class MariaDbComparison(DatabaseComparison):
    """`ports.comparison.ComparableTable` of a MariaDB table. Options of `DatabaseComparison` and `MariaDbDatabase`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(MariaDbDatabase(options), options)


@dataclass(frozen=True, slots=True)
class _MariaDbSnapshot:
    """`TableSnapshot` of a connection in a transaction."""

    connection: pymysql.Connection[Any]
    table: BackfillTable[MariaDbColumn]
    point: SnapshotPoint
    connect: Mapping[str, str] | None

    def describe_point(self) -> str:
        """See `TableSnapshot.describe_point`: the number of the binlog file, and the position in it."""
        return ":".join(map(str, self.point.place[:2]))

    def is_delivered(self) -> bool | None:
        """See `TableSnapshot.is_delivered`. The server does not know what the connector has sent, but Kafka Connect does.
        Records alone do not show it: a table without changes has none."""
        if self.connect is None:
            return None
        return any(is_passed(stored, self.point) for stored in read_offsets(self.connect["url"], self.connect["connector"]))

    def list_kinds(self) -> dict[str, ChecksumKind | None]:
        return {column.name: kind_of_mariadb(column.sql, precise=column.precise) for column in self.table.columns}

    def list_ranges(self, rows: int) -> Sequence[KeyRange]:
        """Ranges of equal width. Their number follows from the server's estimate."""
        first, count = self.table.key_columns[0], self.count()
        # Targets may have unsigned bigints as signed ones, in another order.
        if first.type not in INTEGERS or (first.type == "bigint" and first.unsigned) or count is None or count <= rows:
            return []
        name = quote_name(first.name)
        [(low, high)] = fetch_rows(self.connection, f"SELECT min({name}), max({name}) FROM {self._relation}")
        return [] if low is None else divide_range(first.name, int(low), int(high), -(-count // rows))

    def sum(self, split: TableSplit) -> pa.Table:
        """See `TableSnapshot.sum`. The sums of excluded rows are subtracted: so their number does not matter."""
        columns = [self._to_summed(column.source) for column in split.columns]
        keys = [self._to_summed(name) for name in split.keys]
        totals: Counter[tuple[int, str]] = Counter()
        conditions = self._render_groups(_list_within(split.without, split.within))
        for sign, condition in [(1, "1 = 1"), *((-1, condition) for condition in conditions)]:
            chosen = f"(SELECT * FROM {self._relation} AS t WHERE {condition})"
            query = render_sums(MARIADB, chosen, columns, keys, within=split.within)
            for bucket, *sums in fetch_rows(self.connection, query):
                for name, value in zip(CHECKSUMS.names[1:], sums, strict=True):
                    totals[int(bucket), name] += sign * int(value)
        found = [
            {"bucket": bucket, **{name: totals[bucket, name] for name in CHECKSUMS.names[1:]}}
            for bucket in sorted({bucket for bucket, _ in totals})
            if totals[bucket, "rows"]
        ]
        return pa.Table.from_pylist(found, CHECKSUMS)

    def rows_in(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[Row]:
        keys = [self._to_summed(name) for name in split.keys]
        yield from self._fetch(None, render_bucket_condition(MARIADB, keys, buckets, split.within))

    def rows_with_keys(self, keys: pa.Table) -> Iterator[Row]:
        for condition in self._render_groups(keys):
            yield from self._fetch(None, condition)

    @property
    def _relation(self) -> str:
        return quote_name(self.table.schema, self.table.name)

    def _to_summed(self, name: str) -> SummedColumn:
        column = next(column for column in self.table.columns if column.name == name)
        return SummedColumn(name, kind_of_mariadb(column.sql, precise=column.precise) or "integer", column.sql)

    def _render_groups(self, keys: pa.Table) -> Iterator[str]:
        """Conditions for the rows with some of the keys each."""
        columns = self.table.key_columns
        values = [[_to_typed_text(c.to_raw(value)) for value in keys[c.name].to_pylist()] for c in columns if keys.num_rows]
        group: list[str] = []
        for texts in zip(*values, strict=True):
            given = _key_expressions(self.connection, self.table, texts)
            group.append(" AND ".join(_render_equal(*pair) for pair in zip(columns, given, strict=True)))
            if len(group) == COMPARED or sum(map(len, group)) > COMPARED_CHARACTERS:
                yield f"({' OR '.join(group)})"
                group = []
        if group:
            yield f"({' OR '.join(group)})"

    def count(self) -> int | None:
        """See `TableSnapshot.count`: InnoDB's estimate."""
        query = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        found = fetch_rows(self.connection, query, (self.table.schema, self.table.name))
        return int(found[0][0]) or None if found and found[0][0] is not None else None

    def rows(self, after: Sequence[str] | None) -> Iterator[Row]:
        yield from self._fetch(after, "1 = 1")

    def _fetch(self, after: Sequence[str] | None, condition: str) -> Iterator[Row]:
        """Fetches some rows at a time: the server drops clients that read one long result slowly."""
        table = self.table
        of_key = [table.columns.index(column) for column in table.key_columns]
        row_of, key_of = _JsonWriter(table, table.columns), _JsonWriter(table, table.key_columns)
        fetch, last = FIRST_FETCH, after
        while True:
            found = fetch_rows(self.connection, self._query(last, fetch, condition))
            size = 0
            for values in found:
                key = [values[i] for i in of_key]
                row = row_of.to_json(values)
                size, last = size + len(row), list(map(_to_typed_text, key))
                yield key_of.to_json(key), row, last
            if len(found) < fetch:
                return
            fetch = max(1, min(MOST_FETCHED, 2 * fetch, FETCHED_BYTES * fetch // size))

    def _query(self, after: Sequence[str] | None, count: int, condition: str) -> str:
        mine = [quote_name(column.name) for column in self.table.key_columns]
        chosen = ", ".join(
            column.required_form.select_template.replace("{c}", quote_name(column.name)) for column in self.table.columns
        )
        given = None if after is None else _key_expressions(self.connection, self.table, after)
        where = condition if given is None else f"{condition} AND {_compare_keys(mine, given, '>')}"
        return f"SELECT {chosen} FROM {self._relation} AS t WHERE {where} ORDER BY {', '.join(mine)} LIMIT {count}"


class _JsonWriter:
    """Writes values of some of a table's columns as JSON."""

    def __init__(self, table: BackfillTable[MariaDbColumn], columns: Sequence[MariaDbColumn]) -> None:
        self._table, self._columns = table, columns
        self._made = [(f"{json.dumps(c.name, ensure_ascii=False)}:", c.required_form.json) for c in columns]

    def to_json(self, values: Sequence[Raw | None]) -> str:
        """The text of an object. Raises Fatal for a value without a Connect form."""
        parts = []
        for number, ((name, made), value) in enumerate(zip(self._made, values, strict=True)):
            try:
                parts.append(name + ("null" if value is None else made(value)))
            except ValueError:
                column, table = self._columns[number], self._table
                raise Fatal(
                    f"{column.name} of {table.schema}.{table.name} holds a value of the type {column.sql} that is no time.",
                    next_step="Correct the row in the source: days and months of zero are no dates.",
                ) from None
        return f"{{{','.join(parts)}}}"


def _to_typed_text(value: Raw) -> str:
    """The text from which a column's `typed` expression restores the value."""
    return value.hex() if isinstance(value, bytes) else value


def _key_expressions(
    connection: pymysql.Connection[Any], table: BackfillTable[MariaDbColumn], texts: Sequence[str]
) -> list[str]:
    with connection.cursor() as cursor:
        return [
            cursor.mogrify(column.required_form.typed or "", (text,))
            for column, text in zip(table.key_columns, texts, strict=True)
        ]


def _render_equal(column: MariaDbColumn, given: str) -> str:
    """A condition for rows with exactly this value. An index needs the comparison by the collation, for which other texts
    may be equal."""
    name = f"t.{quote_name(column.name)}"
    exact = f" AND CAST({name} AS BINARY) = CAST({given} AS BINARY)" if column.type in ("char", "varchar") else ""
    return f"{name} = {given}{exact}"


def _list_within(keys: pa.Table, within: KeyRange | None) -> pa.Table:
    """The keys in a range."""
    if within is not None and keys.num_rows and within.above is not None:
        keys = keys.filter(pc.greater(keys[within.column], within.above))
    if within is not None and keys.num_rows and within.upto is not None:
        keys = keys.filter(pc.less_equal(keys[within.column], within.upto))
    return keys


def _compare_keys(left: Sequence[str], right: Sequence[str], how: str) -> str:
    """A comparison of two keys, column by column: the server can use an index for it, unlike for a row comparison."""
    if len(left) == 1:
        return f"{left[0]} {how} {right[0]}"
    rest = _compare_keys(left[1:], right[1:], how)
    return f"({left[0]} {how[0]} {right[0]} OR ({left[0]} = {right[0]} AND {rest}))"
