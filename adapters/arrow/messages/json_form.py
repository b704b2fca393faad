"""What formats have in common whose messages are JSON, and whose rows are JSON objects."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from replicator.domain.change import Op
from replicator.domain.errors import RejectCode
from replicator.domain.table import Column

from ..json.faults import UNREADABLE, Unfit
from ..json.framing import refuse_depth
from ..json.limits import Limits
from ..texts import Read
from ..veils.masking import Role
from .message import Form, Message, ReadsMany
from .rows import JsonRows
from .typed import ColumnType, ColumnTypes, TypedRows, read_texts, typed_rows

NULL = msgspec.Raw(b"null")


class Names(msgspec.Struct, gc=False):
    """What a message says of its table, if nothing else."""

    database: str | None = None
    table: str | None = None


_names = msgspec.json.Decoder(Names).decode


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

    def column(self, name: str, said: str) -> Column | None:  # noqa: ARG002 - messages say no types
        """See `Form.column`."""
        return None

    def table_of(self, value: bytes, limits: Limits) -> str | None:  # noqa: ARG002 - other fields are passed over
        """See `Form.table_of`."""
        try:
            said = _names(value)
        except UNREADABLE:
            return None
        return f"{said.database}.{said.table}" if said.database and said.table else said.table or None

    def rows(self, columns: ColumnTypes) -> JsonRows:
        """See `Form.rows`."""
        return JsonRows(columns, self.reader)

    def many(self, like: bytes, columns: ColumnTypes, keys: Sequence[str]) -> ReadsMany | None:
        """See `Form.many`."""
        rows = typed_rows(columns, keys, self.reader, texts_only=self.texts_only)
        return None if rows is None else self.together(like, rows)

    def together(self, like: bytes, rows: TypedRows) -> ReadsMany:
        """What reads messages together that are of the same layout as this one, and have these rows."""
        raise NotImplementedError

    def reader(self, column: ColumnType) -> Read:
        """How texts of a column become values of the type `sent`."""
        return _base64 if pa.types.is_binary(column.sent) else read_texts(column)

    def written(self, image: Any) -> bytes | None:
        """See `Form.written`: images are JSON text."""
        text: bytes | None = image
        return text


def _base64(texts: pa.Array) -> pa.Array:
    try:
        return pa.array([None if t is None else b64decode(t, validate=True) for t in texts.to_pylist()], pa.binary())
    except ValueError:
        raise Unfit(RejectCode.MALFORMED, "holds text that is no Base64, which bytes are written in") from None


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
