"""Avro schemas with the JSON text that Connect's JsonConverter writes for their values."""

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
"""Errors of `read_schema` for text that is not an Avro schema. ValueMisfit is among them, for a refused schema."""


@dataclass(frozen=True)
class ValueSchema:
    """One schema. `avro`: the schema for reading values. `connect`: their Connect schema. `opening`: the text before a
    payload, which contains it. `columns`: the limit for `adapters.decoders.avro.datum_reader`."""

    avro: Any
    connect: dict[str, Any]
    opening: bytes
    mend: Mend | None
    columns: int | None

    def to_text(self, value: Any) -> bytes:
        """The JSON text of a value with its schema."""
        mended = value if self.mend is None else self.mend(value)
        return self.opening + msgspec.json.encode(mended) + CLOSING


def read_schema(text: str | bytes, limits: RecordLimits) -> ValueSchema:
    """The value schema of an Avro schema. Raises one of NO_SCHEMA."""
    node = SchemaTranslator(limits.columns, limits.depth).translate(msgspec.json.decode(text))
    opening = OPENING + msgspec.json.encode(node.connect) + MARK
    return ValueSchema(parse_schema(node.avro), node.connect, opening, node.mend, limits.columns if node.nests else None)
