"""Base class of decoders for formats of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Reject
from replicator.domain.table import TableSpec

from ..common.composite_decoder import build_row_spec
from ..masking.decoder import MaskingDecoder
from ..masking.tables import MaskedTables
from .envelope import MessageEnvelopes
from .layouts import MessageLayouts
from .masking import JsonMessageOpener, MessageOpener
from .message import MessageFormat
from .options import read_options
from .record_decoder import MessageFrameDecoder
from .router import MessageRouter, read_message


class MessageDecoder(MaskingDecoder):
    """`ports.decoder.Decoder` for a format of messages. `options` as in `options.MessageOptions`; raises ConfigProblem
    that names every wrong one."""

    FORMAT: ClassVar[MessageFormat]
    OPENS: ClassVar[type[MessageOpener]] = JsonMessageOpener

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        self._options = read_options(given, self.FORMAT.name)
        self._layouts = MessageLayouts(self.FORMAT, self._options)
        super().__init__(
            given,
            routing=MessageRouter(self.FORMAT, self._options, self._layouts),
            decoding=MessageFrameDecoder(self.FORMAT, self._options, self._layouts),
            envelopes=MessageEnvelopes(self.FORMAT, self._options, self._layouts),
            tables=MaskedTables(self._options.private, self._options.declared),
            opens=self.OPENS(self.FORMAT, self._options, self._layouts),
        )

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        for text in sample["value"].to_pylist():
            found = None if text is None else read_message(self.FORMAT, text, self._options.limits)
            if found is None or isinstance(found, Reject):
                continue
            layout = self._layouts.get_layout(found)
            if found.table == table and layout.error is None and layout.fingerprint == fingerprint:
                sequence = (self.FORMAT.order_elements if layout.has_order else 1) + 1
                spec = build_row_spec(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=layout.keys)
                return replace(self._options.to_read_types(self._tables.masked_spec(spec)), by_tx=self.FORMAT.by_tx)
        raise ConfigProblem(
            f"the messages of table {table} carry no types, and none are declared for it",
            next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their Arrow "
            "types.",
        )
