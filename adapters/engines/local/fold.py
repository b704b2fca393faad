"""Stage 1 in process: DuckDB finds row numbers over keys, sequences and flags, Arrow takes the rows.

DuckDB never sees a value column, so wide tables fold as fast as narrow ones and no value changes its type.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import (
    IF_THERE,
    MOVED_FROM,
    MOVED_TO,
    OP,
    PARTITION,
    RESET,
    TOPIC,
    TS,
    UNSENT,
    Op,
    sequence_columns,
)
from replicator.domain.plan import ApplyPlan, Counts, Cut, Facts, united_cuts
from replicator.domain.position import TopicPartition
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Folded

from ...arrow.departures import asks_target, is_doubtful, looks, without_others
from ...arrow.names import plainly_named
from ...sql.dialect import DUCKDB
from ...sql.duck import session
from ...sql.fold import (
    BELOW,
    EQUAL,
    KEPT,
    LAST,
    OUTCOME,
    PLACE,
    VOID,
    guard_select,
    last_select,
    sent_select,
)
from ...sql.local_distinct import distinct, is_ordered
from ...sql.relatable import relatable


def fold(changes: pa.Table, plan: ApplyPlan) -> Folded[pa.Table]:
    """See `ports.engine.Engine.fold`."""
    changes = _with_reset(changes)
    total = changes.num_rows
    if plan.fold == "none":
        frame, counts = _distinct(changes, plan)
        frame, others = without_others(frame, plan)
        counts += Counts(superseded=others)
        return _folded(frame, changes, plan, counts)
    kept, counts = changes, Counts()
    if not is_ordered(changes, plan):
        kept, counts = _guarded(changes, plan)
    kept, others = without_others(kept, plan)
    counts += Counts(superseded=others)
    frame = _last_per_key(kept, plan)
    counts += Counts(folded=total - counts.total - frame.num_rows)
    return _folded(frame, changes, plan, counts)


def _with_reset(changes: pa.Table) -> pa.Table:
    if RESET in changes.column_names:
        return changes
    return changes.append_column(RESET, pa.repeat(pa.scalar(False), changes.num_rows))


def _guarded(changes: pa.Table, plan: ApplyPlan) -> tuple[pa.Table, Counts]:
    """Without what is not above the running maximum of its key."""
    with session() as connection:
        connection.register("changes", _narrow(changes, plan))
        outcome = connection.sql(guard_select(plan, DUCKDB, "changes")).to_arrow_table()[OUTCOME]
    seen = {entry["values"]: entry["counts"] for entry in pc.value_counts(outcome).to_pylist()}
    counts = Counts(superseded=seen.get(BELOW, 0), duplicate=seen.get(EQUAL, 0))
    return changes.filter(pc.equal(outcome, KEPT)), counts


def _narrow(changes: pa.Table, plan: ApplyPlan) -> pa.Table:
    names = (*plan.table.keys, *sequence_columns(plan.table.sequence), OP, UNSENT, RESET)
    narrow = relatable(changes.select(list(names)))
    narrow = narrow.append_column("_moved", pc.is_valid(changes[MOVED_FROM]))
    return narrow.append_column(PLACE, pa.array(range(changes.num_rows), pa.int64()))


def _last_per_key(kept: pa.Table, plan: ApplyPlan) -> pa.Table:
    """The last truncate, if any, then one row per key with a change above it."""
    truncates, kept = _after_truncate(kept, plan)
    if not kept.num_rows:
        return pa.concat_tables([truncates, kept])
    truncated = truncates.num_rows > 0
    rows = (
        _as_they_are(kept, truncated=truncated) if _once_per_key(kept, plan) else _related(kept, plan, truncated=truncated)
    )
    return pa.concat_tables([truncates, _without_spare_old_keys(rows)])


def _without_spare_old_keys(rows: pa.Table) -> pa.Table:
    """Old keys only where values must come from their rows."""
    moved = rows[MOVED_FROM]
    if moved.null_count == rows.num_rows:
        return rows
    return _replaced(rows, MOVED_FROM, pc.if_else(pc.is_valid(rows[UNSENT]), moved, pa.scalar(None, moved.type)))


def _once_per_key(kept: pa.Table, plan: ApplyPlan) -> bool:
    """True when no key has two changes, as in a snapshot and in most small batches: there is nothing to relate."""
    keys = plainly_named(kept.select(list(plan.table.keys)))
    if not all(map(_is_plain, keys.schema.types)):
        return False
    return bool(keys.group_by(keys.column_names, use_threads=False).aggregate([]).num_rows == kept.num_rows)


def _is_plain(kind: pa.DataType) -> bool:
    """True for types of which Arrow and DuckDB hold the same values to be equal."""
    same = (pa.types.is_integer, pa.types.is_string, pa.types.is_temporal, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in same)


def _as_they_are(kept: pa.Table, *, truncated: bool) -> pa.Table:
    is_delete = pc.equal(kept[OP], Op.DELETE.value)
    return _replaced(kept, RESET, pc.and_(pc.or_(kept[RESET], pa.scalar(truncated)), pc.invert(is_delete)))


def _related(kept: pa.Table, plan: ApplyPlan, *, truncated: bool) -> pa.Table:
    with session() as connection:
        connection.register("changes", _narrow(kept, plan))
        places = connection.sql(last_select(plan, DUCKDB, "changes")).to_arrow_table()
        rows = _taken(kept, places, truncated=truncated)
        names = _unsent_names(rows, plan)
        lacking = rows[UNSENT].null_count < rows.num_rows
        if lacking or kept[MOVED_FROM].null_count < kept.num_rows:
            keys = relatable(rows.select(list(plan.table.keys)))
            connection.register("folded", keys.append_column(LAST, places[LAST]).append_column(VOID, places[VOID]))
            sent = connection.sql(sent_select(plan, DUCKDB, "changes", "folded", names)).to_arrow_table()
            rows = _completed(rows, kept, sent, names, plan)
    return rows


def _after_truncate(kept: pa.Table, plan: ApplyPlan) -> tuple[pa.Table, pa.Table]:
    """The highest truncate, and the changes above it: of several partitions some may have arrived before it."""
    truncates = kept.filter(pc.equal(kept[OP], Op.TRUNCATE.value))
    if not truncates.num_rows:
        return truncates, kept
    names = sequence_columns(plan.table.sequence)
    floor = _extreme(truncates, names, "descending") or ()
    return truncates.slice(truncates.num_rows - 1), kept.filter(_above(kept, names, floor))


def _above(changes: pa.Table, names: tuple[str, ...], floor: Sequence) -> pa.ChunkedArray:
    above, equal = pa.scalar(False), pa.scalar(True)
    for name, value in zip(names, floor, strict=True):
        above = pc.or_(above, pc.and_(equal, pc.greater(changes[name], value)))
        equal = pc.and_(equal, pc.equal(changes[name], value))
    return above


def _taken(kept: pa.Table, places: pa.Table, *, truncated: bool) -> pa.Table:
    rows = kept.take(places[LAST])
    is_delete = pc.equal(rows[OP], Op.DELETE.value)
    void = pc.or_(pc.is_valid(places[VOID]), pa.scalar(truncated))
    reset = pc.and_(void, pc.invert(is_delete))
    return rows.set_column(rows.column_names.index(RESET), RESET, reset)


def _unsent_names(rows: pa.Table, plan: ApplyPlan) -> list[str]:
    """The columns that may have to be taken from earlier changes: all where a delete leaves its row."""
    if plan.soft_deletes and pc.any(pc.equal(rows[OP], Op.DELETE.value)).as_py():
        return [c.name for c in plan.table.values]
    return sorted(set(pc.list_flatten(rows[UNSENT].combine_chunks()).to_pylist()) - {IF_THERE})


def _completed(rows: pa.Table, kept: pa.Table, sent: pa.Table, names: list[str], plan: ApplyPlan) -> pa.Table:
    """Columns that a key's last change did not send, from the last change that did; and the old key of a key change.
    Deletes keep the image they came with, but where they leave rows."""
    found = []
    is_delete = pc.equal(rows[OP], Op.DELETE.value)
    unsent = rows[UNSENT]
    if plan.soft_deletes:
        takes = pc.and_(is_delete, pc.is_valid(sent["a"]))
        is_delete = pc.and_(is_delete, pc.is_null(sent["a"]))
        unsent = pc.if_else(takes, pa.scalar(names, unsent.type), unsent)
    for i, name in enumerate(names):
        place = sent[f"c{i}"]
        rows = _replaced(rows, name, kept[name].take(pc.if_else(is_delete, sent[LAST], place)))
        found.append(pc.is_valid(place).to_pylist())
    whole = pc.is_valid(sent["w"]).to_pylist()
    rows = _replaced(rows, UNSENT, _still_unsent(unsent.to_pylist(), names, found, whole))
    return _replaced(rows, MOVED_FROM, kept[MOVED_FROM].take(sent["m"]))


def _still_unsent(unsent: list[list[str] | None], names: list[str], found: list[list[bool]], whole: list[bool]) -> pa.Array:
    """Names without a value. Empty, not null, where every value came but no change sent them all: such a row still needs
    one to be there, as each of its changes does alone."""
    have = dict(zip(names, found, strict=True)) | {IF_THERE: [False] * len(whole)}
    left = [None if row is None or whole[i] else [n for n in row if not have[n][i]] for i, row in enumerate(unsent)]
    return pa.array(left, pa.list_(pa.string()))


def _replaced(rows: pa.Table, name: str, column: pa.ChunkedArray | pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, column)


def _distinct(changes: pa.Table, plan: ApplyPlan) -> tuple[pa.Table, Counts]:
    """Every change once. Under a watermark whatever comes twice is left: the first may be late, and the second not."""
    if plan.watermark is not None:
        return changes, Counts()
    rows = distinct(changes, plan, counted=plan.repair.counted and _partitions(changes) == 1)
    return rows, Counts(duplicate=changes.num_rows - rows.num_rows)


def _partitions(changes: pa.Table) -> int:
    return int(changes.select([TOPIC, PARTITION]).group_by([TOPIC, PARTITION]).aggregate([]).num_rows)


def _folded(frame: pa.Table, changes: pa.Table, plan: ApplyPlan, counts: Counts) -> Folded[pa.Table]:
    return Folded(frame, _facts(frame, changes, plan), counts, frame.num_rows, frame.nbytes)


def _facts(frame: pa.Table, changes: pa.Table, plan: ApplyPlan) -> Facts:
    names = sequence_columns(plan.table.sequence)
    truncates = frame.filter(pc.equal(frame[OP], Op.TRUNCATE.value)) if plan.truncates else frame.slice(0, 0)
    newest = pc.max(changes[TS].cast(pa.int64())).as_py()
    return Facts(
        lowest=_extreme(changes, names, "ascending"),
        highest=_extreme(changes, names, "descending"),
        unsent=_lacks(frame[UNSENT], plan),
        moves=_moves(frame, plan),
        doubts=_doubts(frame, plan),
        deletes=bool(pc.any(pc.equal(frame[OP], Op.DELETE.value)).as_py()),
        clear_below=_extreme(truncates, names, "descending"),
        cleared_at=_time_of_last(truncates),
        newest=newest,
        deleted=_deleted(changes, names) if plan.fold == "last" else None,
        cuts=_cuts(truncates, names) if plan.history else (),
        **_event_times(changes, plan),
    )


def _moves(frame: pa.Table, plan: ApplyPlan) -> bool:
    told = [n for n in (MOVED_FROM, *([MOVED_TO] if looks(plan) else [])) if n in frame.column_names]
    return any(frame[name].null_count < frame.num_rows for name in told)


def _doubts(frame: pa.Table, plan: ApplyPlan) -> bool:
    """Some delete is to be asked of the target's row whose image may not be whole, or whose transaction that row does not
    tell."""
    if not asks_target(plan):
        return False
    told = pc.is_valid(frame[MOVED_TO]) if plan.table.by_tx else is_doubtful(frame, plan.shown)
    return bool(pc.any(told).as_py())


def _deleted(changes: pa.Table, names: tuple[str, ...]) -> Sequence | None:
    gone = pc.equal(changes[OP], Op.DELETE.value)
    return _extreme(changes.filter(gone), names, "descending") if pc.any(gone).as_py() else None


def _time_of_last(truncates: pa.Table) -> int | None:
    """Of a fold to the last there is one truncate at most."""
    return truncates[TS].cast(pa.int64())[-1].as_py() if truncates.num_rows else None


def _cuts(truncates: pa.Table, names: tuple[str, ...]) -> tuple[Cut, ...]:
    elements = zip(*(truncates[n].to_pylist() for n in names), strict=True)
    times = truncates[TS].cast(pa.int64()).to_pylist()
    return united_cuts(tuple(Cut(sequence, at) for sequence, at in zip(elements, times, strict=True)))


def _event_times(changes: pa.Table, plan: ApplyPlan) -> dict[str, Any]:
    """What a watermark has to know, where there is one: what a snapshot read has the time of reading, and does not count."""
    if plan.watermark is None:
        return {}
    mine = changes.select([TOPIC, PARTITION, TS]).filter(pc.not_equal(changes[OP], Op.READ.value))
    mine = mine.set_column(2, TS, mine[TS].cast(pa.int64())).drop_null()
    each = mine.group_by([TOPIC, PARTITION]).aggregate([(TS, "max")]).to_pylist()
    reached = {TopicPartition(row[TOPIC], row[PARTITION]): row[f"{TS}_max"] for row in each}
    return {"oldest": pc.min(mine[TS]).as_py(), "reached": reached}


def _lacks(lists: pa.ChunkedArray, plan: ApplyPlan) -> bool:
    """Some row needs another one to take values from."""
    lists = lists.drop_null()
    may_be_there = plan.table.keeping or plan.soft_deletes
    return any(names[:1] != [IF_THERE] for names in lists.to_pylist()) if may_be_there else len(lists) > 0


def _extreme(changes: pa.Table, names: tuple[str, ...], order: str) -> Sequence | None:
    if not changes.num_rows or not names:
        return None
    first = pc.select_k_unstable(changes.select(list(names)), 1, [(n, order) for n in names])
    return tuple(changes[n][first[0].as_py()].as_py() for n in names)
