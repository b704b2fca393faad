"""Columns of images."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import RejectCode

from ...arrow.json.faults import Unfit
from ...arrow.json.nodes import Node, cast
from ...arrow.json.objects import UNSET
from ...arrow.messages.message import Rows
from ...arrow.messages.typed import ColumnType, ColumnTypes, read_texts
from ...arrow.mysql import plain_numbers
from ...arrow.out_of_range import lenient
from ...arrow.texts import Read
from .types import DECIMAL, LABELS
from .values import INTEGER, PLAIN, plain

Image = Mapping[str, Any]
"""Values by column: None for NULL; a column whose value was not sent is missing."""

Build = Callable[[Sequence[Any]], pa.Array]


class ImageRows(Rows):
    """`messages.message.Rows` of images."""

    def __init__(self, columns: ColumnTypes) -> None:
        self._builds = {name: _build(column) for name, column in columns.items()}
        self.columns = frozenset(columns)
        self.blank: Image = {}

    def decode(self, row: Image) -> Image:
        """See `Rows.decode`: values are read by column."""
        return row

    def may_hold(self, row: Image, names: Sequence[str]) -> bool:
        """See `Rows.may_hold`."""
        return any(name in row for name in names)

    def values(self, rows: Sequence[Image], name: str) -> list[Any]:
        """See `Rows.values`."""
        return [row.get(name, UNSET) for row in rows]

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """See `Rows.array`."""
        return self._builds[name](values)

    def text(self, value: Any) -> str | None:
        """See `Rows.text`."""
        if value is None or value is UNSET:
            return None
        found = plain(value)
        return found if isinstance(found, str) else found.hex()


def written(image: object) -> bytes | None:
    """An image, or the text of a statement, as JSON; bytes are in Base64, and so are values that cannot be read."""
    if not isinstance(image, Mapping):
        return None if image is None else msgspec.json.encode(image)
    return msgspec.json.encode({name: _shown(value) for name, value in image.items()})


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    try:
        found = plain(value)
    except Unfit:
        found = value[1].get("value", b"")
    if isinstance(found, str):
        return found
    return b64encode(found).decode() if isinstance(found, bytes) else None


def _build(column: ColumnType) -> Build:
    sent, wanted, said, declared, how = column
    if pa.types.is_binary(sent):
        build: Build = _of_bytes
    elif said == DECIMAL and pa.types.is_string(sent) and not declared:
        build = _of_texts(plain_numbers)
    elif said in LABELS and pa.types.is_string(sent):
        build = _of_labels
    else:
        build = _of_texts(read_texts(column))
    build = lenient(Node(sent, object, build, beyond=_text), how).build
    return build if sent == wanted else (lambda values: cast(build(values), wanted))


def _of_texts(read: Read) -> Build:
    def build(values: Sequence[Any]) -> pa.Array:
        texts = [None if value is None else value[1]["value"] if value[0] in PLAIN else _text(value) for value in values]
        return read(pa.array(texts, pa.string()))

    return build


def _of_labels(values: Sequence[Any]) -> pa.Array:
    if any(value is not None and value[0] == INTEGER for value in values):
        reason = "holds the number of a label, and records of DTS do not list the labels"
        raise Unfit(RejectCode.MALFORMED, f"{reason}: write `schema: {{COLUMN: int64}}` for the table to keep its number")
    return _of_texts(lambda texts: texts)(values)


def _text(value: Any) -> str:
    found = plain(value)
    if isinstance(found, bytes):
        raise Unfit(RejectCode.OUT_OF_RANGE, "holds bytes, not text: in `schema:` of the table it must be `binary`")
    return found


def _of_bytes(values: Sequence[Any]) -> pa.Array:
    return pa.array([None if value is None else _bytes(value) for value in values], pa.binary())


def _bytes(value: Any) -> bytes:
    found = plain(value)
    if isinstance(found, str):
        raise Unfit(RejectCode.OUT_OF_RANGE, "holds text, not bytes: in `schema:` of the table it must be `string`")
    return found
