"""The decoder: its options, and the parts that do its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from replicator.domain.table import TableSpec
from replicator.domain.transactions import Mark

from ...arrow.debezium.decode import Decoding
from ...arrow.debezium.envelope import Envelopes
from ...arrow.debezium.learn import Learning
from ...arrow.debezium.marks import marks
from ...arrow.debezium.options import Options
from ...arrow.debezium.route import Routing
from ...arrow.options import read_options
from ...arrow.parts import DecoderOfParts
from ...registry.options import RegistryOptions
from .framed import Framed
from .schemas import schemas_of
from .texts import FORMAT, Reading

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
        self._framed = Framed(
            Reading(schemas_of(checked.registry, checked.limits), checked.limits),
            routing,
            decoding,
            Envelopes(inner, routing),
            needs_keys=checked.any_tombstone_deletes,
        )
        super().__init__(given, routing=self._framed, decoding=self._framed, envelopes=self._framed)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        return self._learning.learn(self._framed.read(sample), table, fingerprint)

    def marks(self, raw: pa.Table) -> Sequence[Mark]:
        """See `ports.decoder.TellsTransactions.marks`."""
        return marks(self._framed.read(raw), self._depth)
