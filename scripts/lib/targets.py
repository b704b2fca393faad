"""What the demo's five targets hold, column by column, beside the source."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from replicator.domain.errors import ReplicatorError
from replicator.notebook import load_table

SOURCE = os.environ.get("SOURCE_DSN", "postgresql://source_user:source_password@127.0.0.1:5433/source_db")
DATALAKE = os.environ.get("DATALAKE_DSN", "postgresql://datalake_user:datalake_password@127.0.0.1:5434/datalake_db")
TARGET = os.environ.get("TARGET_DSN", "postgresql://target_user:target_password@127.0.0.1:5435/target_db")
TABLES = ("customers", "products", "orders", "order_items")
MIRRORS = ("deltalake", "cdc_processed", "target_db")
LOGS = ("deltalake/cdc_events", "cdc_raw.cdc_events")
Rows = Mapping[Any, Mapping[str, Any]]


def source_rows(table: str) -> Rows:
    """The source's rows by id."""
    return _postgres_rows(SOURCE, "public", table)


def mirror_rows(mirror: str, table: str) -> Rows:
    """A mirror's rows by id; empty while it does not exist."""
    if mirror == "deltalake":
        return _lake_rows(table)
    dsn, schema = (DATALAKE, "cdc_processed") if mirror == "cdc_processed" else (TARGET, "public")
    return _postgres_rows(dsn, schema, table)


def logged_state(log: str, table: str) -> Rows:
    """The rows as the last record of each key in an event log has them: the log replayed, by its `after` column.

    Only whole numbers, texts and truth values: the log keeps other types in the connector's own encoding. Empty while there
    is no log.
    """
    rows: dict[Any, Mapping[str, Any]] = {}
    for key, after in _log_records(log, table):
        if after is None:
            rows.pop(key, None)
        else:
            rows[key] = after
    return rows


def differences(expected: Rows, found: Rows, *, encoded: bool = False) -> int:
    """Rows that are missing, too many, or differ in a column of the source (`encoded`: in one the log has in the clear)."""
    missing = expected.keys() ^ found.keys()
    return len(missing) + sum(not _same(row, found[key], encoded) for key, row in expected.items() if key in found)


def _same(row: Mapping[str, Any], other: Mapping[str, Any], encoded: bool) -> bool:
    names = [name for name in row if name in other] if encoded else list(row)
    return all(name in other and row[name] == other[name] for name in names)


def _postgres_rows(dsn: str, schema: str, table: str) -> Rows:
    query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        try:
            return {row["id"]: _plain(row) for row in connection.execute(query)}
        except psycopg.errors.UndefinedTable:
            return {}


def _lake_rows(table: str) -> Rows:
    return {row["id"]: _plain(row) for row in _loaded(f"lake.{table}")}


def _loaded(name: str, where: str | None = None) -> Sequence[dict[str, Any]]:
    """Rows of a Delta table; none while it does not exist."""
    try:
        return list(load_table(name, where=where).to_pylist())
    except ReplicatorError:
        return []


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON columns arrive parsed from one target and as text from another."""
    return {name: _parsed(value) if name == "attributes" else value for name, value in row.items()}


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _log_records(log: str, table: str) -> list[tuple[Any, Mapping[str, Any] | None]]:
    if log == LOGS[0]:
        events = _loaded("raw.cdc_events", f"\"table\" = 'public.{table}' OR \"table\" = '{table}'")
        ordered = sorted(events, key=lambda e: (e["topic"], e["partition"], e["offset"]))
        found = [(e["before"], e["after"]) for e in ordered if e["op"]]
    else:
        query = (
            'SELECT before, after FROM cdc_raw.cdc_events WHERE topic = %s AND op IS NOT NULL ORDER BY partition, "offset"'
        )
        with psycopg.connect(DATALAKE) as connection:
            found = connection.execute(query, (f"cdc.public.{table}",)).fetchall()
    images = [(_parsed(before), _parsed(after)) for before, after in found]
    return [((after or before)["id"], _as_encoded(after)) for before, after in images]


ENCODED = ("_at", "_on", "price", "amount", "attributes")


def _as_encoded(after: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return after and {name: value for name, value in after.items() if not name.endswith(ENCODED)}
