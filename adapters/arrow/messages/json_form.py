"""What formats have in common whose messages are JSON, and whose rows are JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode

from ..json.faults import Unfit
from ..json.framing import refuse_depth
from ..json.limits import Limits
from ..veils.masking import Role
from .message import Form, Message, ReadsMany
from .rows import JsonRows
from .typed import ColumnTypes, TypedRows, typed_rows

NULL = msgspec.Raw(b"null")


class JsonForm(Form):
    """A form of JSON, whose messages say no types and write bytes in Base64 unless a subclass knows better, and whose
    rows are in `data`, with what was before in `old`. `texts_only`: all values of its rows are texts."""

    texts_only = False
    kept: Collection[str]
    """Fields besides those of rows, that hold no values: what is stored of messages of tables with private columns."""

    def message(self, text: bytes) -> Message:
        """The message. Raises one of `json.faults.UNREADABLE`, `Unfit` among them, for anything else."""
        raise NotImplementedError

    def read(self, value: bytes, limits: Limits) -> Message:
        """See `Form.read`."""
        refuse_depth(value, limits.depth)
        return self.message(value)

    def images(self, op: Op) -> Mapping[str, Role]:
        """The fields of a message with such changes that hold rows, and what these are."""
        row = Role.DELETED if op == Op.DELETE else Role.BESIDE if op == Op.TRUNCATE else Role.ROW
        return {"data": row, "old": Role.BESIDE}

    def type_of(self, said: str) -> pa.DataType:
        """See `Form.type_of`."""
        raise Unfit(RejectCode.MALFORMED, f"{said[:60]!r} is no type that is known")

    def rows(self, columns: ColumnTypes) -> JsonRows:
        """See `Form.rows`."""
        return JsonRows(columns, self.to_bytes)

    def many(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> ReadsMany | None:
        """See `Form.many`."""
        rows = typed_rows(columns, keys, self.to_bytes, texts_only=self.texts_only)
        return None if rows is None else self.together(like, rows)

    def together(self, like: bytes, rows: TypedRows) -> ReadsMany:
        """What reads messages together that are of the same layout as this one, and have these rows."""
        raise NotImplementedError

    def to_bytes(self, texts: Sequence[str | None]) -> pa.Array:
        """The values of a binary column. Raises one of `json.faults.FAILURES`."""
        read = [None if t is None else msgspec.json.decode(f'"{t}"'.encode(), type=bytes) for t in texts]
        return pa.array(read, pa.binary())

    def written(self, image: Any) -> bytes | None:
        """See `Form.written`: images are JSON text."""
        text: bytes | None = image
        return text


def image(raw: msgspec.Raw) -> bytes | None:
    """JSON text; None for null."""
    text = bytes(raw)
    return None if text == b"null" else text


def narrowed(message: type[msgspec.Struct], **fields: Any) -> Callable[[bytes], Any]:
    """Reads a message whose fields have these types; those with two may be null or absent."""
    given = [(name, *wire) if isinstance(wire, tuple) else (name, wire) for name, wire in fields.items()]
    found = msgspec.defstruct(message.__name__, given, bases=(message,), gc=False, kw_only=True)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(found).decode
    return decode


def only(*values: str | None) -> Any:
    """The type of these values."""
    return Literal[values]
