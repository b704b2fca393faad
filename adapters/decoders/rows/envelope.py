"""What the event log keeps of a row beside its bytes."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import Op
from replicator.domain.errors import Reject
from replicator.domain.moments import in_years

from ...arrow.json.envelopes import envelope, envelopes
from ...arrow.json.faults import UNREADABLE, fit, read
from ...arrow.json.framing import Group, taken_apart
from ...arrow.json.pieces import Part, some
from .changes import STAMP, of_offsets, operation
from .layouts import Layouts
from .options import Options

CONNECTOR = "rows"
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Envelopes:
    """Reads envelopes of any records; what cannot be read is null, and its `error` says why."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return envelopes(raw, self._options.limits.depth, self._group)

    def _group(self, raw: pa.RecordBatch, group: Group) -> Part:
        mine, payloads = some(raw, group.rows), group.payloads()
        rows, errors = read(_fields, payloads, {})
        for i, payload in taken_apart(raw.column("value"), group, errors, self._options.limits.depth).items():
            again, still = read(_fields, [payload], {})
            if not still:
                payloads[i], rows[i] = payload, again[0]
                del errors[i]
        topics = mine.column("topic").to_pylist()
        layouts = {topic: self._layouts.of(group.schema, topic) for topic in set(topics)}
        ops = []
        for i, topic in enumerate(topics):
            value = _scalar(rows[i].get(self._options.operation_column))
            op = operation(value, self._options)
            error = layouts[topic].error or (self._options.unknown_operation(value) if op is None else None)
            if error is not None:
                errors.setdefault(i, error)
            ops.append(None if i in errors else op)
        images = _images(ops, payloads, errors)
        known = pa.array([op is not None for op in ops], pa.bool_())
        columns = {
            **images,
            "connector": pc.if_else(known, CONNECTOR, pa.scalar(None, pa.string())),
            "table": pc.if_else(known, mine.column("topic"), pa.scalar(None, pa.string())),
            "op": pa.array(ops, pa.string()),
            **{f"seq_{k}": element for k, element in enumerate(self._sequence(mine, rows), 1)},
            "ts": in_years(mine.column("timestamp").cast(STAMP)),
            "schema_id": pa.array([layouts[topic].fingerprint for topic in topics], pa.string()),
            "error": pa.array([str(errors[i]) if i in errors else None for i in range(len(rows))], pa.string()),
        }
        return group.rows, envelope(len(rows), columns)

    def _sequence(self, mine: pa.RecordBatch, rows: list[dict[str, msgspec.Raw]]) -> list[pa.Array]:
        names = self._options.sequence_columns
        return [_element(rows, name) for name in names] if names else of_offsets(mine.column("offset"))


def _images(ops: list[Op | None], payloads: list[bytes], errors: dict[int, Reject]) -> dict[str, pa.Array]:
    """The rows as they were sent: before for a delete, after for the others."""
    is_delete = [op == Op.DELETE for op in ops]
    texts = [text if op is not None else None for op, text in zip(ops, payloads, strict=True)]
    images, bad = fit(lambda some: pa.array(some, pa.binary()).cast(pa.string()), texts, "it")
    for i, reject in bad.items():
        errors.setdefault(i, reject)
    deleted, nothing = pa.array(is_delete, pa.bool_()), pa.scalar(None, pa.string())
    return {"before": pc.if_else(deleted, images, nothing), "after": pc.if_else(deleted, nothing, images)}


def _element(rows: list[dict[str, msgspec.Raw]], name: str) -> pa.Array:
    values = [_scalar(row.get(name)) for row in rows]
    return fit(lambda some: pa.array(some, pa.int64()), [v if type(v) is int else None for v in values], name)[0]


def _scalar(value: msgspec.Raw | None) -> Any:
    """A value that is text, a number or a truth value; None for anything else: it is no operation and no sequence."""
    if value is None or bytes(value).startswith((b"{", b"[")):
        return None
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return None
