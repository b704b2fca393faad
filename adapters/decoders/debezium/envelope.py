"""Envelope columns of the event log."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject

from ...arrow.frame_slices import Part, select_records
from ...arrow.record_errors import build_or_reject, decode_or_reject
from ..json.schema_frames import SchemaGroup, build_envelope, build_envelopes
from ..options import DebeziumOptions
from .records import SourceBlock, TransactionBlock, read_event_times
from .router import BARE, DebeziumRouter, find_kind_without_schema, to_table_name
from .sequence import SequenceFacts, order_changes

NULL = msgspec.Raw(b"null")


class FullSourceBlock(SourceBlock, gc=False):
    """All fields of a source block: the table, and the position and time of the change."""

    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


class EnvelopeEvent(msgspec.Struct, gc=False):
    """A change event with its images as JSON text."""

    op: str | None = None
    source: FullSourceBlock | None = None
    transaction: TransactionBlock | None = None
    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


NO_BLOCK, NO_EVENT = FullSourceBlock(), EnvelopeEvent()
_event = msgspec.json.Decoder(EnvelopeEvent).decode


class DebeziumEnvelopes:
    """Reads the envelopes of any records. Unreadable values are null, with the reason in `error`."""

    def __init__(self, options: DebeziumOptions, routing: DebeziumRouter) -> None:
        self._options, self._routing = options, routing

    def envelope(self, raw: pa.Table) -> pa.Table:
        return build_envelopes(raw, self._options.limits.depth, self._read_group)

    def _read_group(self, raw: pa.RecordBatch, group: SchemaGroup) -> Part:
        subset = select_records(raw, group.rows)
        payloads = group.payloads()
        events, errors = decode_or_reject(_event, payloads, NO_EVENT)
        if group.schema is None:
            fingerprint = BARE
            errors |= _find_unknown(events, payloads, subset.column("topic"))
        else:
            said = self._routing.read_schema(group.schema)
            fingerprint = said.fingerprint
            errors |= dict.fromkeys(range(len(events)), said.error) if said.error else {}
        return group.rows, self._build_columns(subset, events, fingerprint, errors)

    def _build_columns(
        self, raw: pa.RecordBatch, events: list[EnvelopeEvent], fingerprint: str, errors: dict[int, Reject]
    ) -> pa.Table:
        blocks = [e.source or NO_BLOCK for e in events]
        count = len(events)
        before, bad_before = build_or_reject(_text_array, [e.before for e in events], "its before image")
        after, bad_after = build_or_reject(_text_array, [e.after for e in events], "its after image")
        reasons = {**bad_after, **bad_before, **errors}
        columns = {
            "source": _string_array(blocks, "name"),
            "connector": _string_array(blocks, "connector"),
            "db": _string_array(blocks, "db"),
            "table": pa.array([to_table_name(b) for b in blocks], pa.string()),
            "op": _string_array(events, "op"),
            "before": before,
            "after": after,
            "ts": read_event_times(blocks),
            "schema_id": pa.repeat(pa.scalar(fingerprint), count),
            "error": pa.array([str(reasons[i]) if i in reasons else None for i in range(count)], pa.string()),
            **self._read_order(raw, events, blocks),
        }
        return build_envelope(count, columns)

    def _read_order(
        self, raw: pa.RecordBatch, events: list[EnvelopeEvent], blocks: list[FullSourceBlock]
    ) -> dict[str, pa.Array]:
        """The sequence as in the changes frame. A record without a key belongs to a table without a key."""
        keyed: list[bool] = pc.is_valid(raw.column("key")).to_pylist()
        sources: list[SourceBlock] = list(blocks)
        facts = SequenceFacts(sources, [e.transaction for e in events], [e.op for e in events], raw.column("offset"), keyed)
        order = order_changes(facts, self._options.epoch)
        elements = order.elements
        if order.errors:
            known = pa.array([i not in order.errors for i in range(len(events))], pa.bool_())
            elements = [pc.if_else(known, e, None) for e in elements]
        padded = [*elements, pa.nulls(len(events), pa.int64())]
        return {**{f"seq_{i}": e for i, e in enumerate(padded, 1)}, "tx": order.tx}


def _find_unknown(events: list[EnvelopeEvent], payloads: list[bytes], topics: pa.Array) -> dict[int, Reject]:
    """Errors of records without a schema that are neither change events nor known control records."""
    found = {}
    for place, event in enumerate(events):
        if event.op is None or event.source is None:
            kind = find_kind_without_schema(payloads[place], topics[place].as_py())
            if isinstance(kind, Reject):
                found[place] = kind
    return found


def _string_array(of: Sequence[object], name: str) -> pa.Array:
    return pa.array(list(map(attrgetter(name), of)), pa.string())


def _text_array(images: Sequence[msgspec.Raw | None]) -> pa.Array:
    texts = [None if image is None else bytes(image) for image in images]
    texts = [msgspec.json.decode(t, type=str).encode() if t and t[:1] == b'"' else t for t in texts]  # Images of documents.
    return pa.array([None if t == b"null" else t for t in texts], pa.binary()).cast(pa.string())
