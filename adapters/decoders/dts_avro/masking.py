"""Access to values in DTS records, for masking."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import schemaless_writer

from replicator.domain.change import Op

from ..masking import Image, OpenRecord, Role, RoutedRecord, ValueWriter
from ..messages.masking import MessageOpener
from .rows import ImageRows
from .schema import NAMESPACE, RECORD, read_with_rest
from .values import MOSTLY, NONE, NULL

IMAGES = ("beforeImages", "afterImages")
TAGS = frozenset({"pk_uk_info", "l_db_name", "l_tb_name"})
"""Tags that are stored. Others have unknown content."""
CHARACTER = f"{NAMESPACE}.Character"


class ImageValueWriter(ValueWriter):
    """`decoders.masking.ValueWriter` of images: masked values are text."""

    def __init__(self, rows: ImageRows) -> None:
        self._rows = rows
        self.columns: Collection[str] = rows.columns

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        return self._rows.array(name, values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([self._rows.text(value) for value in values], pa.string())

    def is_null(self, value: Any) -> bool:
        """True for NULL and for unchanged values, which stay as they are."""
        return value is None or _to_content(value) in (NULL, NONE)

    def to_value(self, text: str | None) -> Any:
        return None if text is None else (CHARACTER, {"charset": MOSTLY, "value": text.encode()})


class DtsOpener(MessageOpener):
    """`MessageOpener` of DTS records."""

    def make_writer(self, rows: Any, names: Collection[str]) -> ValueWriter:  # noqa: ARG002 - keys of records are not stored
        return ImageValueWriter(rows)

    def open_one(self, record: RoutedRecord) -> OpenRecord:
        value = record.value or b""
        message, layout = self._read_message(value)
        said, rest = read_with_rest(value, self._options.limits)
        op, names = message.changes[0].op, list(message.types)
        images = {
            which: Image(dict(zip(names, said[which], strict=True)), _find_role(which, op))
            for which in IMAGES
            if said[which] is not None
        }
        return OpenRecord(
            list(images.values()), self._get_writer(layout), layout.keys, partial(_write_record, said, images, rest)
        )

    def open_key(self, key: bytes, of: OpenRecord) -> OpenRecord | None:  # noqa: ARG002 - its content is unknown
        return None

    def mask_ignored(self, record: RoutedRecord) -> bytes | None:
        """The record without its statement."""
        said, rest = read_with_rest(record.value or b"", self._options.limits)
        return _write_record(said | dict.fromkeys(IMAGES), {}, rest)


def _to_content(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def _find_role(which: str, op: Op) -> Role:
    if op == Op.DELETE:
        return Role.DELETED if which == "beforeImages" else Role.BESIDE
    return Role.ROW if which == "afterImages" else Role.BESIDE


def _write_record(said: Mapping[str, Any], images: Mapping[str, Image], rest: bytes) -> bytes:
    tags = {name: text for name, text in said["tags"].items() if name in TAGS}
    values = {which: list(image.fields.values()) for which, image in images.items()}
    out = BytesIO()
    schemaless_writer(out, RECORD, {**said, "tags": tags, **values})
    return out.getvalue() + rest
