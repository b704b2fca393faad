"""The format that a record looks like: JSON by its field names, other bytes by their beginning."""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from replicator.domain.errors import Reject

from ...arrow.record_errors import UNREADABLE

SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("debezium_json", frozenset({"op", "source"})),
    ("debezium_json", frozenset({"schema", "payload"})),
    ("ogg_json", frozenset({"op_type", "pos"})),
    ("canal_json", frozenset({"database", "type", "isDdl"})),
    ("canal_json", frozenset({"database", "type", "mysqlType"})),
    ("maxwell_json", frozenset({"database", "type", "data"})),
)
"""The first format counts that has all its fields, so put the specific ones first."""
BEGINNINGS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    # A zero byte and a schema id in four bytes; registries count ids up from 1. DTS also begins with a zero,
    # its version, followed by the record number.
    ("debezium_avro", re.compile(rb"\0\0.{3}", re.DOTALL)),
    ("dts_avro", re.compile(rb"\0.{20}", re.DOTALL)),
    ("dms_csv", re.compile(rb"[IUD],")),
)
"""The first match counts, as in `SIGNS`."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def guess_format(names: Collection[str]) -> str | None:
    """The configuration name of the format that has fields with these names."""
    fields = set(names)
    return next((name for name, signs in SIGNS if signs <= fields), None)


def detect_format(data: bytes) -> str | None:
    """The configuration name of the format that a record's value looks like."""
    try:
        return guess_format(_fields(data).keys())
    except UNREADABLE:
        return _match_beginning(data)


def hint_by_names(reject: Reject, data: bytes, name: str) -> Reject:
    """The reject with a hint if the record looks like another format than `name`."""
    return _add_hint(reject, detect_format(data), name)


def hint_by_beginning(reject: Reject, data: bytes, name: str = "") -> Reject:
    """`hint_by_names` for bytes that are not JSON."""
    return _add_hint(reject, _match_beginning(data), name)


def _match_beginning(data: bytes) -> str | None:
    return next((name for name, begins in BEGINNINGS if begins.match(data)), None)


def _add_hint(reject: Reject, other: str | None, name: str) -> Reject:
    return reject if other in (None, name) else Reject(reject.code, f"{reject.sentence}; it looks like `format: {other}`")
