"""The types that the config names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

TYPES: Mapping[str, pa.DataType] = {
    **{name: pa.type_for_alias(name) for name in ("int8", "int16", "int32", "int64", "float32", "float64")},
    **{"float": pa.float32(), "double": pa.float64(), "bool": pa.bool_(), "boolean": pa.bool_()},
    **{"string": pa.string(), "binary": pa.binary(), "date": pa.date32(), "date32": pa.date32()},
    **{"timestamp": pa.timestamp("us"), "timestamp[us]": pa.timestamp("us")},
    **dict.fromkeys(("timestamptz", "timestamp[us, utc]"), pa.timestamp("us", "UTC")),
}
DECIMAL = re.compile(r"decimal\((\d{1,2})(?:, ?(\d{1,2}))?\)")
MAX_DIGITS, WIDE_DIGITS = 38, 76


def find_type(text: str) -> pa.DataType | None:
    """The Arrow type of that name, as far as every sink knows it."""
    name = re.sub(r"\s*,\s*", ", ", text.strip().lower())
    found = DECIMAL.fullmatch(name)
    if found is None:
        return TYPES.get(name)
    digits, scale = int(found[1]), int(found[2] or 0)
    if not 1 <= digits <= WIDE_DIGITS or scale > digits:
        return None
    return pa.decimal128(digits, scale) if digits <= MAX_DIGITS else pa.decimal256(digits, scale)
