"""Which format a record of another one looks like, by the names of its fields."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from replicator.domain.errors import Reject

from .faults import UNREADABLE

SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("debezium_json", frozenset({"op", "source"})),
    ("debezium_json", frozenset({"schema", "payload"})),
    ("ogg_json", frozenset({"op_type", "pos"})),
    ("canal_json", frozenset({"database", "type", "isDdl"})),
    ("canal_json", frozenset({"database", "type", "mysqlType"})),
    ("maxwell_json", frozenset({"database", "type", "data"})),
)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def lookalike(names: Collection[str]) -> str | None:
    """The format whose fields have such names, as the configuration calls it."""
    has = set(names)
    return next((name for name, signs in SIGNS if signs <= has), None)


def named(reject: Reject, text: bytes, mine: str) -> Reject:
    """The reject of a record, which says of which other format than `mine` it seems to be."""
    try:
        other = lookalike(_fields(text).keys())
    except UNREADABLE:
        return reject
    return reject if other in (None, mine) else Reject(reject.code, f"{reject.sentence}; it looks like `format: {other}`")
