"""Routing of records to tables by topic. Rows are not parsed before they are decoded."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import split_frame
from ...arrow.record_limits import reject_too_long
from ..common.dms_rows import describe_place
from ..common.line_offsets import add_line
from ..json.headers import find_read_errors
from .cells import EMPTY
from .headers import ROWS, group_by_header, select_part
from .layouts import UNDECLARED, CsvLayouts
from .options import DmsCsvOptions

TOMBSTONE = "tombstone"
UNASKED = "table without declared columns"
Outcome = tuple[str | None, str | None, str | None, str | None]
"""One row of `ports.decoder.ROUTE`."""


class CsvRouter:
    """Routes frames of CSV rows."""

    def __init__(self, options: DmsCsvOptions, layouts: CsvLayouts) -> None:
        self._options, self._layouts = options, layouts

    def route(self, raw: pa.Table) -> pa.Table:
        done = [self._route_slice(piece) for piece in split_frame(raw, ROWS)]
        whole = pa.concat_tables([ROUTE.empty_table(), *done])
        return add_line(whole, "error", raw["offset"], describe_place).combine_chunks()

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        """Collects the distinct outcomes, and for each record the index of its outcome."""
        outcomes: list[Outcome] = [(None, None, TOMBSTONE, None)]
        which = pa.repeat(pa.scalar(0, pa.int32()), raw.num_rows)
        for header, places in group_by_header(raw.column("headers")):
            topics = select_part(raw, places).column("topic").dictionary_encode()
            mine = pc.add(topics.indices, len(outcomes))
            outcomes += [self._route_topic(header, topic) for topic in topics.dictionary.to_pylist()]
            which = mine if len(places) == raw.num_rows else _scatter(which, places, mine)
        which = pc.if_else(pc.is_null(raw.column("value")), pa.scalar(0, pa.int32()), which)
        refused = self._find_rejects(raw)
        if refused:
            last = pa.array(range(len(outcomes), len(outcomes) + len(refused)), pa.int32())
            which, outcomes = _scatter(which, list(refused), last), [*outcomes, *refused.values()]
        columns = [pa.array([one[i] for one in outcomes], pa.string()).take(which) for i in range(len(ROUTE))]
        return pa.Table.from_arrays(columns, schema=ROUTE)

    def _find_rejects(self, raw: pa.RecordBatch) -> dict[int, Outcome]:
        values = raw.column("value")
        empty = pc.indices_nonzero(pc.equal(pc.binary_length(values), 0)).to_pylist()
        _, large = reject_too_long(values, self._options.limits)
        topics = raw.column("topic")
        of_tables = {
            i: _reject_outcome(error, topics[i].as_py()) for i, error in (dict.fromkeys(empty, EMPTY) | large).items()
        }
        return of_tables | {i: _reject_outcome(error, None) for i, error in find_read_errors(raw.column("headers")).items()}

    def _route_topic(self, header: bytes | None, topic: str) -> Outcome:
        layout = self._layouts.get_layout(header, topic)
        if layout.error is UNDECLARED and not self._options.csv.header:
            # No pipeline reads the table: the configuration must declare the columns of tables that are read.
            return None, None, UNASKED, None
        if layout.error is not None:
            return _reject_outcome(layout.error, topic)
        keyed = "keyed" if self._options.keys_of(topic) else "nokey"
        return topic, f"{layout.fingerprint}.{keyed}", None, None


def _reject_outcome(error: Reject, table: str | None) -> Outcome:
    return table, None, None, str(error)


def _scatter(into: pa.Array, places: Sequence[int], values: pa.Array) -> pa.Array:
    found = into.to_pylist()
    for place, value in zip(places, values.to_pylist(), strict=True):
        found[place] = value
    return pa.array(found, into.type)
