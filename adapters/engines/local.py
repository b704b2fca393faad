"""The local engine: Arrow tables in one process, DuckDB for joins and windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import (
    ERROR,
    KEEP_EXISTING,
    KEY_CHANGE_DELETE,
    OLD_KEY,
    OP,
    PARTITION,
    RAW_RECORD_POSITION,
    RESET,
    TABLE,
    TOPIC,
    TS,
    UNCHANGED,
    Op,
    changes_schema,
    sequence_columns,
)
from replicator.domain.erasures import UNKEYED_HASHES, KeyHashes
from replicator.domain.policy.plan import ApplyPlan, Counts, Facts, Truncate, merge_truncates
from replicator.domain.position import Position, Span, TopicPartition
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark
from replicator.ports.decoder import ROUTE, TABLE_DROPPED, Decoder
from replicator.ports.engine import EngineFeatures, Frames, KeyPartitions, Prefetch, TransactionTracking
from replicator.ports.frames import FoldedChanges, RecordSlice, RejectedRecord, RoutedBatch, TransformedChanges

from ..apply.lane_progress import drop_duplicates, is_ordered
from ..arrow.key_change import (
    can_have_foreign_deletes,
    drop_foreign_deletes,
    find_open_key_changes,
    is_doubtful,
    needs_target_row,
    rename_plainly,
    split_segments,
)
from ..arrow.record_positions import (
    collect_rejected,
    find_drops,
    find_ends,
    group_by_table,
    mask_later,
    split_by_span,
    split_exact_parts,
    split_parts,
)
from ..duckdb.session import open_session, to_duckdb_types
from ..event_log import build_rows
from ..sql.dialect import DUCKDB
from ..sql.fold import ARRIVAL, BELOW, EQUAL, KEPT, LAST, OUTCOME, VOID, guard_select, last_select, sent_select
from ..transforms.row_transforms import transform_rows
from .decode_pool import NUMBER, DecodePool

SAMPLE = 100
"""Records from which a decoder reads a schema."""


class LocalEngine:
    """`ports.engine.Engine` over `pyarrow.Table`. Option `ahead`: the largest number of worker processes that decode
    batches in advance (`ports.engine.Prefetch`); the engine keeps these batches until they are requested. Without it
    the engine has no state."""

    partitioner = f"hashes of DuckDB {duckdb.__version__}"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.frames: Frames[pa.Table] = LocalFrames()
        settings = dict(options or {})
        number = min(NUMBER, int(str(settings.pop("ahead", 0))))
        self._decode_pool = DecodePool(number) if number > 0 else None
        if settings:
            raise ValueError(f"the local engine has no option {sorted(settings)[0]!r}")

    @property
    def features(self) -> EngineFeatures:
        pool = self._decode_pool
        return EngineFeatures(
            prefetch=None if pool is None else Prefetch(pool.number, pool.begin, pool.stop_workers),
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
        slice_ = None if self._decode_pool is None else self._decode_pool.find_slice(raw)
        if slice_ is not None:
            return RoutedBatch(
                (slice_,), {}, _select_errors(raw.slice(0, 0), ROUTE.empty_table()), 0, _list_topics([slice_])
            )
        routes = decoder.route(raw)
        bad = pc.is_valid(routes["error"])
        rejects = _select_errors(raw.filter(bad), routes.filter(bad))
        ignored = {e["values"]: e["counts"] for e in pc.value_counts(routes["ignored"]).to_pylist() if e["values"]}
        slices = (
            _split_by_schema(raw.filter(pc.invert(bad)), routes.filter(pc.invert(bad)))
            if rejects.num_rows
            else _split_by_schema(raw, routes)
        )
        drops = group_by_table(find_drops(raw, routes, decoder)) if TABLE_DROPPED in ignored else {}
        routed = RoutedBatch(slices, ignored, rejects, rejects.num_rows, _list_topics(slices), drops)
        if self._decode_pool is not None:
            self._decode_pool.note_route(raw, decoder, routed)
        return routed

    def log(self, raw: pa.Table, decoder: Decoder) -> pa.Table:
        return build_rows(raw, decoder, datetime.now(UTC))

    def decode(self, slice_: RecordSlice[pa.Table], decoder: Decoder, table: TableSpec) -> tuple[pa.Table, pa.Table]:
        changes = None if self._decode_pool is None else self._decode_pool.find_changes(slice_.frame, table)
        if changes is not None:
            return _split_errors(changes)
        if self._decode_pool is not None:
            self._decode_pool.note_changes(slice_, decoder, table)
        return _split_errors(decoder.decode(slice_.frame, table))

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
        if table is None:
            return pa.concat_tables(frames)
        # Frames under an older schema lack columns of the table, or have them in other types.
        parts = []
        for frame in frames:
            columns = {}
            for field in changes_schema(table):
                column = frame[field.name] if field.name in frame.column_names else pa.nulls(frame.num_rows, field.type)
                columns[field.name] = column.cast(field.type)
            parts.append(pa.table(columns))
        return pa.concat_tables(parts)

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


def _split_errors(changes: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The valid changes, and the changes with an error."""
    if changes[ERROR].null_count == changes.num_rows:
        return changes, changes.slice(0, 0)
    bad = pc.is_valid(changes[ERROR])
    return changes.filter(pc.invert(bad)), changes.filter(bad)


