"""Placeholders for unchanged values (PostgreSQL's TOAST, Oracle's LOBs), in all forms that Debezium writes, after its
`UnchangedToastedPlaceholder.java`."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable
from hashlib import md5
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ...arrow.value_readers import ValueReader


class Placeholders:
    """Finds the placeholders in a column."""

    def __init__(self, configured: Iterable[str]) -> None:
        codes = [_placeholder_bytes(text) for text in configured]
        texts = [text for code in codes for text in _placeholder_texts(code)]
        self._texts, self._known = pa.array(texts, pa.string()), frozenset(texts)
        self._bytes, self._codes = pa.array(codes, pa.binary()), frozenset(codes)
        self._quoted = frozenset(msgspec.json.encode(text) for text in texts)
        self._forms: dict[str, list[Any]] = {
            "list:text": [[t] for t in texts],
            "list:bytes": [[c] for c in codes],
            "list:raw": [[msgspec.Raw(q)] for q in self._quoted]
            + [[msgspec.Raw(str(n).encode()) for n in s] for c in codes for s in (list(c), _to_signed_bytes(c))],
            "list:int": [list(c) for c in codes] + [_to_signed_bytes(c) for c in codes if max(c, default=0) > 127],
            "map:text": [{t: t} for t in texts],
            "map:bytes": [{t: c} for c in codes for t in _placeholder_texts(c)],
        }

    @property
    def text(self) -> str | None:
        """The text of a placeholder, or None if there is none."""
        return self._texts[0].as_py() if len(self._texts) else None

    def is_text(self, text: str) -> bool:
        """True if the text is a placeholder."""
        return text in self._known

    def find_places(self, node: ValueReader, values: list[Any], built: pa.Array | None) -> list[int]:
        """The indices of placeholders in a column. `built` is its array, or None if the values could not be built."""
        if node.placeholder in ("text", "bytes") and (built is not None or node.wire is not msgspec.Raw):
            return self._find_scalars(node.placeholder, values, built)
        if node.placeholder == "variable":
            return [i for i, v in enumerate(values) if getattr(v, "value", None) in self._codes]
        if node.placeholder in ("text", "raw"):
            return [i for i, v in enumerate(values) if isinstance(v, msgspec.Raw) and bytes(v) in self._quoted]
        forms = self._forms.get(node.placeholder, ())
        if not any(f in values for f in forms):
            return []
        return [i for i, v in enumerate(values) if v in forms]

    def _find_scalars(self, form: str, values: list[Any], built: pa.Array | None) -> list[int]:
        """Text and bytes. A column of another type that was built has none, unless a decimal is wide enough for one."""
        if built is None or pa.types.is_decimal256(built.type):
            known = self._known if form == "text" else self._codes
            return [i for i, v in enumerate(values) if isinstance(v, str | bytes) and v in known]
        if pa.types.is_string(built.type):
            return _matching_places(built, self._texts)
        return _matching_places(built, self._bytes) if pa.types.is_binary(built.type) else []


def _matching_places(built: pa.Array, known: pa.Array) -> list[int]:
    hits = pc.is_in(built, value_set=known)
    places: list[int] = pc.indices_nonzero(hits).to_pylist() if pc.any(hits).as_py() else []
    return places


def _placeholder_bytes(configured: str) -> bytes:
    """The placeholder's bytes; `hex:` as in Debezium's `unavailable.value.placeholder`."""
    if configured.startswith("hex:"):
        try:
            return bytes.fromhex(configured[4:])
        except ValueError:
            pass
    return configured.encode()


def _placeholder_texts(code: bytes) -> list[str]:
    """The placeholder in string columns: plain, hstore as JSON, UUID, and bytes in each `binary_reader.handling.mode`."""
    coded = [b64encode(code).decode(), urlsafe_b64encode(code).decode(), code.hex()]
    try:
        plain = code.decode()
    except UnicodeDecodeError:
        return [*coded, _java_uuid(code)]
    return [plain, f'{{"{plain}":"{plain}"}}', *coded, _java_uuid(code)]


def _java_uuid(code: bytes) -> str:
    """Java's `UUID.nameUUIDFromBytes`: an MD5 with the version and variant bits set."""
    return str(UUID(bytes=md5(code, usedforsecurity=False).digest(), version=3))


def _to_signed_bytes(code: bytes) -> list[int]:
    """Bytes as signed numbers, as in Java."""
    return [c - 256 if c > 127 else c for c in code]
