"""Debezium's JSON change events, with and without a schema.

With a schema (Kafka Connect's JsonConverter, `schemas.enable=true`) the bytes before the payload are equal in most
records. They are compared and hashed once, and only payloads are parsed, into structs generated for that schema. Other
layouts of the same JSON are parsed as a whole. Without a schema the configuration declares the columns, and other fields
are left out. For types, rejects, order and transactions see `adapters.decoders.debezium`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

import pyarrow as pa

from replicator.domain.connectors import Connector
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark
from replicator.ports.decoder import DecoderFeatures

from .common.pipeline import CompositeDecoder
from .debezium.changes import DebeziumFrameDecoder
from .debezium.envelope import DebeziumEnvelopes
from .debezium.flattened_rows import FlattenedRows, OwnFields
from .debezium.masking import DebeziumMasker
from .debezium.router import DebeziumRouter
from .debezium.table_schema import TableLearner
from .debezium.transaction_marks import find_connector
from .debezium.transaction_marks import read_markers as transactions
from .debezium.types import MASKED, refuse_types
from .json.schema_frames import CachedFrames
from .masking import read_mask_headers
from .options import DebeziumJsonOptions


class DebeziumJsonDecoder(CompositeDecoder):
    """`ports.decoder.Decoder` of Debezium's JSON change events, with and without a schema.

    `options` as in `options.DebeziumJsonOptions`; raises ConfigProblem that names every wrong one.
    Pickled as its options. It caches readers for schemas, the last key and table (see `router.RouteResults`), and
    records between routing and decoding (`schema_frames.CachedFrames`).
    """

    def __init__(self, options: DebeziumJsonOptions | Mapping[str, object] | None = None) -> None:
        checked = DebeziumJsonOptions.read(options or {})
        refuse_types(checked.declared)
        self._options = checked
        self._of_stored: dict[str, DebeziumJsonDecoder] = {}
        self._depth = checked.limits.depth
        self._flattened = FlattenedRows(self._depth) if checked.flattened else None
        once = CachedFrames(self._depth)
        routing, decoding = DebeziumRouter(checked, once), DebeziumFrameDecoder(checked, once)
        self._learning = TableLearner(checked, routing, decoding.readers)
        self._private = DebeziumMasker(checked)
        super().__init__(checked, routing=routing, decoding=decoding, envelopes=DebeziumEnvelopes(checked, routing))

    def _to_events(self, raw: pa.Table, table: str | None = None) -> pa.Table:
        """`table`: the table of all records, if known."""
        if self._flattened is None:
            return raw
        masks = self._private.get_masks(table) if table is not None else {}
        own = OwnFields(self._options.columns_of(table) or {}, masks) if table is not None and masks else None
        return self._flattened.to_events(raw, own)

    def route(self, raw: pa.Table) -> pa.Table:
        return super().route(self._to_events(raw))

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        learnt = self._learning.learn(self._to_events(sample, table), table, fingerprint)
        return self._private.masked_spec(learnt, sample["value"]) if self._private.get_masks(table) else learnt

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        events = self._to_events(raw, table.name)
        if not self._private.get_masks(table.name) or not raw.num_rows:
            return super().decode(events, table)
        done = read_mask_headers(events["headers"].combine_chunks())
        if not done:
            return self._mask_events(events, table)
        parts = []
        for is_stored, run in groupby(range(events.num_rows), done.__contains__):
            places = list(run)
            some = events.slice(places[0], len(places))
            parts.append(
                self._masked_decoder(table).decode(self.mask_records(some), table)
                if is_stored
                else self._mask_events(some, table)
            )
        return pa.concat_tables(parts).combine_chunks()

    def _masked_decoder(self, table: TableSpec) -> DebeziumJsonDecoder:
        """The decoder of masked records without a schema, whose private columns are text."""
        if table.name not in self._of_stored:
            declared = dict(self._options.columns_of(table.name) or {})
            texts = {
                n: MASKED
                for n, mask in self._private.get_masks(table.name).items()
                if n in declared and mask.kind != "nothing"
            }
            schema = {"schema": {table.name: declared | texts}, "private": {}}
            self._of_stored[table.name] = DebeziumJsonDecoder(self._options.with_given(schema))
        return self._of_stored[table.name]

    def _mask_events(self, events: pa.Table, table: TableSpec) -> pa.Table:
        try:
            before = self._private.unmasked_spec(table, self._learning.learn(events, table.name, table.fingerprint))
        except (ConfigProblem, Fatal):
            before = table  # None of the records is readable, which `decode` reports for each.
        return self._private.mask_changes(super().decode(events, before), before, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return super().envelope(self._to_events(raw))

    @property
    def features(self) -> DecoderFeatures:
        return DecoderFeatures(mask_records=self.mask_records, read_marks=self.marks, find_connector=self.connector)

    def mask_records(self, raw: pa.Table) -> pa.Table:
        if not self._private:
            return raw
        routes = self.route(raw)
        tables: list[str | None] = routes["table"].to_pylist()
        return self._private.mask_records(self._to_masked_events(raw, tables), tables, routes["error"].to_pylist())

    def _to_masked_events(self, raw: pa.Table, tables: Sequence[str | None]) -> pa.Table:
        """The records, with those of tables with private columns as change events, in which masking finds values."""
        if self._flattened is None:
            return raw
        places: dict[str, list[int]] = defaultdict(list)
        for place, table in enumerate(tables):
            if table is not None and self._private.get_masks(table):
                places[table].append(place)
        values = raw["value"].to_pylist() if places else []
        for table, mine in places.items():
            events = self._to_events(raw.take(pa.array(mine, pa.int64())), table)
            for place, value in zip(mine, events["value"].to_pylist(), strict=True):
                values[place] = value
        at = raw.schema.get_field_index("value")
        return raw.set_column(at, raw.schema.field(at), pa.chunked_array([pa.array(values, pa.binary())])) if places else raw

    def marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        return transactions(raw, self._depth)

    def connector(self, raw: pa.Table) -> Connector | None:
        return find_connector(raw, self._depth)
