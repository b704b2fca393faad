"""`replay --dry-run`: shows how the rows of a target would differ under the current rules. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from replicator.application.sink_features import get_reader
from replicator.domain.differences import TableDiff, compare_tables
from replicator.domain.plain_values import format_count, to_json_value
from replicator.domain.policy import CHANGE_POLICIES, VERSION_POLICIES
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine

from . import cutover
from .checkpoint_restore import prepare_restored_rebuild, show_nothing
from .rebuild import get_rebuild_folder
from .table_swap import (
    DRY_RUN_SUFFIX,
    BuildTarget,
    SwapPositions,
    catch_up_with_lane,
    make_request,
    read_positions,
    remove_rebuild,
)

SEQUENCE = "_cdc_seq_"
MAX_SHOWN = 5


def compare_target(
    parts: Components, lane: Lane, make: BuildTarget, tell: ShowLine = show_nothing, **asked: Any
) -> dict[str, Any]:
    """Rebuild the target of the lane as a second table, compare, and remove it again; returns the differences.

    `asked`: policy and times of the `RebuildRequest`. Both tables are read into memory. `exact` is false if the
    positions of the log and the lane differ.
    """
    wanted = make_request(parts, lane, DRY_RUN_SUFFIX, **asked)
    _remove_leftovers(parts, wanted)
    rebuild = prepare_restored_rebuild(parts, wanted, tell)
    try:
        said = catch_up_with_lane(parts, rebuild, wanted, make)
        before, after, there = _read_tables(parts, lane.into, wanted)
        keys = rebuild.register.load(lane.source).keys.get(lane.table, lane.keys)
        found = compare_tables(
            before, after, _list_identity_columns(wanted, keys, before), ignored=[CDC_APPLIED_AT], max_shown=MAX_SHOWN
        )
    finally:
        remove_rebuild(parts, wanted)
    rules = parts.sources[lane.source].transactions
    places = [
        cutover.without_transaction_topic(state.position, rules) if state else None
        for state in (there.live_state, there.rebuilt_state)
    ]
    exact = places[0] is not None and places[0] == places[1]
    return {**said, "lane": lane.id, "exact": exact, **_to_json(found, before, after)}


def _remove_leftovers(parts: Components, wanted: RebuildRequest) -> None:
    """Remove the table of an earlier comparison that was killed."""
    if get_rebuild_folder(parts, wanted.id).exists():
        remove_rebuild(parts, wanted)


def _read_tables(parts: Components, into: str, wanted: RebuildRequest) -> tuple[pa.Table, pa.Table, SwapPositions]:
    """Both tables, and the positions of their lanes before the read."""
    there = read_positions(parts, wanted)
    with closing(parts.open_sink(wanted.lane.sink)) as sink:
        reader = get_reader(sink)
        names = set(reader.tables())
        found = [reader.read(name) if name in names else pa.table({}) for name in (into, wanted.into)]
    return found[0], found[1], there


def _list_identity_columns(wanted: RebuildRequest, keys: Sequence[str], rows: pa.Table) -> Sequence[str]:
    """The columns that identify a row of the target."""
    policy = wanted.policy or wanted.lane.policy
    if policy in CHANGE_POLICIES:
        return [EVENT_ID]
    return [*keys, *(n for n in rows.column_names if n.startswith(SEQUENCE))] if policy in VERSION_POLICIES else keys


def _to_json(found: TableDiff, before: pa.Table, after: pa.Table) -> dict[str, Any]:
    return {
        "rows": {"live": before.num_rows, "rebuilt": after.num_rows},
        "same": found.same,
        "only_live": found.only_before,
        "only_rebuilt": found.only_after,
        "differing": found.different,
        "columns": dict(found.columns),
        "columns_only_live": found.columns_only_before,
        "columns_only_rebuilt": found.columns_only_after,
        "first": {
            "only_live": [to_json_value(row) for row in found.first["only_before"]],
            "only_rebuilt": [to_json_value(row) for row in found.first["only_after"]],
            "differing": [to_json_value(row) for row in found.first["differing"]],
        },
    }


def to_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The result for people, line by line."""
    rows, first = result["rows"], result["first"]
    same = f"{result['same']:,} the same"
    yield f"{result['lane']}: {format_count(rows['live'], 'row')} now, {rows['rebuilt']:,} after a rebuild, {same}"
    if not result["exact"]:
        yield "  the event log and the lane are at different positions: changes between them count as differences"
    for name, words in (("only_live", "only in the target"), ("only_rebuilt", "only in the rebuild")):
        if result[name]:
            yield f"{format_count(result[name], 'row')} {words}"
            yield from (f"  {row}" for row in first[name])
    if result["differing"]:
        columns = ", ".join(f"{name} ({number:,})" for name, number in result["columns"].items())
        yield f"{format_count(result['differing'], 'row')} with differences, in {columns}"
        for row in first["differing"]:
            changes = ", ".join(f"{name}: {was!r} → {now!r}" for name, (was, now) in row["columns"].items())
            yield f"  {row['key']}: {changes}"
    for name, words in (
        ("columns_only_live", "only the target has"),
        ("columns_only_rebuilt", "only the rebuild has"),
    ):
        if result[name]:
            yield f"columns that {words}: {', '.join(result[name])}"
    if result["rejected"]:
        yield f"{format_count(result['rejected'], 'record')} would be rejected"
