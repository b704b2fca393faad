"""Erased keys, which are stored only as keyed hashes."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from .errors import Reject, RejectCode
from .sequence import to_plain_type

ERASED_KIND = "forgotten"
"""The kind under which records of erased keys are ignored."""
ERASED_RECORD = str(Reject(RejectCode.FORGOTTEN, "this record was of a row that was forgotten, and nothing of it is kept"))
"""The column `error` of an erased record in an event log."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erased key.

    - `columns`: the names of its columns at the source. `hash`: see `ErasureHashes.hash_key`.
    - `topics`: the topics of its table.
    - `messages`: `ErasureHashes.hash_message` of the message keys of its records.
    - `at`, `by`: the time, and the user of the machine.
    - `removed`: the number of removed rows and records by location; None until all are removed.
    """

    source: str
    table: str
    columns: tuple[str, ...]
    hash: str
    at: datetime
    by: str = ""
    topics: frozenset[str] = frozenset()
    messages: frozenset[str] = frozenset()
    removed: Mapping[str, int] | None = None

    @property
    def identity(self) -> tuple[str, str, tuple[str, ...], str]:
        """Erasing a key twice counts as one erasure."""
        return self.source, self.table, self.columns, self.hash


@dataclass(frozen=True)
class ErasureHashes:
    """HMAC-SHA-256 under the list's own secret. Keys are numbers and addresses: a plain hash could be found by trying
    them all."""

    key: bytes = field(repr=False)

    def hash_key(self, source: str, table: str, columns: Sequence[str], texts: Sequence[str]) -> str:
        """The hash of the key with these `texts` in the columns. Equal keys have equal hashes, also after a type of a
        column has changed."""
        return self._hash_words(["key", source, table, list(columns), list(texts)])

    def hash_message(self, topic: str, key: bytes) -> str:
        """The hash of a message key, byte by byte."""
        return self._hash_words(["message", topic, key.hex()])

    @property
    def check(self) -> str:
        """A value that identifies the secret."""
        return self._hash_words(["check"])

    def _hash_words(self, words: list[Any]) -> str:
        return hmac.new(self.key, json.dumps(words).encode(), "sha256").hexdigest()


def to_key_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The text of each value of a key column, the same for all types that can hold the value. Numbers are digits
    without trailing zeros, dates and times are ISO 8601 (in UTC, to the microsecond), bytes are hexadecimal digits."""
    kind = to_plain_type(values.type)
    values = values.cast(kind) if kind != values.type else values
    if t.is_string(kind) or t.is_integer(kind) or t.is_boolean(kind) or t.is_date(kind):
        return values.cast(pa.string())
    if t.is_timestamp(kind):
        times = pc.cast(values, pa.timestamp("us", "UTC" if kind.tz else None), safe=False)
        return pc.utf8_rtrim(times.cast(pa.string()), "Z")
    if t.is_time(kind):
        # Python has no 24:00:00, and without pandas no nanoseconds.
        return pc.replace_substring(values.cast(pa.time64("us"), safe=False).cast(pa.string()), ".000000", "")
    return pa.chunked_array([pa.array([to_key_text(value) for value in values.to_pylist()], pa.string())])


def to_key_text(value: Any) -> str | None:
    """The text of one value, as JSON or Python has it; None for a value that no key can have."""
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
        case float() if value.is_integer():
            return str(int(value))
        case Decimal():
            # Without trailing zeros, and without rounding: `Decimal.normalize` rounds from 29 digits on.
            text = format(value, "f") if value else "0"
            return text.rstrip("0").rstrip(".") if "." in text else text
        case None | dict() | list():
            return None
        case _:
            return str(value)


def find_keys(columns: Sequence[str], documents: Any) -> Iterator[tuple[str, ...]]:
    """The keys in a JSON document: of each nested object with all these columns."""
    if not isinstance(documents, dict):
        return
    texts = [to_key_text(documents[name]) for name in columns if name in documents]
    if len(texts) == len(columns):
        key = tuple(text for text in texts if text is not None)
        if len(key) == len(columns):
            yield key
    for name in ("payload", "before", "after"):
        yield from find_keys(columns, documents.get(name))


# Hashes that identify message keys in dead letters without showing them.

CHECK_DIGITS = 8


@dataclass(frozen=True)
class KeyHashes:
    """SHA-256 of a key's bytes, in hexadecimal digits. With a secret: HMAC-SHA-256, after digits that identify the
    secret. Keys are numbers and addresses: a plain hash could be found by trying them all."""

    secret: bytes = field(default=b"", repr=False)

    def hash_key(self, key: bytes | None) -> str:
        """The hash of a key; empty without one."""
        if key is None:
            return ""
        return f"{self.check}{self._hash_bytes(b'key', key)}" if self.secret else hashlib.sha256(key).hexdigest()

    @cached_property
    def check(self) -> str:
        """The prefix of all hashes under this secret."""
        return f"{self._hash_bytes(b'check', b'')[:CHECK_DIGITS]}-" if self.secret else ""

    def renew_hash(self, stored_hash: str, key: bytes | None) -> str:
        """The hash of a dead letter's key. If `stored_hash` is without a secret, and `key` is known, it is hashed again
        with the secret."""
        return (
            self.hash_key(key)
            if self.secret and key is not None and stored_hash == UNKEYED_HASHES.hash_key(key)
            else stored_hash
        )

    def is_comparable(self, stored_hash: str) -> bool:
        """False for a hash of another secret, or without one: no new key can be compared with it."""
        return stored_hash.startswith(self.check) if self.secret else "-" not in stored_hash

    def _hash_bytes(self, purpose: bytes, data: bytes) -> str:
        return hmac.digest(self.secret, purpose + b":" + data, "sha256").hex()


UNKEYED_HASHES = KeyHashes()
