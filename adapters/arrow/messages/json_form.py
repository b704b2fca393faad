"""What formats have in common whose messages are JSON, and whose rows are JSON objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import RejectCode

from ..json.faults import Unfit
from ..json.framing import refuse_depth
from ..json.limits import Limits
from .message import Form, Message
from .rows import JsonRows

NULL = msgspec.Raw(b"null")


class JsonForm(Form):
    """A form of JSON, whose messages say no types and write bytes in Base64 unless a subclass knows better."""

    def message(self, text: bytes) -> Message:
        """The message. Raises one of `json.faults.UNREADABLE`, `Unfit` among them, for anything else."""
        raise NotImplementedError

    def read(self, value: bytes, limits: Limits) -> Message:
        """See `Form.read`."""
        refuse_depth(value, limits.depth)
        return self.message(value)

    def type_of(self, said: str) -> pa.DataType:
        """See `Form.type_of`."""
        raise Unfit(RejectCode.MALFORMED, f"{said[:60]!r} is no type that is known")

    def rows(self, columns: Mapping[str, tuple[pa.DataType, pa.DataType]]) -> JsonRows:
        """See `Form.rows`."""
        return JsonRows(columns, self.to_bytes)

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
