"""Decoding on Spark's executors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder

from ...delta.types import mask_impossible


def decode_records(raw: pa.Table, decoder: Decoder, table: TableSpec) -> pa.Table:
    """The changes of some records. Rows with a value that Spark cannot hold are rejected."""
    changes = decoder.decode(raw, table)
    for column in table.columns:
        mask = mask_impossible(changes[column.name])
        if mask is not None:
            changes = _reject_rows(changes, column.name, mask)
    return changes


def _reject_rows(changes: pa.Table, name: str, mask: pa.ChunkedArray) -> pa.Table:
    said = str(Reject(RejectCode.OUT_OF_RANGE, f"the value of column {name!r} is no time of day"))
    values = pc.if_else(mask, pa.scalar(None, changes[name].type), changes[name])
    errors = pc.coalesce(changes[ERROR], pc.if_else(mask, pa.scalar(said), pa.scalar(None, pa.string())))
    changes = changes.set_column(changes.column_names.index(name), name, values)
    return changes.set_column(changes.column_names.index(ERROR), ERROR, errors)
