"""Marks of records that sources and decoders write: headers, and the value of a withheld record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Reject, RejectCode

WITHHELD = b'{"withheld": "cannot be read, and may hold private values"}'
"""Replaces keys and values that may hold private values and cannot be masked. In some formats it would be a row."""
OURS = (ERROR_HEADER, "replicator.masked", "replicator.json", "dms.columns", "dms.kind")
"""The headers that sources and decoders add. All others may have any content."""
NOT_STORED = Reject(RejectCode.MALFORMED, "it was not stored: it could not be read, and may hold private values")


def is_harmless(headers: pa.ChunkedArray, *prefixes: str) -> bool:
    """True if `strip_values` would not change any header."""
    if headers.null_count == len(headers):
        return True
    names = pc.unique(pc.struct_field(pc.list_flatten(headers), "name")).to_pylist()
    return all(_is_kept_name(name, prefixes) for name in names)


def strip_values(headers: Sequence[dict[str, Any]] | None, *prefixes: str) -> list[dict[str, Any]] | None:
    """The headers of a record. Headers that may repeat values of rows, such as those of transforms, keep only their
    names. `prefixes`: prefixes of names of headers that keep their values."""
    return None if headers is None else [h if _is_kept_name(h["name"], prefixes) else {**h, "value": None} for h in headers]


def _is_kept_name(name: str, begins: tuple[str, ...]) -> bool:
    return name in OURS or name.startswith(begins)


def find_read_errors(raw: pa.RecordBatch) -> dict[int, Reject]:
    """The errors of records without content, by index: withheld ones, and those with a read error of the source
    (`domain.change.ERROR_HEADER`)."""
    errors = dict.fromkeys(find_redacted(raw), NOT_STORED)
    entries = find_entries(raw.column("headers"), ERROR_HEADER)
    return errors | {index: Reject.parse(value.decode(errors="replace")) for index, _, value in entries}


def find_redacted(raw: pa.RecordBatch) -> Sequence[int]:
    """The indices of records whose value is withheld."""
    withheld = is_redacted(raw.column("value"))
    indices: list[int] = pc.indices_nonzero(withheld).to_pylist() if withheld.true_count else []
    return indices


def is_redacted(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """True for withheld values, null for missing ones."""
    return pc.equal(values, pa.scalar(WITHHELD, pa.binary()))


def find_entries(headers: pa.Array, *names: str) -> list[tuple[int, str, bytes]]:
    """Record index, name and value of the headers with these names. Fast if there are none, the usual case."""
    if headers.null_count == len(headers):
        return []
    flat = pc.list_flatten(headers)
    is_named = pc.is_in(pc.struct_field(flat, "name"), value_set=pa.array(names))
    if not pc.any(is_named).as_py():
        return []
    indices = pc.list_parent_indices(headers).filter(is_named).to_pylist()
    entries = zip(indices, flat.filter(is_named).to_pylist(), strict=True)
    return [(index, entry["name"], entry["value"] or b"") for index, entry in entries]


def read_values(headers: pa.Array, name: str) -> pa.Array:
    """For each record the bytes of its first header with that name, or null."""
    nothing = pa.nulls(len(headers), pa.binary())
    if headers.null_count == len(headers):
        return nothing
    flat = pc.list_flatten(headers)
    is_named = pc.fill_null(pc.equal(pc.struct_field(flat, "name"), name), False)
    if not pc.any(is_named).as_py():
        return nothing
    parents = pc.list_parent_indices(headers).filter(is_named)
    values = pc.fill_null(pc.struct_field(flat, "value").filter(is_named), b"")
    all_of_them = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, parents.type), len(headers))), 1)
    return values if parents.equals(all_of_them) else values.take(pc.index_in(all_of_them, value_set=parents))
