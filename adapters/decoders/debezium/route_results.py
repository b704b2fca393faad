"""Routes of records, from the kind of their value and their key."""

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
    """The kind of a record's value: a table and a schema fingerprint, an ignored kind, or an error.

    Created by `get_kind`, which returns the same object for equal arguments: kinds are compared by identity.
    """

    table: str | None = None
    fingerprint: str = ""
    ignored: str | None = None
    error: str | None = None


_kinds: dict[tuple[str | None, str, str | None, Reject | None], ValueKind] = {}


def get_kind(
    table: str | None = None, fingerprint: str = "", ignored: str | None = None, error: Reject | None = None
) -> ValueKind:
    """The kind with these fields."""
    words = (table, fingerprint, ignored, error)
    if words not in _kinds:
        if len(_kinds) >= MAX_KINDS:
            _kinds.clear()
        _kinds[words] = ValueKind(table, fingerprint, ignored, str(error) if error else None)
    return _kinds[words]


NOTHING = ValueKind(ignored=TOMBSTONE)
"""The kind of a null value."""

Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class RouteResults:
    """Combines kinds of values and keys. A truncate has no key and a tombstone no value. So this stores the last key of each
    table and the last table of each topic."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self._keyed: dict[tuple[str, str], KeySchema] = {}
        self._tables: dict[str, tuple[str, str]] = {}

    def note_keys(self, seen: Iterable[tuple[ValueKind, KeySchema]]) -> None:
        """Store the keys of tables."""
        for kind, key in seen:
            if kind.table and key.names:
                self._keyed[kind.table, kind.fingerprint] = key

    def last_key(self, table: str, fingerprint: str) -> KeySchema:
        """The last key under that fingerprint, which `route_record` must have returned; `NO_KEY` if there was none."""
        return self._keyed.get((table, fingerprint.rpartition(".")[0]), NO_KEY)

    def route_record(self, kind: ValueKind, key: KeySchema, topic: str) -> Outcome:
        """The route of one record."""
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
        """The table of the topic's other records. If there are only tombstones, the table in the name of the key's schema
        or of the topic."""
        if topic in self._tables:
            table, fingerprint = self._tables[topic]
        else:
            named = key.struct.name.removesuffix(".Key") if key.struct and key.struct.name else topic
            table, fingerprint = ".".join(named.split(".")[-2:]), f"key.{key.fingerprint}"
        if key.error or key is NO_KEY or not self._options.deletes_by_tombstone(table):
            return None, None, TOMBSTONE, None
        return table, fingerprint, None, None
