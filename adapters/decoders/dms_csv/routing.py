"""Records to tables: a topic is a table. Rows are not looked into before they are decoded."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.dms import where
from ...arrow.json.headers import unread
from ...arrow.json.limits import bounded
from ...arrow.json.pieces import pieces
from ...arrow.lines import located
from .cells import EMPTY
from .headers import ROWS, by_columns, part_of
from .layouts import UNDECLARED, Layouts
from .options import Options

TOMBSTONE = "tombstone"
UNASKED = "table without declared columns"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class Routing:
    """Routes frames."""

    def __init__(self, options: Options, layouts: Layouts) -> None:
        self._options, self._layouts = options, layouts

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        done = [self._piece(piece) for piece in pieces(raw, ROWS)]
        whole = pa.concat_tables([ROUTE.empty_table(), *done])
        return located(whole, "error", raw["offset"], where).combine_chunks()

    def _piece(self, raw: pa.RecordBatch) -> pa.Table:
        """Every outcome that there is, and per record which of them it has."""
        outcomes: list[Outcome] = [(None, None, TOMBSTONE, None)]
        which = pa.repeat(pa.scalar(0, pa.int32()), raw.num_rows)
        for header, places in by_columns(raw.column("headers")):
            topics = part_of(raw, places).column("topic").dictionary_encode()
            mine = pc.add(topics.indices, len(outcomes))
            outcomes += [self._of_topic(header, topic) for topic in topics.dictionary.to_pylist()]
            which = mine if len(places) == raw.num_rows else _scattered(which, places, mine)
        which = pc.if_else(pc.is_null(raw.column("value")), pa.scalar(0, pa.int32()), which)
        refused = self._refused(raw)
        if refused:
            last = pa.array(range(len(outcomes), len(outcomes) + len(refused)), pa.int32())
            which, outcomes = _scattered(which, list(refused), last), [*outcomes, *refused.values()]
        columns = [pa.array([one[i] for one in outcomes], pa.string()).take(which) for i in range(len(ROUTE))]
        return pa.Table.from_arrays(columns, schema=ROUTE)

    def _refused(self, raw: pa.RecordBatch) -> dict[int, Outcome]:
        values = raw.column("value")
        empty = pc.indices_nonzero(pc.equal(pc.binary_length(values), 0)).to_pylist()
        _, large = bounded(values, self._options.limits)
        topics = raw.column("topic")
        of_tables = {i: _refused(error, topics[i].as_py()) for i, error in (dict.fromkeys(empty, EMPTY) | large).items()}
        return of_tables | {i: _refused(error, None) for i, error in unread(raw.column("headers")).items()}

    def _of_topic(self, header: bytes | None, topic: str) -> Outcome:
        layout = self._layouts.of(header, topic)
        if layout.error is UNDECLARED and not self._options.csv.header:
            # A table that nobody asks for: of those that are, the configuration has to declare the columns.
            return None, None, UNASKED, None
        if layout.error is not None:
            return _refused(layout.error, topic)
        keyed = "keyed" if self._options.keys_of(topic) else "nokey"
        return topic, f"{layout.fingerprint}.{keyed}", None, None


def _refused(error: Reject, table: str | None) -> Outcome:
    return table, None, None, str(error)


def _scattered(into: pa.Array, places: Sequence[int], values: pa.Array) -> pa.Array:
    """`into` with `values` at `places`."""
    found = into.to_pylist()
    for place, value in zip(places, values.to_pylist(), strict=True):
        found[place] = value
    return pa.array(found, into.type)
