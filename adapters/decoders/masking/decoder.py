"""A composite decoder with masking."""

from __future__ import annotations

from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec
from replicator.ports.adapter_options import DecoderOptions
from replicator.ports.decoder import ENVELOPE, DecoderFeatures

from ...arrow.frame_slices import build_rejected, split_frame
from ..common.pipeline import CompositeDecoder, EnvelopeReader, FrameDecoder, FrameRouter
from ..json.headers import find_read_errors, is_redacted
from .records import RecordMasker, RecordOpener
from .tables import MaskedTables


class MaskingDecoder(CompositeDecoder):
    """`ports.decoder.Decoder` with masking, for formats whose records contain only rows. It decodes records as stored."""

    def __init__(
        self,
        options: DecoderOptions,
        *,
        routing: FrameRouter,
        decoding: FrameDecoder,
        envelopes: EnvelopeReader,
        tables: MaskedTables,
        opens: RecordOpener,
    ) -> None:
        super().__init__(options, routing=routing, decoding=decoding, envelopes=envelopes)
        self._tables = tables
        self._masker = RecordMasker(tables, opens, routing.route)

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures(mask_records=self.mask_records)

    def mask_records(self, raw: pa.Table) -> pa.Table:
        return self._masker.mask_records(raw)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        if not self._tables.get_masks(table.name):
            return super().decode(raw, table)
        schema = changes_schema(table)
        # Replaced columns are one chunk. If other columns have an empty chunk, there is a slice without rows.
        done = [self._decode_slice(piece, table) for piece in split_frame(self.mask_records(raw)) if piece.num_rows]
        return pa.concat_tables([schema.empty_table(), *done]).combine_chunks()

    def _decode_slice(self, raw: pa.RecordBatch, table: TableSpec) -> pa.Table:
        """Decode masked records. Errors of values that masking found invalid come from the header."""
        errors = find_read_errors(raw)
        done = []
        for is_bad, run in groupby(range(raw.num_rows), errors.__contains__):
            places = list(run)
            mine = raw.slice(places[0], len(places))
            if is_bad:
                done.append(self._build_rejected(mine, table, [errors[place] for place in places]))
            else:
                done.append(super().decode(pa.Table.from_batches([mine]), table))
        return pa.concat_tables(done)

    def _build_rejected(self, raw: pa.RecordBatch, table: TableSpec, rejects: list[Reject]) -> pa.Table:
        return build_rejected(raw, table, rejects)

    def envelope(self, raw: pa.Table) -> pa.Table:
        stored = self.mask_records(raw) if self._tables else raw
        whole, withheld = super().envelope(stored), pc.fill_null(is_redacted(stored["value"]), False)
        if not pc.any(withheld).as_py():
            return whole
        # The source may have sent a reason of its own (`find_read_errors`). A topic may name the table.
        reasons = [
            str(errors[place]) if place in errors else None
            for batch in stored.to_batches()
            for errors in [find_read_errors(batch)]
            for place in range(batch.num_rows)
        ]
        known = {"error": pa.array(reasons, pa.string()), "table": whole["table"]}
        columns = [
            pc.if_else(withheld, known.get(field.name, pa.scalar(None, field.type)), whole[field.name]) for field in ENVELOPE
        ]
        return pa.Table.from_arrays(columns, schema=ENVELOPE)
