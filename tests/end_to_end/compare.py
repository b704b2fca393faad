"""Reads tables of a source and its targets by key, with SQL and without the program's code, and compares them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from deltalake import DeltaTable
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import dict_row
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.string import TextLoader

from .topics import Record

Row = Mapping[str, Any]
Rows = Mapping[Any, Row]
PLACEHOLDER = "__debezium_unavailable_value"
JSON = ("attributes", "profile", "attrs")
"""The JSON columns of the tests' tables."""
SHOWN = 8


# -- reading -----------------------------------------------------------------------------------------------------------


def load_or_text(loader: type[Loader]) -> type[Loader]:
    """A loader that returns text for values without a Python equivalent, such as infinity."""

    class OrText(loader):  # type: ignore[misc, valid-type]
        def load(self, data: Buffer) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return OrText


LOADERS: Mapping[str, type[Loader]] = {
    **dict.fromkeys(("uuid", "inet", "interval"), TextLoader),
    "date": load_or_text(DateLoader),
    "timestamp": load_or_text(TimestampLoader),
    "timestamptz": load_or_text(TimestamptzLoader),
}


def read_postgres_table(dsn: str, schema: str, table: str, where: str = "true") -> list[dict[str, Any]]:
    """The rows of a table. Empty while the table does not exist."""
    query = sql.SQL("SELECT * FROM {} WHERE " + where).format(sql.Identifier(schema, table))
    with closing(psycopg.connect(dsn, autocommit=True, row_factory=dict_row)) as connection:
        for name, loader in LOADERS.items():
            connection.adapters.register_loader(name, loader)
        try:
            return [to_plain_row(row) for row in connection.execute(query)]
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return []


def read_lake_table(path: Path, where: str = "true") -> list[dict[str, Any]]:
    """The rows of a Delta table, read with SQL in DuckDB. Empty while the table does not exist."""
    if not (path / "_delta_log").is_dir():
        return []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("lake", DeltaTable(str(path)).to_pyarrow_table())
        found = connection.sql(f"SELECT * FROM lake WHERE {where}").to_arrow_table()
    return [to_plain_row(row) for row in found.to_pylist()]


def to_plain_row(row: Row) -> dict[str, Any]:
    return {name: _to_plain_value(name, value) for name, value in row.items()}


def _to_plain_value(name: str, value: Any) -> Any:
    """Parses JSON, which is an object in some systems and text in others. Other values stay as they are."""
    if isinstance(value, str) and name in JSON:
        return json.loads(value)
    return bytes(value) if isinstance(value, memoryview) else value


def index_by_key(rows: Iterable[Row], *keys: str) -> Rows:
    """The rows by key. Fails if two rows have one key."""
    found: dict[Any, Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        assert key not in found, f"two rows have the key {key}"
        found[key] = row
    return found


# -- comparing ---------------------------------------------------------------------------------------------------------


def list_differences(expected: Rows, found: Rows, *, but: Sequence[str] = ()) -> list[str]:
    """Missing rows, surplus rows, and columns of the expected rows that differ, without those in `but`. Empty if all
    are equal."""
    lines = [f"row {key} is missing" for key in expected.keys() - found.keys()]
    lines += [f"row {key} is surplus" for key in found.keys() - expected.keys()]
    for key in expected.keys() & found.keys():
        lines += _list_column_differences(key, expected[key], found[key], but)
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"... {len(lines)} differences"]


def _list_column_differences(key: Any, expected: Row, found: Row, but: Sequence[str]) -> list[str]:
    lines = []
    for name, value in expected.items():
        if name not in but and (name not in found or not is_same_value(value, found[name])):
            lines.append(f"row {key}, column {name}: {_shorten(value)} became {_shorten(found.get(name, 'no column'))}")
    return lines


def is_same_value(one: Any, other: Any) -> bool:
    """Equal values. Numbers may have different types, and booleans equal only booleans. NaN equals NaN."""
    if isinstance(one, float | Decimal) and isinstance(other, float | Decimal) and isnan(one) and isnan(other):
        return True
    return bool(one == other) and (isinstance(one, bool) == isinstance(other, bool))


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"


# -- event logs --------------------------------------------------------------------------------------------------------


