"""The local engine: Arrow tables in one process, DuckDB for joins and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from adapters.duckdb.session import to_duckdb_types
from replicator.domain.change import ERROR, RAW_RECORD_POSITION, TABLE, changes_schema
from replicator.domain.connectors import Connector
from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.policy.plan import ApplyPlan, Counts
from replicator.domain.position import Position, Span
from replicator.domain.table import TableSpec
from replicator.domain.transactions import TransactionMark
from replicator.ports.decoder import ROUTE, TABLE_DROPPED, Decoder
from replicator.ports.engine import EngineFeatures, Frames, KeyPartitions, Prefetch, TransactionTracking
from replicator.ports.frames import FoldedChanges, RecordSlice, RejectedRecord, RoutedBatch, TransformedChanges

from ...arrow.key_change import find_open_key_changes, split_segments
from ...arrow.record_positions import (
    collect_rejected,
    find_drops,
    find_ends,
    group_by_table,
    mask_later,
    split_by_span,
)
from ...arrow.transactions import split_exact_parts, split_parts
from ...duckdb.session import open_session
from ...event_log.records import build_rows
from ...sql.dialect import DUCKDB
from ...transforms.row_transforms import transform_rows
from ..prefetch.decode_pool import NUMBER, DecodePool
from .fold import fold_changes

SAMPLE = 100
"""Records from which a decoder reads a schema."""


class LocalEngine:
    """`ports.engine.Engine` over `pyarrow.Table`. Option `ahead`: the largest number of worker processes that decode
    batches in advance (`ports.engine.Prefetch`); the engine keeps these batches until they are requested. Without it
    the engine has no state."""

    partitioner = f"hashes of DuckDB {duckdb.__version__}"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.frames: Frames[pa.Table] = LocalFrames()
        given = dict(options or {})
        number = min(NUMBER, int(str(given.pop("ahead", 0))))
        self._ahead = DecodePool(number) if number > 0 else None
        if given:
            raise ValueError(f"the local engine has no option {sorted(given)[0]!r}")

    @property
    def features(self) -> EngineFeatures:
        ahead = self._ahead
        return EngineFeatures(
            prefetch=None if ahead is None else Prefetch(ahead.number, ahead.begin, ahead.rest),
            transactions=TransactionTracking(
                marks=self.marks,
                connector=self.connector,
                parts=split_parts,
                attend=lambda raw, topic: None,  # noqa: ARG005 - nothing to do
                exact_parts=split_exact_parts,
            ),
            partitions=KeyPartitions(self.partitioner, split_by_key_hash),
        )

    def route(self, raw: pa.Table, decoder: Decoder) -> RoutedBatch[pa.Table]:
        known = None if self._ahead is None else self._ahead.find_run(raw)
        if known is not None:
            return RoutedBatch((known,), {}, _select_errors(raw.slice(0, 0), ROUTE.empty_table()), 0, _list_topics([known]))
        routed = self._route(raw, decoder)
        if self._ahead is not None:
            self._ahead.note_route(raw, decoder, routed)
        return routed

    def _route(self, raw: pa.Table, decoder: Decoder) -> RoutedBatch[pa.Table]:
        routes = decoder.route(raw)
        bad = pc.is_valid(routes["error"])
        rejects = _select_errors(raw.filter(bad), routes.filter(bad))
        ignored = {e["values"]: e["counts"] for e in pc.value_counts(routes["ignored"]).to_pylist() if e["values"]}
        runs = (
            _split_runs(raw.filter(pc.invert(bad)), routes.filter(pc.invert(bad)))
            if rejects.num_rows
            else _split_runs(raw, routes)
        )
        drops = group_by_table(find_drops(raw, routes, decoder)) if TABLE_DROPPED in ignored else {}
        return RoutedBatch(runs, ignored, rejects, rejects.num_rows, _list_topics(runs), drops)

    def log(self, raw: pa.Table, decoder: Decoder) -> pa.Table:
        return build_rows(raw, decoder, datetime.now(UTC))

    def decode(self, run: RecordSlice[pa.Table], decoder: Decoder, table: TableSpec) -> tuple[pa.Table, pa.Table]:
        known = None if self._ahead is None else self._ahead.find_changes(run.frame, table)
        if known is not None:
            return _split_errors(known)
        if self._ahead is not None:
            self._ahead.note_changes(run, decoder, table)
        return _split_errors(decoder.decode(run.frame, table))

    def transform_rows(self, changes: pa.Table, plan: ApplyPlan) -> TransformedChanges[pa.Table]:
        frame, rejects = _split_errors(transform_rows(changes, plan.row_transforms, plan.table))
        bad = rejects.num_rows
        return TransformedChanges(frame, rejects, Counts(filtered=changes.num_rows - frame.num_rows - bad, rejected=bad))

    def fold(self, changes: pa.Table, plan: ApplyPlan) -> FoldedChanges[pa.Table]:
        return fold_changes(changes, plan)

    def marks(self, raw: pa.Table, topic: str, decoder: Decoder) -> Sequence[TransactionMark]:
        read_marks = decoder.features.read_marks
        return () if read_marks is None else read_marks(raw.filter(pc.equal(raw["topic"], topic)))

    def connector(self, raw: pa.Table, decoder: Decoder) -> Connector | None:
        find_connector = decoder.features.find_connector
        return None if find_connector is None else find_connector(raw)


class LocalFrames:
    """`ports.engine.Frames` of Arrow tables."""

    def from_arrow(self, raw: pa.Table) -> pa.Table:
        return raw

    def sample(self, raw: pa.Table) -> pa.Table:
        return raw.slice(0, SAMPLE)

    def count(self, frame: pa.Table) -> int:
        return int(frame.num_rows)

    def ends(self, changes: pa.Table) -> Position:
        return find_ends(changes)

    def concat(self, frames: Sequence[pa.Table], table: TableSpec | None = None) -> pa.Table:
        return pa.concat_tables(frames if table is None else [_widen_frame(frame, table) for frame in frames])

    def split(self, frame: pa.Table, span: Span) -> tuple[pa.Table, pa.Table]:
        return split_by_span(frame, span)

    def split_blocked(
        self, raw: pa.Table, since: Mapping[tuple[str, int, str], int], error: str, hashes: KeyHashes = UNKEYED_HASHES
    ) -> tuple[pa.Table, pa.Table]:
        later = mask_later(raw, since, hashes)
        bad = raw.filter(later)
        marked = bad.append_column(ERROR, pa.repeat(pa.scalar(error), bad.num_rows))
        return (raw.filter(pc.invert(later)) if bad.num_rows else raw), marked

    def segments(self, changes: pa.Table, table: TableSpec) -> Sequence[pa.Table]:
        return split_segments(changes, table)

    def find_open_key_changes(self, changes: pa.Table) -> Position:
        return find_open_key_changes(changes)

    def rejected(self, rows: pa.Table, raw: Sequence[pa.Table]) -> Sequence[RejectedRecord]:
        return collect_rejected(rows, raw)


def _widen_frame(part: pa.Table, table: TableSpec) -> pa.Table:
    """`part` with the columns and types of `table`, including the old key; columns missing in the part are null."""
    columns = {}
    for field in changes_schema(table):
        known = part[field.name] if field.name in part.column_names else pa.nulls(part.num_rows, field.type)
        columns[field.name] = known.cast(field.type)
    return pa.table(columns)


def _split_errors(changes: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The valid changes, and the changes with an error."""
    if changes[ERROR].null_count == changes.num_rows:
        return changes, changes.slice(0, 0)
    bad = pc.is_valid(changes[ERROR])
    return changes.filter(pc.invert(bad)), changes.filter(bad)


