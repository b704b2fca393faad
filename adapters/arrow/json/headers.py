"""Headers of records that mean something."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Reject


def unread(headers: pa.Array) -> dict[int, Reject]:
    """Why the source could not read a record, by the record's place (`domain.change.ERROR_HEADER`)."""
    return {place: Reject.parse(value.decode(errors="replace")) for place, _, value in entries(headers, ERROR_HEADER)}


def entries(headers: pa.Array, *names: str) -> list[tuple[int, str, bytes]]:
    """Place, name and value of the headers of these names. Fast when there are none, as is usual."""
    if headers.null_count == len(headers):
        return []
    flat = pc.list_flatten(headers)
    known = pc.is_in(pc.struct_field(flat, "name"), value_set=pa.array(names))
    if not pc.any(known).as_py():
        return []
    places = pc.list_parent_indices(headers).filter(known).to_pylist()
    found = zip(places, flat.filter(known).to_pylist(), strict=True)
    return [(place, entry["name"], entry["value"] or b"") for place, entry in found]
