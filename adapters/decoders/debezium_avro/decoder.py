"""Decoder of Debezium's events in Avro."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import changes_schema
from replicator.domain.connectors import Connector
from replicator.domain.errors import ConfigProblem, Fatal, Reject
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark
from replicator.ports.decoder import ENVELOPE, ROUTE, DecoderFeatures

from ...arrow.frame_slices import build_rejected, map_slices, merge_parts, select_records, split_frame
from ..common.pipeline import CompositeDecoder, EnvelopeReader, FrameDecoder, FrameRouter
from ..debezium.changes import DebeziumFrameDecoder
from ..debezium.envelope import DebeziumEnvelopes
from ..debezium.masking import DebeziumMasker
from ..debezium.router import DebeziumRouter
from ..debezium.schema import NOT_JSON
from ..debezium.table_schema import TableLearner
from ..debezium.transaction_marks import find_connector, read_markers
from ..json.envelopes import build_envelope
from ..masking.records import MaskedRecord, replace_records
from ..options import DebeziumAvroOptions
from .json_text import AS_TEXT, AvroTextReader, JsonTexts, get_schemas

UNBOUNDED = 2**62


class DebeziumAvroDecoder(CompositeDecoder):
    """`ports.decoder.Decoder` of Debezium's events in Avro. Raises ConfigProblem that names every wrong option.

    Pickled as its options; schemas are cached in each process. A call may raise Retryable (the registry does not answer)
    or EnvironmentProblem (the registry refuses access). This only happens for an id whose schema is not cached, and the
    call has done nothing then.
    """

    def __init__(self, options: DebeziumAvroOptions | Mapping[str, object] | None = None) -> None:
        checked = DebeziumAvroOptions.read(options or {})
        # The limit applies to the received bytes; their JSON text with its schema may be longer.
        inner = checked.model_copy(update={"limits": checked.limits.model_copy(update={"message_bytes": UNBOUNDED})})
        routing, decoding = DebeziumRouter(inner), DebeziumFrameDecoder(inner)
        self._depth = checked.limits.depth
        self._learning = TableLearner(inner, routing, decoding.readers)
        self._reading = AvroTextReader(get_schemas(checked.registry, checked.limits), checked.limits)
        self._framed = FramedRecords(
            self._reading,
            routing,
            decoding,
            DebeziumEnvelopes(inner, routing),
            needs_keys=checked.any_tombstone_deletes,
        )
        self._private = DebeziumMasker(inner)
        super().__init__(checked, routing=self._framed, decoding=self._framed, envelopes=self._framed)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        learnt = self._learning.learn(self._framed.read_frames(sample), table, fingerprint)
        return self._private.masked_spec(learnt, sample["value"]) if self._private.get_masks(table) else learnt

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        if not self._private.get_masks(table.name) or not raw.num_rows:
            return super().decode(raw, table)
        try:
            learnt = self._learning.learn(self._framed.read_frames(raw), table.name, table.fingerprint)
            before = self._private.unmasked_spec(table, learnt)
        except (ConfigProblem, Fatal):
            before = table  # None of the records is readable, which `decode` reports for each.
        return self._private.mask_changes(super().decode(raw, before), before, table)

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures(mask_records=self.mask_records, read_marks=self.marks, find_connector=self.connector)

    def mask_records(self, raw: pa.Table) -> pa.Table:
        """Records of tables with private columns are stored as text."""
        if not self._private or not raw.num_rows:
            return raw
        routes = self.route(raw)
        tables, errors = routes["table"].to_pylist(), routes["error"].to_pylist()
        return self._private.mask_records(to_masked_text(raw, self._reading, self._private, tables, errors), tables, errors)

    def marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        return read_markers(self._framed.read_frames(raw), self._depth)

    def connector(self, raw: pa.Table) -> Connector | None:
        return find_connector(raw, self._depth, self._framed.read_frames)


# Decoder calls for framed records: readable records are passed on as JSON, others get their errors.


NO_KEY = str(NOT_JSON.error)


class FramedRecords:
    """`FrameRouter`, `FrameDecoder` and `EnvelopeReader` of framed records. `needs_keys`: records without a value are
    deletes of their key, so one with an unreadable key must be rejected, not ignored."""

    def __init__(
        self,
        reading: AvroTextReader,
        routes: FrameRouter,
        decodes: FrameDecoder,
        envelopes: EnvelopeReader,
        *,
        needs_keys: bool,
    ) -> None:
        self._reading, self._needs_keys = reading, needs_keys
        self._routes, self._decodes, self._envelopes = routes, decodes, envelopes

    def route(self, raw: pa.Table) -> pa.Table:
        def one(piece: pa.RecordBatch) -> pa.Table:
            texts = self._reading.read_texts(piece)
            found = self._routes.route(pa.Table.from_batches([texts.raw]))
            found = self._add_key_errors(found, texts) if texts.of_keys else found
            return _merge_parts(piece, texts, found, ROUTE, _reject_route)

        return map_slices(raw, ROUTE, one)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        schema = changes_schema(table)

        def bad(piece: pa.RecordBatch, why: list[Reject]) -> pa.Table:
            return build_rejected(piece, table, why)

        def one(piece: pa.RecordBatch) -> pa.Table:
            texts = self._reading.read_texts(piece)
            return _merge_parts(piece, texts, self._decodes.decode(pa.Table.from_batches([texts.raw]), table), schema, bad)

        return map_slices(raw, schema, one)

    def envelope(self, raw: pa.Table) -> pa.Table:
        def one(piece: pa.RecordBatch) -> pa.Table:
            texts = self._reading.read_texts(piece)
            return _merge_parts(
                piece, texts, self._envelopes.envelope(pa.Table.from_batches([texts.raw])), ENVELOPE, _reject_envelope
            )

        return map_slices(raw, ENVELOPE, one)

    def read_frames(self, raw: pa.Table) -> pa.Table:
        """The records with a readable value, as JSON text; unreadable keys are null."""
        whole = pa.Table.from_batches([self._reading.read_texts(piece).raw for piece in split_frame(raw)], raw.schema)
        keys = pc.if_else(pc.equal(pc.binary_length(whole["key"]), 0), None, whole["key"])
        return whole.set_column(whole.column_names.index("key"), raw.schema.field("key"), keys)

    def _add_key_errors(self, routes: pa.Table, texts: JsonTexts) -> pa.Table:
        """Add the error of the key to records that are rejected because of it."""
        places = range(routes.num_rows) if texts.places is None else texts.places
        rows = routes.to_pylist()
        for row, place, value in zip(rows, places, texts.raw.column("value"), strict=True):
            lost = self._needs_keys and not value.is_valid
            if place in texts.of_keys and (row["error"] == NO_KEY or lost):
                reject = texts.of_keys[place]
                row |= {**dict.fromkeys(ROUTE.names), "error": str(Reject(reject.code, f"its key: {reject.sentence}"))}
        return pa.Table.from_pylist(rows, ROUTE)


def _merge_parts(
    piece: pa.RecordBatch,
    texts: JsonTexts,
    good: pa.Table,
    schema: pa.Schema,
    of_bad: Callable[[pa.RecordBatch, list[Reject]], pa.Table],
) -> pa.Table:
    """Results for all records of a slice, in their order."""
    if texts.places is None:
        return good
    bad = sorted(texts.errors)
    return merge_parts(
        [(texts.places, good), (bad, of_bad(select_records(piece, bad), [texts.errors[i] for i in bad]))], schema
    )


def _reject_route(_: pa.RecordBatch, why: list[Reject]) -> pa.Table:
    nothing = pa.nulls(len(why), pa.string())
    return pa.Table.from_arrays([nothing, nothing, nothing, pa.array(map(str, why), pa.string())], schema=ROUTE)


def _reject_envelope(_: pa.RecordBatch, why: list[Reject]) -> pa.Table:
    return build_envelope(len(why), {"error": pa.array(map(str, why), pa.string())})


# Records of tables with private columns as JSON text, which can hold any masked value.


def to_masked_text(
    raw: pa.Table,
    reading: AvroTextReader,
    private: DebeziumMasker,
    tables: Sequence[str | None],
    errors: Sequence[str | None],
) -> pa.Table:
    """The records, as text if their table has private columns or is unknown. Each has a table or an error. Unreadable
    keys are dropped, because their content is unknown."""
    topics = raw["topic"].to_pylist()
    named = zip(tables, topics, errors, strict=True)
    wanted = [error is None and private.is_masked(table, topic) for table, topic, error in named]
    if not any(wanted):
        return raw
    rows = raw.select(MaskedRecord._fields).to_pylist()
    start = 0
    for piece in split_frame(raw):
        texts = reading.read_texts(piece)
        places = range(piece.num_rows) if texts.places is None else texts.places
        pairs = zip(places, *(texts.raw.column(name).to_pylist() for name in ("key", "value")), strict=True)
        for place, key, value in pairs:
            if wanted[start + place]:
                kept = None if place in texts.of_keys else key
                rows[start + place] = {"headers": _mark_headers(rows[start + place]["headers"]), "key": kept, "value": value}
        start += piece.num_rows
    return replace_records(raw, [MaskedRecord(**row) for row in rows])


def _mark_headers(headers: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [*(one for one in headers or () if one["name"] != AS_TEXT), {"name": AS_TEXT, "value": b""}]
