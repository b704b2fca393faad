"""Metadata of records with private columns that may be stored: an allow-list of field names."""

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
"""Fields of source blocks that hold no values of rows. Others do, such as `query` and Oracle's `redo_sql`."""
CONTROL = frozenset(
    {
        *("ts_ms", "ts_us", "ts_ns", "status", "id", "event_count", "data_collections", "source", "op", "transaction"),
        *("databaseName", "schemaName", "aggregate_type", "type", "timestamp"),
    }
)
"""Fields of control records that hold no values of rows. Statements, messages and signals contain free text, and
notifications contain the keys that a snapshot has read."""
KEYS_OF_CONTROL = frozenset({"serverName", "databaseName", "id", "prefix"})
COMPOUND = (b'"', b"{", b"[")
"""First bytes of JSON values other than numbers and booleans."""
PARTS = 3
"""Least number of parts in a topic name, as connectors build it: prefix, schema or database, table."""
_object = msgspec.json.Decoder(Object).decode
_unusual = re.compile(r"[^A-Za-z0-9._\-]")
_unusual_in_glob = re.compile(r"[^A-Za-z0-9._\-*?\[\]!]")


def mask_source_block(said: msgspec.Raw) -> msgspec.Raw:
    """The source block, with null for fields that may hold values of rows."""
    if bytes(said) == b"null":
        return said
    block = _object(said)
    wrong = [name for name, value in block.items() if name not in SOURCE and bytes(value).startswith(COMPOUND)]
    return msgspec.Raw(msgspec.json.encode(block | dict.fromkeys(wrong, NULL))) if wrong else said


def mask_control(value: bytes) -> bytes:
    """The value of a control record, unchanged if all its fields are allowed. Raises one of UNREADABLE."""
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
    """True if it is the key of a control record."""
    try:
        whole = _object(key)
        payload = _object(whole["payload"]) if "payload" in whole else whole
    except UNREADABLE:
        return False
    return payload.keys() <= KEYS_OF_CONTROL


def is_unmasked_topic(topic: str, masked: Collection[str]) -> bool:
    """True if the topic's name shows that no pattern in `masked` matches its records' tables. The topic may have lost
    characters of the table's name, and a transform may have renamed it."""
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
    """The patterns of tables with private columns."""
    return tuple(pattern for pattern, masks in by_table.items() if masks)