def _select_errors(raw: pa.Table, routes: pa.Table) -> pa.Table:
    return raw.append_column(ERROR, routes["error"]).append_column(TABLE, routes["table"])


def _split_by_schema(raw: pa.Table, routes: pa.Table) -> tuple[RecordSlice[pa.Table], ...]:
    """Slices with one table and one fingerprint each. With several fingerprints they are cut in each partition separately,
    because interleaved partitions would make too many slices."""
    out = []
    for table in pc.unique(routes["table"]).to_pylist():
        if table is None:
            continue
        in_table = pc.equal(routes["table"], table)
        whole = raw.num_rows == pc.sum(in_table).as_py()
        frame = raw if whole else raw.filter(in_table)
        prints = routes["fingerprint"] if whole else routes["fingerprint"].filter(in_table)
        if len(pc.unique(prints)) == 1:
            out.append(RecordSlice(table, prints[0].as_py(), frame))
            continue
        order = pc.sort_indices(frame.select(RAW_RECORD_POSITION), [(n, "ascending") for n in RAW_RECORD_POSITION])
        frame, sorted_prints = frame.take(order), prints.take(order).to_pylist()
        starts = [i for i, p in enumerate(sorted_prints) if i == 0 or p != sorted_prints[i - 1]]
        for start, end in pairwise([*starts, len(sorted_prints)]):
            out.append(RecordSlice(table, sorted_prints[start], frame.slice(start, end - start)))
    return tuple(out)


def _list_topics(slices: Sequence[RecordSlice[pa.Table]]) -> dict[str, frozenset[str]]:
    topics: dict[str, frozenset[str]] = {}
    for slice_ in slices:
        topics[slice_.table] = topics.get(slice_.table, frozenset()) | set(pc.unique(slice_.frame["topic"]).to_pylist())
    return topics


def split_by_key_hash(rows: pa.Table, keys: Sequence[str], number: int) -> Sequence[pa.Table]:
    """See `ports.engine.KeyPartitions`."""
    names = ", ".join(map(DUCKDB.quote_name, keys))
    with open_session() as connection:
        connection.register("keys", to_duckdb_types(rows.select(list(keys))))
        query = f"SELECT (hash({names}) % {number})::SMALLINT AS part FROM keys"
        parts = connection.sql(query).to_arrow_table()["part"]
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(parts).to_pylist()}
    ends = accumulate((counts.get(part, 0) for part in range(number)), initial=0)
    ordered = rows.take(pc.sort_indices(parts))  # A stable sort: rows of a key keep their order.
    return [ordered.slice(a, b - a) for a, b in pairwise(ends)]


