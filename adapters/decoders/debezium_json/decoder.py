"""The decoder: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from replicator.domain.table import TableSpec

from .declared import refuse_types
from .decode import Decoding
from .envelope import Envelopes
from .learn import Learning
from .options import read_options
from .route import Routing


class DebeziumJsonDecoder:
    """`ports.decoder.Decoder` of Debezium's JSON change events, with and without schema.

    `options` as in `options.Options`; ConfigProblem names every wrong one. Pickled by its options: what it keeps are
    readers generated from schemas, and the last key and table seen (see `outcomes.Outcomes`), never rows.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self._given = dict(options or {})
        checked = read_options(self._given)
        refuse_types(checked.declared)
        self._routing = Routing(checked)
        self._decoding = Decoding(checked)
        self._learning = Learning(checked, self._routing, self._decoding.readers)
        self._envelopes = Envelopes(checked, self._routing)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        return self._routing.route(raw)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        return self._learning.learn(sample, table, fingerprint)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        """See `ports.decoder.Decoder.decode`."""
        return self._decoding.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return self._envelopes.envelope(raw)