def _select_errors(raw: pa.Table, routes: pa.Table) -> pa.Table:
    return raw.append_column(ERROR, routes["error"]).append_column(TABLE, routes["table"])


def _split_runs(raw: pa.Table, routes: pa.Table) -> tuple[RecordSlice[pa.Table], ...]:
    out = []
    for table in pc.unique(routes["table"]).to_pylist():
        if table is None:
            continue
        mine = pc.equal(routes["table"], table)
        whole = raw.num_rows == pc.sum(mine).as_py()
        frame = raw if whole else raw.filter(mine)
        prints = routes["fingerprint"] if whole else routes["fingerprint"].filter(mine)
        out += _split_by_schema(table, frame, prints)
    return tuple(out)


def _split_by_schema(table: str, frame: pa.Table, prints: pa.ChunkedArray) -> list[RecordSlice[pa.Table]]:
    """Slices with one fingerprint each. With several fingerprints they are cut in each partition separately, because
    interleaved partitions would make too many slices."""
    if len(pc.unique(prints)) == 1:
        return [RecordSlice(table, prints[0].as_py(), frame)]
    order = pc.sort_indices(frame.select(RAW_RECORD_POSITION), [(n, "ascending") for n in RAW_RECORD_POSITION])
    frame, sorted_prints = frame.take(order), prints.take(order).to_pylist()
    starts = [i for i, p in enumerate(sorted_prints) if i == 0 or p != sorted_prints[i - 1]]
    ends = [*starts[1:], len(sorted_prints)]
    return [RecordSlice(table, sorted_prints[s], frame.slice(s, e - s)) for s, e in zip(starts, ends, strict=True)]


def _list_topics(runs: Sequence[RecordSlice[pa.Table]]) -> dict[str, frozenset[str]]:
    topics: dict[str, frozenset[str]] = {}
    for run in runs:
        topics[run.table] = topics.get(run.table, frozenset()) | set(pc.unique(run.frame["topic"]).to_pylist())
    return topics


def split_by_key_hash(rows: pa.Table, keys: Sequence[str], number: int) -> Sequence[pa.Table]:
    """See `ports.engine.KeyPartitions`."""
    names = ", ".join(map(DUCKDB.quote_name, keys))
    with open_session() as connection:
        connection.register("keys", to_duckdb_types(rows.select(list(keys))))
        query = f"SELECT (hash({names}) % {number})::SMALLINT AS part FROM keys"
        parts = connection.sql(query).to_arrow_table()["part"]
    counts = {found["values"]: found["counts"] for found in pc.value_counts(parts).to_pylist()}
    ends = accumulate((counts.get(part, 0) for part in range(number)), initial=0)
    ordered = rows.take(pc.sort_indices(parts))  # A stable sort: rows of a key keep their order.
    return [ordered.slice(a, b - a) for a, b in pairwise(ends)]