# Stage 1 in one process: DuckDB finds row numbers from keys, sequences and flags, Arrow selects the rows.
#
# DuckDB never sees a value column, so wide tables fold as fast as narrow ones and no value changes its type.


def fold_changes(changes: pa.Table, plan: ApplyPlan) -> FoldedChanges[pa.Table]:
    """See `ports.engine.Engine.fold`."""
    if RESET not in changes.column_names:
        changes = changes.append_column(RESET, pa.repeat(pa.scalar(False), changes.num_rows))
    if plan.fold == "none":
        frame, counts = _drop_duplicates(changes, plan)
        frame, others = drop_foreign_deletes(frame, plan)
        counts += Counts(superseded=others)
        return _to_folded(frame, changes, plan, counts)
    live, counts = changes, Counts()
    if not is_ordered(changes, plan):
        with open_session() as connection:
            connection.register("changes", _select_narrow(changes, plan))
            outcome = connection.sql(guard_select(plan, DUCKDB, "changes")).to_arrow_table()[OUTCOME]
        totals = {entry["values"]: entry["counts"] for entry in pc.value_counts(outcome).to_pylist()}
        counts = Counts(superseded=totals.get(BELOW, 0), duplicate=totals.get(EQUAL, 0))
        live = changes.filter(pc.equal(outcome, KEPT))
    live, others = drop_foreign_deletes(live, plan)
    counts += Counts(superseded=others)
    frame = _last_per_key(live, plan)
    counts += Counts(folded=changes.num_rows - counts.total - frame.num_rows)
    return _to_folded(frame, changes, plan, counts)


def _select_narrow(changes: pa.Table, plan: ApplyPlan) -> pa.Table:
    names = (*plan.table.keys, *sequence_columns(plan.table.sequence), OP, UNCHANGED, RESET)
    narrow = to_duckdb_types(changes.select(list(names)))
    narrow = narrow.append_column("_moved", pc.is_valid(changes[OLD_KEY]))
    return narrow.append_column(ARRIVAL, pa.array(range(changes.num_rows), pa.int64()))


def _last_per_key(changes: pa.Table, plan: ApplyPlan) -> pa.Table:
    """The last truncate, if any, then one row for each key with a change above it."""
    truncates = changes.filter(pc.equal(changes[OP], Op.TRUNCATE.value))
    if truncates.num_rows:  # Changes of other partitions that are above it may have arrived before it.
        names = sequence_columns(plan.table.sequence)
        above, equal = pa.scalar(False), pa.scalar(True)
        for name, value in zip(names, _find_extreme(truncates, names, "descending") or (), strict=True):
            above = pc.or_(above, pc.and_(equal, pc.greater(changes[name], value)))
            equal = pc.and_(equal, pc.equal(changes[name], value))
        truncates, changes = truncates.slice(truncates.num_rows - 1), changes.filter(above)
    if not changes.num_rows:
        return pa.concat_tables([truncates, changes])
    truncated = truncates.num_rows > 0
    if _is_once_per_key(changes, plan):
        is_delete = pc.equal(changes[OP], Op.DELETE.value)
        reset = pc.and_(pc.or_(changes[RESET], pa.scalar(truncated)), pc.invert(is_delete))
        rows = _replace_column(changes, RESET, reset)
    else:
        rows = _fold_in_duckdb(changes, plan, truncated=truncated)
    old_keys = rows[OLD_KEY]
    if old_keys.null_count < rows.num_rows:  # Only rows that need values from the old row keep its key.
        needed = pc.if_else(pc.is_valid(rows[UNCHANGED]), old_keys, pa.scalar(None, old_keys.type))
        rows = _replace_column(rows, OLD_KEY, needed)
    return pa.concat_tables([truncates, rows])


def _is_once_per_key(changes: pa.Table, plan: ApplyPlan) -> bool:
    """True if no key has two changes, as in snapshots and most small batches: nothing to fold."""
    keys = rename_plainly(changes.select(list(plan.table.keys)))
    # Arrow and DuckDB compare the values of these types in the same way.
    same = (pa.types.is_integer, pa.types.is_string, pa.types.is_temporal, pa.types.is_decimal)
    if not all(any(is_kind(kind) for is_kind in same) for kind in keys.schema.types):
        return False
    return bool(keys.group_by(keys.column_names, use_threads=False).aggregate([]).num_rows == changes.num_rows)


