"""Records to tables: a topic is a table, and a row says what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.json.faults import UNREADABLE, unreadable
from ...arrow.json.framing import Group, frames
from ...arrow.json.headers import unread
from ...arrow.json.limits import bounded
from ...arrow.json.lookalikes import named
from ...arrow.json.pieces import pieces
from .changes import operation
from .layouts import BARE, Layouts
from .options import Options

TOMBSTONE = "tombstone"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class Routing:
    """Routes frames."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts
        self._probe = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        done = [self._piece(piece) for piece in pieces(raw)]
        return pa.concat_tables([ROUTE.empty_table(), *done]).combine_chunks()

    def _piece(self, raw: pa.RecordBatch) -> pa.Table:
        values, large = bounded(raw.column("value"), self._options.limits)
        out: list[Outcome] = [(None, None, TOMBSTONE, None)] * raw.num_rows
        found = frames(values, self._options.limits.depth)
        topics = raw.column("topic").to_pylist()
        for group in found.groups:
            rows = range(len(values)) if group.rows is None else group.rows
            for place, outcome in zip(rows, self._group(group, [topics[i] for i in rows]), strict=True):
                out[place] = outcome
        for place, error in (found.errors | large).items():
            out[place] = (topics[place], None, None, str(error))
        for place, error in unread(raw.column("headers")).items():
            out[place] = (None, None, None, str(error))
        return pa.Table.from_arrays(
            [pa.array([one[i] for one in out], pa.string()) for i in range(len(ROUTE))], schema=ROUTE
        )

    def _group(self, group: Group, topics: Sequence[str]) -> list[Outcome]:
        """Rows that carry their types are looked into when they are decoded; whether others are rows at all, here."""
        of_topic = {topic: self._of_topic(group.schema, topic) for topic in set(topics)}
        if group.schema is not None and all(fingerprint != BARE for _, fingerprint, *_ in of_topic.values()):
            return [of_topic[topic] for topic in topics]
        wrong = [self._wrong(payload) for payload in group.payloads()]
        return [
            of_topic[topic] if error is None else (topic, None, None, str(error))
            for topic, error in zip(topics, wrong, strict=True)
        ]

    def _of_topic(self, schema: bytes | None, topic: str) -> Outcome:
        layout = self._layouts.of(schema, topic)
        keyed = "declared" if self._options.keys_of(topic) else "nokey"
        fingerprint = layout.fingerprint if layout.fingerprint == BARE else f"{layout.fingerprint}.{keyed}"
        return (topic, None, None, str(layout.error)) if layout.error else (topic, fingerprint, None, None)

    def _wrong(self, payload: bytes) -> Reject | None:
        try:
            said: Any = self._probe(payload).get(self._options.operation_column)
            value = None if said is None else msgspec.json.decode(said)
        except UNREADABLE as error:
            return named(unreadable(error), payload, "rows")
        unknown = None if operation(value, self._options) else self._options.unknown_operation(value)
        return unknown and named(unknown, payload, "rows")
