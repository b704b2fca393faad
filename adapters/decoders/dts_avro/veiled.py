"""Where records of DTS have values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import schemaless_writer

from replicator.domain.change import Op

from ...arrow.messages.veiled import OpensForm
from ...arrow.veils.masking import Image, Opened, Role, Writes
from ...arrow.veils.records import Record
from .avro import with_rest
from .rows import ImageRows
from .schema import NAMESPACE, RECORD
from .values import MOSTLY, NONE, NULL

IMAGES = ("beforeImages", "afterImages")
TAGS = frozenset({"pk_uk_info", "l_db_name", "l_tb_name"})
"""Those that are kept: what others hold nobody knows."""
CHARACTER = f"{NAMESPACE}.Character"


class ImageWrites(Writes):
    """`veils.masking.Writes` of images: what is masked is text."""

    def __init__(self, rows: ImageRows) -> None:
        self._rows = rows
        self.columns: Collection[str] = rows.columns

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """See `Writes.array`."""
        return self._rows.array(name, values)

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """See `Writes.texts`."""
        return pa.array([self._rows.text(value) for value in values], pa.string())

    def is_null(self, value: Any) -> bool:
        """See `Writes.is_null`. What was not sent stays so."""
        return value is None or _content(value) in (NULL, NONE)

    def written(self, text: str | None) -> Any:
        """See `Writes.written`."""
        return None if text is None else (CHARACTER, {"charset": MOSTLY, "value": text.encode()})


class OpensDts(OpensForm):
    """`OpensForm` of records of DTS."""

    def writes(self, rows: Any, names: Collection[str]) -> Writes:  # noqa: ARG002 - keys of records are not kept
        """See `OpensForm.writes`."""
        return ImageWrites(rows)

    def one(self, record: Record) -> Opened:
        """See `OpensEach.one`."""
        value = record.value or b""
        message, layout = self._read(value)
        said, rest = with_rest(value, self._options.limits)
        op, names = message.changes[0].op, list(message.types)
        images = {
            which: Image(dict(zip(names, said[which], strict=True)), _role(which, op))
            for which in IMAGES
            if said[which] is not None
        }
        return Opened(list(images.values()), self._of(layout), layout.keys, partial(_written, said, images, rest))

    def key(self, key: bytes, of: Opened) -> Opened | None:  # noqa: ARG002 - nobody knows what it holds
        """See `Opens.key`."""
        return None

    def ignored(self, record: Record) -> bytes | None:
        """See `Opens.ignored`. Without its statement."""
        said, rest = with_rest(record.value or b"", self._options.limits)
        return _written(said | dict.fromkeys(IMAGES), {}, rest)


def _content(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def _role(which: str, op: Op) -> Role:
    if op == Op.DELETE:
        return Role.DELETED if which == "beforeImages" else Role.BESIDE
    return Role.ROW if which == "afterImages" else Role.BESIDE


def _written(said: Mapping[str, Any], images: Mapping[str, Image], rest: bytes) -> bytes:
    tags = {name: text for name, text in said["tags"].items() if name in TAGS}
    values = {which: list(image.fields.values()) for which, image in images.items()}
    out = BytesIO()
    schemaless_writer(out, RECORD, {**said, "tags": tags, **values})
    return out.getvalue() + rest
