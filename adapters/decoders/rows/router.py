"""Routing of records to tables by topic, with a check of the operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import split_frame
from ...arrow.record_errors import UNREADABLE, unreadable_reject
from ...arrow.record_limits import reject_too_long
from ..json.format_detection import hint_by_names
from ..json.headers import find_read_errors
from ..json.schema_frames import SchemaGroup, find_frames
from .changes import read_operation
from .layouts import BARE, RowLayouts
from .options import RowsDecoderOptions

TOMBSTONE = "tombstone"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class RowRouter:
    """Routes frames of rows."""

    def __init__(self, options: RowsDecoderOptions, layouts: RowLayouts) -> None:
        self._options, self._layouts = options, layouts
        self._probe = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def route(self, raw: pa.Table) -> pa.Table:
        done = [self._route_slice(piece) for piece in split_frame(raw)]
        return pa.concat_tables([ROUTE.empty_table(), *done]).combine_chunks()

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        values, large = reject_too_long(raw.column("value"), self._options.limits)
        out: list[Outcome] = [(None, None, TOMBSTONE, None)] * raw.num_rows
        found = find_frames(values, self._options.limits.depth)
        topics = raw.column("topic").to_pylist()
        for group in found.groups:
            rows = range(len(values)) if group.rows is None else group.rows
            for place, outcome in zip(rows, self._route_group(group, [topics[i] for i in rows]), strict=True):
                out[place] = outcome
        for place, error in (found.errors | large).items():
            out[place] = (topics[place], None, None, str(error))
        for place, error in find_read_errors(raw.column("headers")).items():
            out[place] = (None, None, None, str(error))
        return pa.Table.from_arrays(
            [pa.array([one[i] for one in out], pa.string()) for i in range(len(ROUTE))], schema=ROUTE
        )

    def _route_group(self, group: SchemaGroup, topics: Sequence[str]) -> list[Outcome]:
        """The outcomes of a group. Rows with types are checked when they are decoded; other rows are checked here."""
        of_topic = {topic: self._route_topic(group.schema, topic) for topic in set(topics)}
        if group.schema is not None and all(fingerprint != BARE for _, fingerprint, *_ in of_topic.values()):
            return [of_topic[topic] for topic in topics]
        wrong = [self._find_fault(payload) for payload in group.payloads()]
        return [
            of_topic[topic] if error is None else (topic, None, None, str(error))
            for topic, error in zip(topics, wrong, strict=True)
        ]

    def _route_topic(self, schema: bytes | None, topic: str) -> Outcome:
        layout = self._layouts.get_layout(schema, topic)
        keyed = "declared" if self._options.keys_of(topic) else "nokey"
        fingerprint = layout.fingerprint if layout.fingerprint == BARE else f"{layout.fingerprint}.{keyed}"
        return (topic, None, None, str(layout.error)) if layout.error else (topic, fingerprint, None, None)

    def _find_fault(self, payload: bytes) -> Reject | None:
        try:
            said: Any = self._probe(payload).get(self._options.operation_column)
            value = None if said is None else msgspec.json.decode(said)
        except UNREADABLE as error:
            return hint_by_names(unreadable_reject(error), payload, "rows")
        unknown = None if read_operation(value, self._options) else self._options.unknown_operation_reject(value)
        return unknown and hint_by_names(unknown, payload, "rows")
