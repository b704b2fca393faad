"""The decoder: its options, and the parts that do its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from replicator.domain.connectors import Connector
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Mark

from ...arrow.debezium.connectors import connector_of
from ...arrow.debezium.decode import Decoding
from ...arrow.debezium.envelope import Envelopes
from ...arrow.debezium.learn import Learning
from ...arrow.debezium.marks import marks
from ...arrow.debezium.options import Options
from ...arrow.debezium.private import Private
from ...arrow.debezium.route import Routing
from ...arrow.options import read_options
from ...arrow.parts import DecoderOfParts
from ...registry.options import RegistryOptions
from .framed import Framed
from .schemas import schemas_of
from .texts import FORMAT, Reading
from .veiled import as_text

UNBOUNDED = 2**62


class AvroOptions(Options):
    """`adapters.arrow.debezium.options.Options`, and where the schemas are."""

    registry: RegistryOptions


class DebeziumAvroDecoder(DecoderOfParts):
    """`ports.decoder.Decoder` of Debezium's events in Avro; ConfigProblem names every wrong option.

    Pickled by its options. Schemas are kept by process. Every call may raise Retryable (the registry does not answer) and
    EnvironmentProblem (it refuses us), but only for an id whose schema is not known yet; then it has done nothing.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        checked = read_options(AvroOptions, given, FORMAT)
        # The limit is one of the bytes that came; their text with its schema may be longer.
        inner = checked.model_copy(update={"limits": checked.limits.model_copy(update={"message_bytes": UNBOUNDED})})
        routing, decoding = Routing(inner), Decoding(inner)
        self._depth = checked.limits.depth
        self._learning = Learning(inner, routing, decoding.readers)
        self._reading = Reading(schemas_of(checked.registry, checked.limits), checked.limits)
        self._framed = Framed(
            self._reading,
            routing,
            decoding,
            Envelopes(inner, routing),
            needs_keys=checked.any_tombstone_deletes,
        )
        self._private = Private(inner)
        super().__init__(given, routing=self._framed, decoding=self._framed, envelopes=self._framed)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        learnt = self._learning.learn(self._framed.read(sample), table, fingerprint)
        return self._private.spec(learnt, sample["value"]) if self._private.of(table) else learnt

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        if not self._private.of(table.name) or not raw.num_rows:
            return super().decode(raw, table)
        try:
            learnt = self._learning.learn(self._framed.read(raw), table.name, table.fingerprint)
            before = self._private.before(table, learnt)
        except (ConfigProblem, Fatal):
            before = table  # None of the records can be read, which decoding says of each.
        return self._private.masked(super().decode(raw, before), before, table)

    def veiled(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.KeepsPrivate.veiled`. Records of tables with private columns are stored as text."""
        if not self._private or not raw.num_rows:
            return raw
        routes = self.route(raw)
        tables, errors = routes["table"].to_pylist(), routes["error"].to_pylist()
        return self._private.veiled(as_text(raw, self._reading, self._private, tables, errors), tables, errors)

    def marks(self, raw: pa.Table) -> Sequence[Mark]:
        """See `ports.decoder.TellsTransactions.marks`."""
        return marks(self._framed.read(raw), self._depth)

    def connector(self, raw: pa.Table) -> Connector | None:
        """See `ports.decoder.TellsTransactions.connector`."""
        return connector_of(raw, self._depth, self._framed.read)
