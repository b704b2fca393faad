"""Applies the records of a table's rows one by one, to compare the result with the table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from adapters.decoders.rows import RowsDecoder
from replicator.domain.position import Position


def read_records(
    one: Any, start: Mapping | None = None, to_arrow: Callable[[Any], pa.Table] = lambda frame: frame
) -> pa.Table:
    """All records from `start`, or from the source's start, of all batches."""
    batches: list[pa.Table] = []
    one.run(Position(start or {}), lambda batch: batches.append(to_arrow(batch.frame)), threading.Event(), once=True)
    return pa.concat_tables(batches)


def decode_changes(frame: pa.Table, keys=("id",)) -> list[dict[str, Any]]:
    """The changes. Records may have different schemas."""
    decoder, out = RowsDecoder({"keys": {"items": list(keys)}}), []
    routes = decoder.route(frame)
    assert not any(routes["error"].to_pylist())
    prints = routes["fingerprint"].to_pylist()
    for at, fingerprint in enumerate(prints):
        one = frame.slice(at, 1)
        changes = decoder.decode(one, decoder.learn(one, "items", fingerprint)).to_pylist()
        assert not any(change["_error"] for change in changes), changes
        out += changes
    return out


def apply_changes(changes: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The rows after the changes. As in a target, a change is applied only if it is above the last one of its key."""
    rows: dict[Any, tuple[tuple[int, ...], dict[str, Any] | None]] = {}
    for change in changes:
        sequence = tuple(change[f"_seq_{i}"] for i in (1, 2, 3))
        if change["id"] not in rows or rows[change["id"]][0] < sequence:
            row = {name: value for name, value in change.items() if not name.startswith("_")}
            rows[change["id"]] = (sequence, None if change["_op"] == "d" else row)
    return {key: row for key, (_, row) in rows.items() if row is not None}


def read_table_rows(path: str) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
