"""Values that are JSON, in objects that are rows or keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from ..json.faults import UNREADABLE
from ..messages.written import texts_of
from .masking import Image, Opened, Role, Writes

Object = dict[str, msgspec.Raw]
NULL = msgspec.Raw(b"null")
OF_KEYS = ("database", "table")
"""What keys of messages say besides."""
PREFIX = "pk."
"""What Maxwell puts before the names of columns."""


class Reads(Protocol):
    """The columns of rows of JSON: as `masking.Writes`."""

    columns: Collection[str]

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """See `masking.Writes.array`."""
        ...


class JsonWrites(Writes):
    """`masking.Writes` of JSON, whose columns `reads` reads. `names`: of all columns that rows have."""

    def __init__(self, reads: Reads, names: Collection[str]) -> None:
        self.columns, self.names = reads.columns, names
        self._reads = reads

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """See `Writes.array`."""
        return self._reads.array(name, values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """See `Writes.texts`."""
        return texts_of(values)

    def is_null(self, value: Any) -> bool:
        """See `Writes.is_null`."""
        return bytes(value) == b"null"

    def written(self, text: str | None) -> msgspec.Raw:
        """See `Writes.written`."""
        return NULL if text is None else msgspec.Raw(msgspec.json.encode(text))


def json_key(key: bytes, of: Opened) -> Opened | None:
    """A key that is an object of columns. None for any other: it may repeat values, and is not kept."""
    names = of.writes.names if isinstance(of.writes, JsonWrites) else ()
    try:
        fields = read_object(key)
    except UNREADABLE:
        return None
    if not all(name in names or name.removeprefix(PREFIX) in names for name in fields if name not in OF_KEYS):
        return None
    images = [Image(fields, Role.BESIDE), Image(fields, Role.BESIDE, PREFIX)]
    return Opened(images, of.writes, of.keys, lambda: msgspec.json.encode(fields))


def read_objects(token: msgspec.Raw) -> list[Object | None]:
    """The objects of JSON that is one, or an array of these and of nulls. Raises one of UNREADABLE."""
    text = bytes(token)
    return _several(text) if text.startswith(b"[") else [read_object(text)]


read_object = msgspec.json.Decoder(Object).decode
_several = msgspec.json.Decoder(list[Object | None]).decode
