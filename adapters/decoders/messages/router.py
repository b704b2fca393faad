"""Routing of messages to tables."""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import split_frame
from ...arrow.record_errors import UNREADABLE, unreadable_reject
from ...arrow.record_limits import RecordLimits, reject_too_long
from ..json.format_detection import hint_by_names
from ..json.headers import find_read_errors
from .layouts import MessageLayouts
from .message import Message, MessageFormat
from .options import MessageOptions

TOMBSTONE = "tombstone"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


def read_message(form: MessageFormat, value: bytes, limits: RecordLimits) -> Message | Reject:
    """The parsed message, or the error."""
    try:
        return form.read(value, limits)
    except UNREADABLE as error:
        return hint_by_names(unreadable_reject(error), value, form.name)


class MessageRouter:
    """Routes frames of messages."""

    def __init__(self, form: MessageFormat, options: MessageOptions, layouts: MessageLayouts) -> None:
        self._form, self._options, self._layouts = form, options, layouts

    def route(self, raw: pa.Table) -> pa.Table:
        done = [self._route_slice(piece) for piece in split_frame(raw)]
        return pa.concat_tables([ROUTE.empty_table(), *done]).combine_chunks()

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        values, large = reject_too_long(raw.column("value"), self._options.limits)
        out = [self._route_message(text) for text in values.to_pylist()]
        for place, error in (large | find_read_errors(raw.column("headers"))).items():
            out[place] = (None, None, None, str(error))
        columns = [pa.array([one[i] for one in out], pa.string()) for i in range(len(ROUTE))]
        return pa.Table.from_arrays(columns, schema=ROUTE)

    def _route_message(self, text: bytes | None) -> Outcome:
        if text is None:
            return None, None, TOMBSTONE, None
        found = read_message(self._form, text, self._options.limits)
        if isinstance(found, Reject):
            return self._form.find_table(text, self._options.limits), None, None, str(found)
        if found.ignored:
            return None, None, found.ignored, None
        layout = self._layouts.get_layout(found)
        if layout.error is not None:
            return found.table, None, None, str(layout.error)
        return found.table, layout.fingerprint, None, None
