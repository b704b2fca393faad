"""An Avro schema of Connect's, and the text that its JsonConverter would have written of values with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from fastavro import parse_schema
from fastavro.schema import SchemaParseException

from ...arrow.record_errors import UNREADABLE
from ...arrow.record_limits import RecordLimits
from ..json.schema_frames import CLOSING, MARK, OPENING
from .connect_schema import SchemaTranslator
from .connect_types import Mend

NO_SCHEMA = (*UNREADABLE, SchemaParseException, TypeError, KeyError)
"""What `read_schema` raises of text that is no Avro schema; Unfit, one of them, of a schema that is refused."""


@dataclass(frozen=True)
class ValueSchema:
    """One schema. `avro`: what values are read with. `connect`: Connect's schema of them, which `opening`, the text before a
    payload, holds. `columns`: the limit of `adapters.decoders.avro.datum_reader`."""

    avro: Any
    connect: dict[str, Any]
    opening: bytes
    mend: Mend | None
    columns: int | None

    def to_text(self, value: Any) -> bytes:
        """The text of a value with its schema."""
        mended = value if self.mend is None else self.mend(value)
        return self.opening + msgspec.json.encode(mended) + CLOSING


def read_schema(text: str | bytes, limits: RecordLimits) -> ValueSchema:
    """What an Avro schema says of values. Raises one of NO_SCHEMA."""
    node = SchemaTranslator(limits.columns, limits.depth).translate(msgspec.json.decode(text))
    opening = OPENING + msgspec.json.encode(node.connect) + MARK
    return ValueSchema(parse_schema(node.avro), node.connect, opening, node.mend, limits.columns if node.nests else None)
