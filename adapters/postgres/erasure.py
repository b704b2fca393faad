"""Deletes the rows of one key from tables of a database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import psycopg
import pyarrow as pa

from replicator.domain.change import TIMESTAMP
from replicator.domain.errors import Fatal
from replicator.domain.event_log import ERASED_COLUMNS
from replicator.ports.frames import Lane

from ..arrow.masks import make_text_mask
from ..event_log import to_raw
from .names import has_relation, quote_name

RAW_COLUMNS = ("topic", "partition", "offset", "timestamp", "headers", "key", "value")
LOGGED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("headers", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
PIECE = 5_000


def to_target_key(lane: Lane, key: Mapping[str, str]) -> dict[str, str]:
    """The key as the target of `lane` stores it.

    `key`: the names and texts (`domain.erasures.to_key_texts`) of its columns at the source.
    """
    key_values = {}
    for name, text in key.items():
        rule = lane.row_transforms.column_transforms.get_rule(name)
        key_values[lane.row_transforms.column_transforms.get_new_name(name)] = (
            text if rule.mask is None else make_text_mask(rule.mask)(text)
        )
    return key_values


def remove_key(cursor: psycopg.Cursor, relation: str, key: Mapping[str, str]) -> int:
    """Deletes the rows of a table with that key, in the caller's transaction; returns their number.

    The number is 0 if the table does not exist, or if a text is not a value of its column.
    """
    kinds = _read_column_types(cursor, relation)
    if kinds is None:
        return 0
    missing_name = next((name for name in key if name not in kinds), None)
    if missing_name is not None:
        raise Fatal(
            f"table {relation} has no column {missing_name!r}, which is needed to find the rows of a key",
            next_step="Load it again with `replicator lanes resync`, or remove it with `replicator drop`.",
        )
    values = {name: f"\\x{text}" if kinds[name] == "bytea" else text for name, text in key.items()}
    same = " AND ".join(f"t.{quote_name(name)} = k.{quote_name(name)}" for name in key)
    statement = f"DELETE FROM {relation} AS t USING json_populate_record(NULL::{relation}, %s::json) AS k WHERE {same}"
    try:
        cursor.execute("SAVEPOINT erasing")
        return cursor.execute(_escape_percent(statement), (json.dumps(values),), prepare=False).rowcount
    except psycopg.DataError:
        cursor.execute("ROLLBACK TO SAVEPOINT erasing")
        return 0


def _read_column_types(cursor: psycopg.Cursor, relation: str) -> dict[str, str] | None:
    if not has_relation(cursor, relation):
        return None
    rows = cursor.execute(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
        "AND NOT attisdropped",
        (relation,),
    ).fetchall()
    return dict(rows)


def read_topic_records(cursor: psycopg.Cursor, relation: str, topics: Sequence[str]) -> Iterator[pa.Table]:
    """The records of these topics in an event log, as raw frames, in the caller's transaction."""
    names = ", ".join(f"{quote_name(name)}::text" if name == "headers" else quote_name(name) for name in RAW_COLUMNS)
    with cursor.connection.cursor("records") as rows:
        rows.execute(_escape_percent(f"SELECT {names} FROM {relation} WHERE topic = ANY(%s)"), (list(topics),))
        while records := rows.fetchmany(PIECE):
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*records, strict=True), LOGGED, strict=True)
            ]
            yield to_raw(pa.table(columns, schema=LOGGED))


def empty_records(cursor: psycopg.Cursor, relation: str, event_ids: Sequence[str], error: str) -> None:
    """Empties these records of an event log, except their positions and times, in the caller's transaction."""
    values = ", ".join(f"{quote_name(name)} = NULL" for name in ERASED_COLUMNS)
    statement = f"UPDATE {relation} SET {values}, error = %s WHERE event_id = ANY(%s)"
    cursor.execute(_escape_percent(statement), (error, list(event_ids)), prepare=False)


def _escape_percent(statement: str) -> bytes:
    """The statement with doubled percent signs, except those of parameters."""
    parts = statement.split("%s")
    return "%s".join(part.replace("%", "%%") for part in parts).encode()