def _fold_in_duckdb(changes: pa.Table, plan: ApplyPlan, *, truncated: bool) -> pa.Table:
    with open_session() as connection:
        connection.register("changes", _select_narrow(changes, plan))
        last = connection.sql(last_select(plan, DUCKDB, "changes")).to_arrow_table()
        rows = changes.take(last[LAST])
        void = pc.or_(pc.is_valid(last[VOID]), pa.scalar(truncated))
        rows = _replace_column(rows, RESET, pc.and_(void, pc.not_equal(rows[OP], Op.DELETE.value)))
        names = _list_missing_names(rows, plan)
        lacking = rows[UNCHANGED].null_count < rows.num_rows
        if lacking or changes[OLD_KEY].null_count < changes.num_rows:
            keys = to_duckdb_types(rows.select(list(plan.table.keys)))
            connection.register("folded", keys.append_column(LAST, last[LAST]).append_column(VOID, last[VOID]))
            sent = connection.sql(sent_select(plan, DUCKDB, "changes", "folded", names)).to_arrow_table()
            rows = _complete_rows(rows, changes, sent, names, plan)
    return rows


def _list_missing_names(rows: pa.Table, plan: ApplyPlan) -> list[str]:
    """The columns to fill from earlier changes; all of them if one of the rows is a soft delete."""
    if plan.soft_deletes and pc.any(pc.equal(rows[OP], Op.DELETE.value)).as_py():
        return [c.name for c in plan.table.values]
    return sorted(set(pc.list_flatten(rows[UNCHANGED].combine_chunks()).to_pylist()) - {KEEP_EXISTING})


def _complete_rows(rows: pa.Table, changes: pa.Table, sent: pa.Table, names: list[str], plan: ApplyPlan) -> pa.Table:
    """Fill values that a key's last change did not contain, from the last change that did. Set the old key of a key
    change. Deletes keep their own image, except with soft deletes.

    The missing names become empty, not null, if all values are known but no single change contained them all. Such a row
    still needs an existing row, as each of its changes does."""
    masks = []
    is_delete = pc.equal(rows[OP], Op.DELETE.value)
    unchanged = rows[UNCHANGED]
    if plan.soft_deletes:
        is_filled = pc.and_(is_delete, pc.is_valid(sent["a"]))
        is_delete = pc.and_(is_delete, pc.is_null(sent["a"]))
        unchanged = pc.if_else(is_filled, pa.scalar(names, unchanged.type), unchanged)
    for i, name in enumerate(names):
        numbers = sent[f"c{i}"]
        rows = _replace_column(rows, name, changes[name].take(pc.if_else(is_delete, sent[LAST], numbers)))
        masks.append(pc.is_valid(numbers).to_pylist())
    whole = pc.is_valid(sent["w"]).to_pylist()
    have = dict(zip(names, masks, strict=True)) | {KEEP_EXISTING: [False] * len(whole)}
    missing = [
        None if row is None or whole[i] else [n for n in row if not have[n][i]]
        for i, row in enumerate(unchanged.to_pylist())
    ]
    rows = _replace_column(rows, UNCHANGED, pa.array(missing, pa.list_(pa.string())))
    return _replace_column(rows, OLD_KEY, changes[OLD_KEY].take(sent["m"]))


def _replace_column(rows: pa.Table, name: str, column: pa.ChunkedArray | pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, column)


def _drop_duplicates(changes: pa.Table, plan: ApplyPlan) -> tuple[pa.Table, Counts]:
    """Every change once. Under a watermark all changes stay, because the first may be late when the second is not."""
    if plan.watermark is not None:
        return changes, Counts()
    counted = plan.reconcile.counted
    if counted:
        partitions = changes.select([TOPIC, PARTITION]).group_by([TOPIC, PARTITION]).aggregate([])
        counted = partitions.num_rows == 1
    rows = drop_duplicates(changes, plan, counted=counted)
    return rows, Counts(duplicate=changes.num_rows - rows.num_rows)


