"""Descriptions of MariaDB tables for backfills, with checks that their changes are sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pymysql

from replicator.domain.errors import ConfigProblem, EnvironmentProblem

from ..database import BackfillTable, refuse_keyless, refuse_unread_columns, split_name
from .columns import MariaDbColumn
from .connection import fetch_rows

ComparableTable = tuple[BackfillTable[MariaDbColumn], Mapping[str, str]]
"""See `SourceDatabase.describe_comparable`."""
OLDEST = (10, 6)
INSTEAD = "Use Debezium's own incremental snapshots (docs/reference/debezium.md)."
WANTED = (("log_bin", "1"), ("binlog_format", "ROW"), ("binlog_row_image", "FULL"))
"""Global variables with the values that they need, so that the binlog contains whole rows."""
READERS = "SELECT count(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
FOUND = """
SELECT table_schema, table_name, table_type, engine FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s"""
COLUMNS = """
SELECT column_name, is_nullable = 'NO', concat(column_type, coalesce(concat(' COLLATE ', collation_name), '')), data_type,
       coalesce(datetime_precision, numeric_precision, 0), coalesce(numeric_scale, 0),
       coalesce(character_set_name, ''), coalesce(collation_name, '')
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
INDEXES = """
SELECT index_name, column_name FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"""


def describe_readable_table(
    connection: pymysql.Connection[Any], table: str, keys: Sequence[str] | None, *, precise: bool
) -> ComparableTable:
    """`describe_table`, if the rows are readable and the changes are sent. Raises ConfigProblem or EnvironmentProblem
    otherwise, with the next step."""
    schema, name = split_name(table)
    refuse_server(connection)
    refuse_unread(connection)
    _refuse_filtered(connection, schema)
    _refuse_kind(connection, schema, name)
    return describe_table(connection, schema, name, keys, precise=precise)


def refuse_server(connection: pymysql.Connection[Any]) -> None:
    """Refuse other servers, and servers with unsuitable binlog settings."""
    [(version,)] = fetch_rows(connection, "SELECT version()")
    if "mariadb" not in version.lower():
        raise EnvironmentProblem(f"The source's server is MySQL {version}, and no MariaDB.", next_step=INSTEAD)
    numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise EnvironmentProblem("The source's server is older than MariaDB 10.6.", next_step="Upgrade it.")
    [values] = fetch_rows(connection, f"SELECT {', '.join(f'@@global.{name}' for name, _ in WANTED)}")
    for (name, wanted), value in zip(WANTED, values, strict=True):
        if value != wanted:
            raise EnvironmentProblem(
                f"{name} of the source's server is {value}, so its binlog does not hold whole rows.",
                next_step=f"Set {name}={'ON' if wanted == '1' else wanted} on the server, for all sessions.",
            )


def refuse_unread(connection: pymysql.Connection[Any]) -> None:
    """Refuse a server whose binlog has no reader."""
    [(readers,)] = fetch_rows(connection, READERS)
    if readers == "0":
        raise EnvironmentProblem(
            "No visible session reads the binlog, so changes after the snapshot would be lost.",
            next_step="Start the connector first (with `snapshot.mode: no_data`); and GRANT PROCESS to the user of "
            "`database.dsn`, who does not see the connector otherwise.",
        )


def _refuse_filtered(connection: pymysql.Connection[Any], schema: str) -> None:
    for _, _, only, without, *_ in fetch_rows(connection, "SHOW MASTER STATUS"):
        if (only and schema not in only.split(",")) or schema in (without or "").split(","):
            raise EnvironmentProblem(
                f"The server leaves the database {schema} out of its binlog (binlog_do_db, binlog_ignore_db).",
                next_step="Take the filter out of the server's options.",
            )


def _refuse_kind(connection: pymysql.Connection[Any], schema: str, name: str) -> None:
    found = [row for row in fetch_rows(connection, FOUND, (schema, name)) if row[:2] == (schema, name)]
    if not found:
        raise ConfigProblem(
            f"The database has no table {schema}.{name} that this user may see.",
            next_step="Correct the name, letter by letter, or GRANT SELECT.",
        )
    [(_, _, kind, engine)] = found
    if kind != "BASE TABLE" or (engine or "").lower() != "innodb":
        what = f"a table of the engine {engine}" if kind == "BASE TABLE" else f"a {kind.lower()}"
        raise ConfigProblem(f"{schema}.{name} is {what}, for which a snapshot is not consistent.", next_step=INSTEAD)


def describe_table(
    connection: pymysql.Connection[Any], schema: str, name: str, keys: Sequence[str] | None, *, precise: bool
) -> ComparableTable:
    """The table with its current columns, without those of types that are not read. Also these columns, with their types."""
    qualified = f"{schema}.{name}"
    rows = fetch_rows(connection, COLUMNS, (schema, name))
    columns = tuple(
        MariaDbColumn(column, required == "1", sql, kind, int(digits), int(scale), charset, collation, precise)
        for column, required, sql, kind, digits, scale, charset, collation in rows
    )
    unread = {column.name: column.sql for column in columns if column.form is None}
    indexes: dict[str, list[str]] = {}
    for index, column in fetch_rows(connection, INDEXES, (schema, name)):
        indexes.setdefault(index, []).append(column)
    own = refuse_keyless(qualified, columns, tuple(keys or indexes.get("PRIMARY") or ()))
    refuse_unread_columns(qualified, {column: sql for column, sql in unread.items() if column in own})
    read = tuple(column for column in columns if column.name not in unread)
    table = BackfillTable(schema, schema, name, read, _order_by_index(qualified, own, indexes.values()))
    _refuse_unordered(table)
    return table, unread


def _order_by_index(table: str, keys: tuple[str, ...], indexes: Iterable[list[str]]) -> tuple[str, ...]:
    """The keys in the order of a unique index over exactly these columns, which is used to read rows in batches."""
    found = next((index for index in indexes if set(index) == set(keys)), None)
    if found is None:
        raise ConfigProblem(
            f"Table {table} has no unique index over {', '.join(keys)}, by which its rows could be read.",
            next_step=f"Add one, or correct `keys` of the table. {INSTEAD}",
        )
    return tuple(found)


def _refuse_unordered(table: BackfillTable[MariaDbColumn]) -> None:
    for column in table.key_columns:
        if not column.required or column.required_form.typed is None:
            what = f"is of the type {column.sql}" if column.required else "may be NULL"
            raise ConfigProblem(
                f"{column.name} of the key of {table.schema}.{table.name} {what}, so rows cannot be read in its order.",
                next_step=INSTEAD,
            )
