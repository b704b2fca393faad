"""Key columns that the message keys of a frame name."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec
import pyarrow as pa

from ...arrow.record_errors import UNREADABLE, malformed_reject
from ..json.schema_frames import find_frames, split_record
from .schema import KeySchema, read_key_schema

MAX_KEYS = 4096
NO_KEY = KeySchema("nokey")
NOT_JSON = KeySchema("", error=malformed_reject("its key is not JSON"))
NOT_AN_OBJECT = KeySchema("", error=malformed_reject("its key is not a JSON object of key columns"))
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class KeySchemas:
    """Reads the keys of records and caches their schemas."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._known: dict[bytes | tuple[str, ...], KeySchema] = {}

    def read_all(self, keys: pa.Array) -> list[KeySchema]:
        """The key schema of every record; `NO_KEY` for a null key. Without a schema, field names identify a key."""
        out = [NO_KEY] * len(keys)
        found = find_frames(keys, self._depth)
        for group in found.groups:
            if group.schema is not None:
                said = [self._read_schema(group.schema)] * (len(keys) if group.rows is None else len(group.rows))
            else:
                said = [self._read_bare(payload) for payload in group.payloads()]
            if group.rows is None:
                return said
            for place, key in zip(group.rows, said, strict=True):
                out[place] = key
        for place in found.errors:
            out[place] = NOT_JSON
        return out

    def read_one(self, key: bytes) -> KeySchema:
        """The key schema of one key."""
        try:
            schema, payload = split_record(key, self._depth)
        except UNREADABLE:
            return NOT_JSON
        return self._read_bare(payload) if schema is None else self._read_schema(schema)

    def _read_schema(self, schema: bytes) -> KeySchema:
        return self._store(schema, lambda: read_key_schema(schema))

    def _read_bare(self, payload: bytes) -> KeySchema:
        try:
            names = tuple(_fields(payload))
        except UNREADABLE:
            return NOT_AN_OBJECT
        if not names:
            return NOT_AN_OBJECT
        return self._store(names, lambda: KeySchema(sha256(repr(names).encode()).hexdigest()[:16], names))

    def _store(self, of: bytes | tuple[str, ...], read: Callable[[], KeySchema]) -> KeySchema:
        if of not in self._known:
            if len(self._known) >= MAX_KEYS:
                self._known.clear()
            self._known[of] = read()
        return self._known[of]
