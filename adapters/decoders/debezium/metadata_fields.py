"""What records say beside rows, as it may be stored where columns are private: by the names of fields, so that nothing is
stored that nobody has looked at."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from replicator.domain.patterns import is_exact, is_regex, matches

from ...arrow.record_errors import UNREADABLE

T = TypeVar("T")
Object = dict[str, msgspec.Raw]
NULL = msgspec.Raw(b"null")
SOURCE = frozenset(
    {
        *("version", "connector", "name", "snapshot", "db", "schema", "table", "collection", "sequence", "txId", "txSeq"),
        *("gtid", "file", "scn", "commit_scn", "start_scn", "lcr_position", "rs_id", "row_id", "redo_thread", "user_name"),
        *("commit_lsn", "change_lsn", "begin_lsn", "event_serial_no", "ord", "rs", "origin", "transaction_id"),
        *("keyspace", "shard", "vgtid", "ts_ms", "ts_us", "ts_ns"),
    }
)
"""Fields of source blocks that hold no values of rows. Others do: `query`, Oracle's `redo_sql`."""
CONTROL = frozenset(
    {
        *("ts_ms", "ts_us", "ts_ns", "status", "id", "event_count", "data_collections", "source", "op", "transaction"),
        *("databaseName", "schemaName", "aggregate_type", "type", "timestamp"),
    }
)
"""The same of records that are no changes. Statements, messages and signals hold what somebody wrote, and notifications the
keys up to which a snapshot is."""
KEYS_OF_CONTROL = frozenset({"serverName", "databaseName", "id", "prefix"})
COMPOUND = (b'"', b"{", b"[")
"""What values begin with that are more than a number or a truth value."""
PARTS = 3
"""Of the name of a topic at least, as connectors give it: prefix, schema or database, table."""
_object = msgspec.json.Decoder(Object).decode
_unusual = re.compile(r"[^A-Za-z0-9._\-]")
_unusual_in_glob = re.compile(r"[^A-Za-z0-9._\-*?\[\]!]")


def mask_source_block(said: msgspec.Raw) -> msgspec.Raw:
    """A source block, null where its fields may hold what rows hold."""
    if bytes(said) == b"null":
        return said
    block = _object(said)
    wrong = [name for name, value in block.items() if name not in SOURCE and bytes(value).startswith(COMPOUND)]
    return msgspec.Raw(msgspec.json.encode(block | dict.fromkeys(wrong, NULL))) if wrong else said


def mask_control(value: bytes) -> bytes:
    """The value of a record that is no change: as it came if nothing in it is unknown. Raises one of UNREADABLE."""
    whole = _object(value)
    if "payload" not in whole or "op" in whole:
        told = _keep_metadata(whole)
        return value if told == whole else msgspec.json.encode(told)
    if bytes(whole["payload"]) == b"null":
        return value
    payload = _object(whole["payload"])
    told = _keep_metadata(payload)
    schema = whole.get("schema", NULL)
    return value if told == payload else msgspec.json.encode({"schema": schema, "payload": told})


def _keep_metadata(fields: Object) -> Object:
    kept = {name: value if name in CONTROL else NULL for name, value in fields.items()}
    return kept | {"source": mask_source_block(kept["source"])} if "source" in kept else kept


def is_control_key(key: bytes) -> bool:
    """Whether it is the key of a record that is no change."""
    try:
        whole = _object(key)
        payload = _object(whole["payload"]) if "payload" in whole else whole
    except UNREADABLE:
        return False
    return payload.keys() <= KEYS_OF_CONTROL


def is_unmasked_topic(topic: str, masked: Collection[str]) -> bool:
    """Whether a topic's name tells that its records are of none of the tables that these patterns mean. It may have lost
    letters of a table's name, and a transform may have given it another."""
    parts = topic.split(".")
    if len(parts) < PARTS:
        return False
    return not any(_can_match(pattern, topic, ".".join(parts[-2:])) for pattern in masked)


def _can_match(pattern: str, topic: str, name: str) -> bool:
    if is_regex(pattern):
        return "_" in name  # which may stand for anything
    if is_exact(pattern):
        return topic.endswith("." + _unusual.sub("_", pattern))
    return matches(_unusual_in_glob.sub("_", pattern), name)


def masked_patterns(by_table: Mapping[str, Mapping[str, object]]) -> tuple[str, ...]:
    """Those that mean tables with private columns."""
    return tuple(pattern for pattern, masks in by_table.items() if masks)
