"""Records as `dts_binlog_parser` of Alibaba's E-MapReduce shows them: nine columns, five of them JSON text.

These properties are kept, because existing queries rely on them:

- An image lacks columns that are NULL (`fields` has their names).
- Names in an image have the iteration order of Scala's hash maps.
- A TIMESTAMP is `1618239451.000000`.
- A name of three parts loses the middle part.
- A record without a table has `null.null`.

These differ: the text of a statement is in `afterImages`, bytes are Base64, and an empty image is `{}`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.plain_values import format_count

from ...arrow.record_errors import RecordLimits, ValueMisfit
from .rows import NAMESPACE, NONE, NULL, read_record, to_text_or_bytes

PRINTED = pa.schema(
    [
        ("recordID", pa.int64()),
        ("source", pa.string()),
        ("dbTable", pa.string()),
        ("recordType", pa.string()),
        ("recordTimestamp", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in ("extraTags", "fields", "beforeImages", "afterImages", "error")),
    ]
)
"""`error`: why the record is unreadable; all other columns are null then."""
TIMESTAMP = f"{NAMESPACE}.Timestamp"
DOT = "\\u002E"
GOLDEN = 0x9E3775CD
SMALLEST, LOAD = 16, 0.75


def print_records(values: Iterable[bytes | None], limits: RecordLimits) -> pa.Table:
    """A table with schema `PRINTED` and one row per value; all null for None."""
    rows: list[dict[str, Any]] = []
    for value in values:
        if value is None:
            rows.append({})
            continue
        try:
            record = read_record(value, limits)
            names = [field["name"] for field in record["fields"]] if isinstance(record["fields"], list) else []
            source, table = record["source"], "null.null"
            if record["objectName"] is not None:
                first, *others = (name.replace(DOT, ".") for name in record["objectName"].split("."))
                table = f"{first}.{others[-1] if others else ''}"
            row = {
                "recordID": record["id"],
                "source": f'{{"sourceType": {_to_json(source["sourceType"])}, "version": {_to_json(source["version"])}}}',
                "dbTable": table,
                "recordType": record["operation"],
                "recordTimestamp": _to_time(record["sourceTimestamp"]),
                "extraTags": _to_json(record["tags"]),
                "fields": _to_json(names),
                "beforeImages": _print_image(record["beforeImages"], names),
                "afterImages": _print_image(record["afterImages"], names),
            }
        except ValueMisfit as unfit:
            row = {"error": str(unfit.reject)}
        rows.append(row)
    return pa.Table.from_pylist(rows, PRINTED)


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _to_time(seconds: int) -> datetime | None:
    """The time in UTC; None outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _print_image(image: object, names: list[str]) -> str:
    if not isinstance(image, list):
        return image if isinstance(image, str) else "{}"
    if len(image) != len(names):
        raise ValueMisfit(
            "MALFORMED", f"it has an image of {format_count(len(image), 'value')}, and {format_count(len(names), 'field')}"
        )
    texts = {name: text for name, value in zip(names, image, strict=True) if (text := _print_text(value)) is not None}
    return _to_json({name: texts[name] for name in sort_like_scala(texts)})


def _print_text(value: Any) -> str | None:
    """The text of a value; None for values that an image leaves out."""
    content = value[1] if isinstance(value, tuple) else value
    if content in (None, NULL, NONE):
        return None
    branch, datum = value
    if branch == TIMESTAMP:
        return f"{datum['timestamp']}.{datum['millis']:06}"
    try:
        text = to_text_or_bytes(value)
    except ValueMisfit:  # Text with invalid characters, or an invalid time.
        content = datum.get("value", datum)
        text = content if isinstance(content, bytes | str) else _to_json(content)
    return text if isinstance(text, str) else b64encode(text).decode()


def sort_like_scala(names: Iterable[str]) -> list[str]:
    """`names` in the iteration order of a `scala.collection.mutable.HashMap` (2.12), when put in this order."""
    several = list(names)[::-1]  # Iteration over a bucket starts at its newest name.
    size = SMALLEST
    while len(several) > size * LOAD:
        size *= 2
    return sorted(several, key=lambda name: -_scala_bucket(name, size))


def _scala_bucket(name: str, size: int) -> int:
    """The bucket of a name: Java's hash, multiplied before and after a byte swap, rotated, highest bits."""
    hashed = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + 256 * high + low) & 0xFFFFFFFF
    spread = (hashed * GOLDEN) & 0xFFFFFFFF
    spread = (int.from_bytes(spread.to_bytes(4, "little"), "big") * GOLDEN) & 0xFFFFFFFF
    bits = size.bit_length() - 1
    rotated = (spread >> bits | spread << (32 - bits)) & 0xFFFFFFFF
    return rotated >> (32 - bits)
