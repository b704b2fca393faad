"""Records to tables, by what their messages say."""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ..json.faults import UNREADABLE, unreadable
from ..json.headers import unread
from ..json.limits import Limits, bounded
from ..json.lookalikes import named
from ..json.pieces import pieces
from .layouts import Layouts
from .message import Form, Message
from .options import Options

TOMBSTONE = "tombstone"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


def read(form: Form, value: bytes, limits: Limits) -> Message | Reject:
    """The message, or why it cannot be read."""
    try:
        return form.read(value, limits)
    except UNREADABLE as error:
        return named(unreadable(error), value, form.name)


class Routing:
    """Routes frames."""

    def __init__(self, form: Form, options: Options, layouts: Layouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        done = [self._piece(piece) for piece in pieces(raw)]
        return pa.concat_tables([ROUTE.empty_table(), *done]).combine_chunks()

    def _piece(self, raw: pa.RecordBatch) -> pa.Table:
        values, large = bounded(raw.column("value"), self._options.limits)
        out = [self._outcome(text) for text in values.to_pylist()]
        for place, error in (large | unread(raw.column("headers"))).items():
            out[place] = (None, None, None, str(error))
        columns = [pa.array([one[i] for one in out], pa.string()) for i in range(len(ROUTE))]
        return pa.Table.from_arrays(columns, schema=ROUTE)

    def _outcome(self, text: bytes | None) -> Outcome:
        if text is None:
            return None, None, TOMBSTONE, None
        found = read(self._form, text, self._options.limits)
        if isinstance(found, Reject):
            return self._form.table_of(text, self._options.limits), None, None, str(found)
        if found.ignored:
            return None, None, found.ignored, None
        layout = self._layouts.of(found)
        if layout.error is not None:
            return found.table, None, None, str(layout.error)
        return found.table, layout.fingerprint, None, None