def list_log_errors(log: Sequence[Row], records: Sequence[Record]) -> list[str]:
    """Records that an event log lacks, has twice or has in another form than the topics. Empty if the log is complete."""
    expected = {(r.topic, r.partition, r.offset): r for r in records}
    found: dict[tuple[str, int, int], Row] = {}
    lines = []
    for row in log:
        place = (row["topic"], row["partition"], row["offset"])
        lines += [f"{place} occurs twice"] if place in found else []
        found[place] = row
    lines += [f"{place} is missing" for place in expected.keys() - found.keys()]
    lines += [f"{place} is surplus" for place in found.keys() - expected.keys()]
    lines += [f"{p} differs from the topic" for p, r in expected.items() if p in found and not _is_record(found[p], r)]
    return lines[:SHOWN]


def _is_record(row: Row, record: Record) -> bool:
    same_bytes = _to_bytes(row["key"]) == record.key and _to_bytes(row["value"]) == record.value
    return same_bytes and row["event_id"] == record.event_id and (row["error"] is not None or _is_envelope(row, record))


def _is_envelope(row: Row, record: Record) -> bool:
    payload = record.payload or {"op": None, "before": None, "after": None}
    return all(_parse_object(row[name]) == payload[name] for name in ("op", "before", "after"))


def _parse_object(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.startswith(("{", "[")) else value


def _to_bytes(value: Any) -> bytes | None:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else value


def replay_log(log: Iterable[Row], topic: str, key: str = "id") -> Rows:
    """The table that results from the log's events of one topic."""
    rows: dict[Any, Row | None] = {}
    for _, images in read_images(log, topic, key):
        rows |= images
    return {(k,): row for k, row in rows.items() if row is not None}


def read_images(log: Iterable[Row], topic: str, key: str = "id") -> Iterator[tuple[Row, Mapping[Any, Row | None]]]:
    """Each event of one topic, with the resulting rows by key (None for a deleted row). Values are decoded as the
    connector encodes those of the four tables. An unsent value comes from the row before, under its old key after a key
    change. A change that was sent again counts once."""
    rows: dict[Any, Row | None] = {}
    gone: dict[Any, Row | None] = {}
    for event in _drop_repeats(sorted((e for e in log if e["topic"] == topic and e["op"]), key=_get_offset)):
        before, after = _parse_object(event["before"]), _parse_object(event["after"])
        if event["op"] == "t":
            images: dict[Any, Row | None] = dict.fromkeys(rows)
        elif after is None:
            gone[before[key]] = rows[before[key]]
            images = {before[key]: None}
        else:
            base = rows.get(after[key]) or gone.get(_find_old_key(event, key)) or {}
            images = {after[key]: {n: base[n] if v == PLACEHOLDER else decode_value(n, v) for n, v in after.items()}}
        rows |= images
        yield event, images


def _get_offset(event: Row) -> tuple[int, int]:
    return (event["partition"], event["offset"])


def _drop_repeats(events: Iterable[Row]) -> Iterator[Row]:
    """Drops repeated changes. Log position, operation and key identify a change."""
    seen = set()
    for event in events:
        place = json.loads(event["value"])["payload"]["source"]["lsn"]
        change = (place, event["op"], bytes(event["key"] or b""))
        if change not in seen:
            seen.add(change)
            yield event


def to_log_records(records: Iterable[Record]) -> Iterator[Row]:
    """Records with the columns of an event log that `replay_log` reads."""
    for r in records:
        payload = r.payload or {"op": None, "before": None, "after": None}
        headers = json.dumps([[name, (value or b"").decode()] for name, value in r.headers])
        place = {"topic": r.topic, "partition": r.partition, "offset": r.offset, "key": r.key, "value": r.value}
        yield {**place, "headers": headers, **{name: payload[name] for name in ("op", "before", "after")}}


def _find_old_key(event: Row, key: str) -> Any:
    old = dict(json.loads(event["headers"] or "[]")).get("__debezium.oldkey")
    parsed = json.loads(old) if isinstance(old, str) else old
    return parsed.get("payload", parsed)[key] if parsed else None


def decode_value(name: str, value: Any) -> Any:
    """Decodes a value of the shipped tables as the shipped connector encodes it."""
    if value is None:
        return None
    if name in ("price", "unit_price", "total_amount"):
        return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-2)
    if name.endswith("_at"):
        return datetime.fromisoformat(value).astimezone(UTC)
    if name == "ordered_on":
        return date(1970, 1, 1) + timedelta(days=value)
    return _to_plain_value(name, value)
