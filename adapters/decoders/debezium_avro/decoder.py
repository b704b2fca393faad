"""Decoder of Debezium's events in Avro."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from replicator.domain.connectors import Connector
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark

from ...kafka.schema_registry.options import RegistryOptions
from ..common.composite_decoder import CompositeDecoder
from ..common.row_options import read_options
from ..debezium.connectors import find_connector
from ..debezium.envelope import DebeziumEnvelopes
from ..debezium.masking import DebeziumMasker
from ..debezium.options import DebeziumOptions
from ..debezium.record_decoder import DebeziumFrameDecoder
from ..debezium.router import DebeziumRouter
from ..debezium.table_schema import TableLearner
from ..debezium.transaction_markers import read_markers
from .framed_records import FramedRecords
from .json_text import FORMAT, AvroTextReader
from .masking import to_masked_text
from .schemas import get_schemas

UNBOUNDED = 2**62


class AvroOptions(DebeziumOptions):
    """`adapters.decoders.debezium.options.DebeziumOptions`, and the schema registry."""

    registry: RegistryOptions


class DebeziumAvroDecoder(CompositeDecoder):
    """`ports.decoder.Decoder` of Debezium's events in Avro. Raises ConfigProblem that names every wrong option.

    Pickled as its options; schemas are cached in each process. A call may raise Retryable (the registry does not answer)
    or EnvironmentProblem (the registry refuses access). This only happens for an id whose schema is not cached, and the
    call has done nothing then.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        checked = read_options(AvroOptions, given, FORMAT)
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
        super().__init__(given, routing=self._framed, decoding=self._framed, envelopes=self._framed)

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
