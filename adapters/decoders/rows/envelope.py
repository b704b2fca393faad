"""Envelope columns of the event log."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.time_bounds import null_out_of_range

from ...arrow.frame_slices import Part, select_records
from ...arrow.record_errors import UNREADABLE, build_or_reject, decode_or_reject
from ..json.envelopes import build_envelope, build_envelopes
from ..json.schema_frames import SchemaGroup, split_members
from .changes import STAMP, offsets_to_sequence, read_operation
from .layouts import RowLayouts
from .options import RowsDecoderOptions

CONNECTOR = "rows"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RowEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        return build_envelopes(raw, self._options.limits.depth, self._read_group)

    def _read_group(self, raw: pa.RecordBatch, group: SchemaGroup) -> Part:
        mine, payloads = select_records(raw, group.rows), group.payloads()
        rows, errors = decode_or_reject(_fields, payloads, {})
        for i, payload in split_members(raw.column("value"), group, errors, self._options.limits.depth).items():
            again, still = decode_or_reject(_fields, [payload], {})
            if not still:
                payloads[i], rows[i] = payload, again[0]
                del errors[i]
        topics = mine.column("topic").to_pylist()
        layouts = {topic: self._layouts.get_layout(group.schema, topic) for topic in set(topics)}
        ops = []
        for i, topic in enumerate(topics):
            value = _to_scalar(rows[i].get(self._options.operation_column))
            op = read_operation(value, self._options)
            error = layouts[topic].error or (self._options.unknown_operation_reject(value) if op is None else None)
            if error is not None:
                errors.setdefault(i, error)
            ops.append(None if i in errors else op)
        images = _build_images(ops, payloads, errors)
        known = pa.array([op is not None for op in ops], pa.bool_())
        columns = {
            **images,
            "connector": pc.if_else(known, CONNECTOR, pa.scalar(None, pa.string())),
            "table": pc.if_else(known, mine.column("topic"), pa.scalar(None, pa.string())),
            "op": pa.array(ops, pa.string()),
            **{f"seq_{k}": element for k, element in enumerate(self._read_sequence(mine, rows), 1)},
            "ts": null_out_of_range(mine.column("timestamp").cast(STAMP)),
            "schema_id": pa.array([layouts[topic].fingerprint for topic in topics], pa.string()),
            "error": pa.array([str(errors[i]) if i in errors else None for i in range(len(rows))], pa.string()),
        }
        return group.rows, build_envelope(len(rows), columns)

    def _read_sequence(self, mine: pa.RecordBatch, rows: list[dict[str, msgspec.Raw]]) -> list[pa.Array]:
        names = self._options.sequence_columns
        return [_read_element(rows, name) for name in names] if names else offsets_to_sequence(mine.column("offset"))


def _build_images(ops: list[Op | None], payloads: list[bytes], errors: dict[int, Reject]) -> dict[str, pa.Array]:
    """The rows as they were sent: before for a delete, after for others."""
    is_delete = [op == Op.DELETE for op in ops]
    texts = [text if op is not None else None for op, text in zip(ops, payloads, strict=True)]
    images, bad = build_or_reject(lambda some: pa.array(some, pa.binary()).cast(pa.string()), texts, "it")
    for i, reject in bad.items():
        errors.setdefault(i, reject)
    deleted, nothing = pa.array(is_delete, pa.bool_()), pa.scalar(None, pa.string())
    return {"before": pc.if_else(deleted, images, nothing), "after": pc.if_else(deleted, nothing, images)}


def _read_element(rows: list[dict[str, msgspec.Raw]], name: str) -> pa.Array:
    values = [_to_scalar(row.get(name)) for row in rows]
    return build_or_reject(lambda some: pa.array(some, pa.int64()), [v if type(v) is int else None for v in values], name)[0]


def _to_scalar(value: msgspec.Raw | None) -> Any:
    """A text, number or boolean; None for other values, which are neither an operation nor a sequence."""
    if value is None or bytes(value).startswith((b"{", b"[")):
        return None
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return None
