"""Decoder calls for framed records: readable records are passed on as JSON, others get their errors."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE

from ...arrow.frame_slices import build_rejected, merge_parts, select_records, split_frame
from ..common.composite_decoder import EnvelopeReader, FrameDecoder, FrameRouter
from ..debezium.keys import NOT_JSON
from ..json.envelopes import build_envelope
from .json_text import AvroTextReader, JsonTexts

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

        return _read_slices(raw, ROUTE, one)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        schema = changes_schema(table)

        def bad(piece: pa.RecordBatch, why: list[Reject]) -> pa.Table:
            return build_rejected(piece, table, why)

        def one(piece: pa.RecordBatch) -> pa.Table:
            texts = self._reading.read_texts(piece)
            return _merge_parts(piece, texts, self._decodes.decode(pa.Table.from_batches([texts.raw]), table), schema, bad)

        return _read_slices(raw, schema, one)

    def envelope(self, raw: pa.Table) -> pa.Table:
        def one(piece: pa.RecordBatch) -> pa.Table:
            texts = self._reading.read_texts(piece)
            return _merge_parts(
                piece, texts, self._envelopes.envelope(pa.Table.from_batches([texts.raw])), ENVELOPE, _reject_envelope
            )

        return _read_slices(raw, ENVELOPE, one)

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


def _read_slices(raw: pa.Table, schema: pa.Schema, one: Callable[[pa.RecordBatch], pa.Table]) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *map(one, split_frame(raw))]).combine_chunks()


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