def _to_folded(frame: pa.Table, changes: pa.Table, plan: ApplyPlan, counts: Counts) -> FoldedChanges[pa.Table]:
    names = sequence_columns(plan.table.sequence)
    missing = frame[UNCHANGED].drop_null()
    has_unchanged = len(missing) > 0  # Some row needs values of another one.
    if plan.table.ignore_null or plan.soft_deletes:
        has_unchanged = any(columns[:1] != [KEEP_EXISTING] for columns in missing.to_pylist())
    key_changes = [OLD_KEY, KEY_CHANGE_DELETE] if can_have_foreign_deletes(plan) else [OLD_KEY]
    is_delete = pc.equal(changes[OP], Op.DELETE.value)
    max_delete = None
    if plan.fold == "last" and pc.any(is_delete).as_py():
        max_delete = _find_extreme(changes.filter(is_delete), names, "descending")
    truncates = frame.filter(pc.equal(frame[OP], Op.TRUNCATE.value)) if plan.truncates else frame.slice(0, 0)
    truncate_times = truncates[TS].cast(pa.int64()).to_pylist()
    history: tuple[Truncate, ...] = ()
    if plan.history:
        sequences = zip(*(truncates[n].to_pylist() for n in names), strict=True)
        history = merge_truncates(tuple(Truncate(*each) for each in zip(sequences, truncate_times, strict=True)))
    # A delete must be compared with the target's row if its image may be incomplete, or the row's transaction is unknown.
    has_doubtful_deletes = False
    if needs_target_row(plan):
        by_tx = plan.table.by_tx
        doubtful = pc.is_valid(frame[KEY_CHANGE_DELETE]) if by_tx else is_doubtful(frame, plan.delete_evidence_columns)
        has_doubtful_deletes = bool(pc.any(doubtful).as_py())
    facts = Facts(
        lowest=_find_extreme(changes, names, "ascending"),
        highest=_find_extreme(changes, names, "descending"),
        has_unchanged=has_unchanged,
        has_key_changes=any(n in frame.column_names and frame[n].null_count < frame.num_rows for n in key_changes),
        has_doubtful_deletes=has_doubtful_deletes,
        has_deletes=bool(pc.any(pc.equal(frame[OP], Op.DELETE.value)).as_py()),
        truncated_at=_find_extreme(truncates, names, "descending"),
        truncate_time=truncate_times[-1] if truncate_times else None,
        newest=pc.max(changes[TS].cast(pa.int64())).as_py(),
        max_delete=max_delete,
        truncates=history,
        **_max_event_times(changes, plan),
    )
    return FoldedChanges(frame, facts, counts, frame.num_rows, frame.nbytes)


def _max_event_times(changes: pa.Table, plan: ApplyPlan) -> dict[str, Any]:
    """The facts for a watermark, if there is one. Snapshot rows do not count, because they have the time of reading."""
    if plan.watermark is None:
        return {}
    times = changes.select([TOPIC, PARTITION, TS]).filter(pc.not_equal(changes[OP], Op.READ.value))
    times = times.set_column(2, TS, times[TS].cast(pa.int64())).drop_null()
    each = times.group_by([TOPIC, PARTITION]).aggregate([(TS, "max")]).to_pylist()
    reached = {TopicPartition(row[TOPIC], row[PARTITION]): row[f"{TS}_max"] for row in each}
    return {"oldest": pc.min(times[TS]).as_py(), "max_event_times": reached}


def _find_extreme(changes: pa.Table, names: tuple[str, ...], order: str) -> SequenceKey | None:
    if not changes.num_rows or not names:
        return None
    first = pc.select_k_unstable(changes.select(list(names)), 1, [(n, order) for n in names])
    return tuple(changes[n][first[0].as_py()].as_py() for n in names)
