"""Headers that mean something: the two halves of a key change know each other by them, and a source tells what it could
not read."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Reject

OLD_KEY = "__debezium.oldkey"
"""On the create half: the key that the row had before."""
NEW_KEY = "__debezium.newkey"
"""On the delete half: the key that the row has now."""


def key_headers(headers: pa.Array) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Old keys and new keys by the record's place, as their JSON text. Fast when there are none, as is usual."""
    found: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
    for place, name, value in _entries(headers, OLD_KEY, NEW_KEY):
        found[name == NEW_KEY][place] = value
    return found


def unread(headers: pa.Array) -> dict[int, Reject]:
    """Why the source could not read a record, by the record's place (`domain.change.ERROR_HEADER`)."""
    return {place: Reject.parse(value.decode(errors="replace")) for place, _, value in _entries(headers, ERROR_HEADER)}


def _entries(headers: pa.Array, *names: str) -> list[tuple[int, str, bytes]]:
    """Place, name and value of the headers of these names."""
    if headers.null_count == len(headers):
        return []
    entries = pc.list_flatten(headers)
    known = pc.is_in(pc.struct_field(entries, "name"), value_set=pa.array(names))
    if not pc.any(known).as_py():
        return []
    places = pc.list_parent_indices(headers).filter(known).to_pylist()
    found = zip(places, entries.filter(known).to_pylist(), strict=True)
    return [(place, entry["name"], entry["value"] or b"") for place, entry in found]
