"""The decoder: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from replicator.domain.table import TableSpec
from replicator.domain.transactions import Mark

from ...arrow.parts import DecoderOfParts
from .declared import refuse_types
from .decode import Decoding
from .envelope import Envelopes
from .learn import Learning
from .marks import marks
from .options import read_options
from .route import Routing


class DebeziumJsonDecoder(DecoderOfParts):
    """`ports.decoder.Decoder` of Debezium's JSON change events, with and without schema.

    `options` as in `options.Options`; ConfigProblem names every wrong one. Pickled by its options: what it keeps are
    readers generated from schemas, and the last key and table seen (see `outcomes.Outcomes`), never rows.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        checked = read_options(given)
        refuse_types(checked.declared)
        self._depth = checked.limits.depth
        routing, decoding = Routing(checked), Decoding(checked)
        self._learning = Learning(checked, routing, decoding.readers)
        super().__init__(given, routing=routing, decoding=decoding, envelopes=Envelopes(checked, routing))

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        return self._learning.learn(sample, table, fingerprint)

    def marks(self, raw: pa.Table) -> Sequence[Mark]:
        """See `ports.decoder.TellsTransactions.marks`."""
        return marks(raw, self._depth)
