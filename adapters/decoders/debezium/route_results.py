"""What routing says of a record, from what its value and its key say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replicator.domain.errors import Reject

from .keys import NO_KEY
from .options import DebeziumOptions
from .schema import KeySchema

MAX_KINDS = 65_536
TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True, eq=False)
class ValueKind:
    """What a record's value says: the table and its schema's fingerprint, or that it is to be ignored or rejected.

    Made by `get_kind`, which gives the same object for the same words: kinds are compared by identity.
    """

    table: str | None = None
    fingerprint: str = ""
    ignored: str | None = None
    error: str | None = None


_kinds: dict[tuple[str | None, str, str | None, Reject | None], ValueKind] = {}


def get_kind(
    table: str | None = None, fingerprint: str = "", ignored: str | None = None, error: Reject | None = None
) -> ValueKind:
    """The kind of these words."""
    words = (table, fingerprint, ignored, error)
    if words not in _kinds:
        if len(_kinds) >= MAX_KINDS:
            _kinds.clear()
        _kinds[words] = ValueKind(table, fingerprint, ignored, str(error) if error else None)
    return _kinds[words]


NOTHING = ValueKind(ignored=TOMBSTONE)
"""A null value."""

Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class RouteResults:
    """Joins values and keys. A truncate has no key and a tombstone no value, so what was seen last is kept: the key of
    each table, the table of each topic."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self._keyed: dict[tuple[str, str], KeySchema] = {}
        self._tables: dict[str, tuple[str, str]] = {}

    def note_keys(self, seen: Iterable[tuple[ValueKind, KeySchema]]) -> None:
        """Take note of the keys of tables."""
        for kind, key in seen:
            if kind.table and key.names:
                self._keyed[kind.table, kind.fingerprint] = key

    def last_key(self, table: str, fingerprint: str) -> KeySchema:
        """The key last seen under that fingerprint, as `route_record` gives it; `NO_KEY` when none was."""
        return self._keyed.get((table, fingerprint.rpartition(".")[0]), NO_KEY)

    def route_record(self, kind: ValueKind, key: KeySchema, topic: str) -> Outcome:
        """The outcome of one record."""
        if kind is NOTHING and self._options.any_tombstone_deletes:
            return self._route_tombstone(key, topic)
        if kind.table is None:
            return None, None, kind.ignored, kind.error
        found = self._fingerprint(kind.table, kind.fingerprint, key)
        if isinstance(found, Reject):
            return None, None, None, str(found)
        if self._options.any_tombstone_deletes:
            self._tables[topic] = (kind.table, found)
        return kind.table, found, None, None

    def _fingerprint(self, table: str, fingerprint: str, key: KeySchema) -> str | Reject:
        if self._options.keys_of(table):
            return f"{fingerprint}.declared"
        if key is NO_KEY:
            return f"{fingerprint}.{self._keyed.get((table, fingerprint), NO_KEY).fingerprint}"
        return key.error or f"{fingerprint}.{key.fingerprint}"

    def _route_tombstone(self, key: KeySchema, topic: str) -> Outcome:
        """The table that the topic's records are of; for a topic that shows only tombstones, what its key or name says."""
        if topic in self._tables:
            table, fingerprint = self._tables[topic]
        else:
            named = key.struct.name.removesuffix(".Key") if key.struct and key.struct.name else topic
            table, fingerprint = ".".join(named.split(".")[-2:]), f"key.{key.fingerprint}"
        if key.error or key is NO_KEY or not self._options.deletes_by_tombstone(table):
            return None, None, TOMBSTONE, None
        return table, fingerprint, None, None
