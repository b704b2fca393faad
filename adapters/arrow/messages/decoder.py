"""The decoder of a form: its options, and the parts that do its four calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Reject
from replicator.domain.table import TableSpec

from ..parts import spec_of_rows
from ..veils.decoder import VeilingDecoder
from ..veils.tables import PrivateTables
from .decode import Decoding
from .envelope import Envelopes
from .layouts import Layouts
from .message import Form
from .options import read_options
from .routing import Routing, read
from .veiled import OpensForm, OpensMessages


class MessageDecoder(VeilingDecoder):
    """`ports.decoder.Decoder` of the messages of a form. `options` as in `options.Options`; ConfigProblem names every wrong
    one."""

    FORM: ClassVar[Form]
    OPENS: ClassVar[type[OpensForm]] = OpensMessages

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = dict(options or {})
        self._options = read_options(given, self.FORM.name)
        self._layouts = Layouts(self.FORM, self._options)
        super().__init__(
            given,
            routing=Routing(self.FORM, self._options, self._layouts),
            decoding=Decoding(self.FORM, self._options, self._layouts),
            envelopes=Envelopes(self.FORM, self._options, self._layouts),
            tables=PrivateTables(self._options.private, self._options.declared),
            opens=self.OPENS(self.FORM, self._options, self._layouts),
        )

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """See `ports.decoder.Decoder.learn`."""
        for text in sample["value"].to_pylist():
            found = None if text is None else read(self.FORM, text, self._options.limits)
            if found is None or isinstance(found, Reject):
                continue
            layout = self._layouts.of(found)
            if found.table == table and layout.error is None and layout.fingerprint == fingerprint:
                sequence = (self.FORM.ordered if layout.ordered else 1) + 1
                spec = spec_of_rows(table, layout.columns, sequence=sequence, fingerprint=fingerprint, keys=layout.keys)
                return replace(self._options.as_read(self._tables.spec(spec)), by_tx=self.FORM.by_tx)
        raise ConfigProblem(
            f"the messages of table {table} carry no types, and none are declared for it",
            next_step="Add to this table's entry under `tables`: `schema: {id: int64, ...}`, all columns with their Arrow "
            "types.",
        )
