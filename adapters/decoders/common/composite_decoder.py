"""A decoder put together from the parts that do its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from replicator.domain.change import refuse_frame_names
from replicator.domain.table import Column, TableSpec


class FrameRouter(Protocol):
    """The part that answers `route`."""

    def route(self, raw: pa.Table) -> pa.Table: ...


class FrameDecoder(Protocol):
    """The part that answers `decode`."""

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table: ...


class EnvelopeReader(Protocol):
    """The part that answers `envelope`."""

    def envelope(self, raw: pa.Table) -> pa.Table: ...


class CompositeDecoder:
    """`ports.decoder.Decoder`, but for `learn`. Pickled by the options it was `make_state_after_write`: parts may keep
    what they have read of schemas, never rows."""

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
    """A table whose records do not say what its key is. Fatal for columns that frames use for themselves, ConfigProblem for
    a key that is none of its columns."""
    spec = TableSpec(table, columns, (), sequence, fingerprint)
    refuse_frame_names(spec)
    return spec.with_keys(tuple(keys or ()))
