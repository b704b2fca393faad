"""A decoder that delegates each call to one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.change import refuse_frame_names
from replicator.domain.table import Column, TableSpec


class FrameRouter(Protocol):
    """Does `route` of a `CompositeDecoder`."""

    def route(self, raw: pa.Table) -> pa.Table: ...


class FrameDecoder(Protocol):
    """Does `decode` of a `CompositeDecoder`."""

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table: ...


class EnvelopeReader(Protocol):
    """Does `envelope` of a `CompositeDecoder`."""

    def envelope(self, raw: pa.Table) -> pa.Table: ...


class CompositeDecoder:
    """`ports.decoder.Decoder` without `learn`. Pickled as its options `given`: its parts may cache schemas, never
    rows."""

    def __init__(
        self, given: Mapping[str, object], *, routing: FrameRouter, decoding: FrameDecoder, envelopes: EnvelopeReader
    ) -> None:
        self._given = given
        self._routing, self._decoding, self._envelopes = routing, decoding, envelopes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def route(self, raw: pa.Table) -> pa.Table:
        return self._routing.route(raw)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return self._decoding.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return self._envelopes.envelope(raw)


def build_row_spec(
    table: str, columns: tuple[Column, ...], *, sequence: int, fingerprint: str, keys: Sequence[str] | None
) -> TableSpec:
    """The specification of a table whose records do not name its key. Raises Fatal for columns with a name that frames
    reserve, ConfigProblem for a key that is not among the columns."""
    spec = TableSpec(table, columns, (), sequence, fingerprint)
    refuse_frame_names(spec)
    return spec.with_keys(tuple(keys or ()))
