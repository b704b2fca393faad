"""`replay` of a lane's own target: rebuilds it as a second table, then swaps the two, or only compares them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from replicator.application.lane_registry import find_target_problem
from replicator.application.lane_schema import list_identity_columns
from replicator.application.sink_features import get_reader
from replicator.application.state_folder import InstanceLock
from replicator.domain.differences import compare_tables
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.plain_values import format_count, to_json_value
from replicator.domain.policy.plan import CDC_APPLIED_AT, LaneState
from replicator.domain.position import Position
from replicator.ports.components import Components, RebuildRequest, TransactionRules
from replicator.ports.frames import Lane
from replicator.ports.runtime import ShowLine
from replicator.ports.sink import Sink
from replicator.ports.source import Source

from .checkpoint import find_checkpoint, prepare_restored_rebuild, show_nothing
from .drop import drop_lane
from .rebuild import REQUEST_FILE, get_rebuild_folder, lock_rebuild, make_rebuild_lane

REBUILD_SUFFIX, DRY_RUN_SUFFIX = "__replay", "__dry_run"
"""Suffixes of the names of temporary targets."""
LONGEST_NAME = 63
"""Maximum bytes of a name that every sink can store."""
MAX_CATCH_UPS = 3
"""How often a rebuild that is behind the lane is continued."""

BuildTarget = Callable[[Components], dict[str, Any]]
"""Runs the pipeline until it has caught up, and returns its counts. Raises if it did not catch up."""


def make_request(components: Components, lane: Lane, ending: str, **options: Any) -> RebuildRequest:
    """A rebuild into a temporary target, whose rejected records are stored separately."""
    into = f"{lane.into}{ending}"
    if len(into.encode()) > LONGEST_NAME:
        into = f"{hashlib.sha256(lane.into.encode()).hexdigest()[:16]}{ending}"
    return RebuildRequest(lane, into, target_digest=components.digest(lane, with_target=True), **options)


def swap_target(
    components: Components, lane: Lane, build_target: BuildTarget, show_line: ShowLine = show_nothing
) -> dict[str, Any]:
    """Rebuild the target of the lane and swap it in. Returns the result of `build_target`, and the lane's position.

    After a kill the target is the old or the new one, and another call resumes. DataLoss, without any change, if
    the log or the source lacks records that the lane needs. Fenced if another instance writes the lane,
    or another command the rebuild.
    """
    request = make_request(components, lane, REBUILD_SUFFIX)
    if problem := find_target_problem(lane, components.register.load(lane.source)):
        raise problem
    with closing(components.open_sink(lane.sink)) as sink:
        if sink.state(lane) is None:
            raise Fatal(
                f"lane {lane.id} has applied nothing yet, so there is nothing to rebuild",
                next_step="Start the daemon, or name another table with `--into`.",
            )
    with lock_rebuild(components, request.id):
        find_checkpoint(components, request)  # DataLoss before anything is removed.
        _remove_leftovers(components, request)
        rebuild = prepare_restored_rebuild(components, request, show_line)
        totals = catch_up_with_lane(components, rebuild, request, build_target)
        _copy_dead_letters(components, rebuild, request)
        state = _swap_in_daemon_or_here(components, request)
        remove_rebuild(components, request)
    return {**totals, "lane": lane.id, "position": state.position.to_json() if state else None}


def catch_up_with_lane(
    components: Components, rebuild: Components, request: RebuildRequest, build_target: BuildTarget
) -> dict[str, Any]:
    """Run the rebuild until it has reached the lane, as far as the log goes."""
    totals = build_target(rebuild)
    for _ in range(MAX_CATCH_UPS):
        if not find_gap(*read_states(components, request)):
            break
        more = build_target(rebuild)
        totals = {**totals, **{name: totals[name] + more[name] for name in ("records", "applied", "rejected")}}
    return totals


def read_states(components: Components, request: RebuildRequest) -> tuple[LaneState | None, LaneState | None]:
    """The stored states of the lane and of its rebuild."""
    with closing(components.open_sink(request.lane.sink)) as sink:
        return sink.state(request.lane), sink.state(make_rebuild_lane(request.lane, request.into))


def remove_rebuild(components: Components, request: RebuildRequest) -> None:
    """Remove the rebuilt target and its state."""
    drop_lane(components, make_rebuild_lane(request.lane, request.into))


def _remove_leftovers(components: Components, request: RebuildRequest) -> None:
    """Remove an earlier rebuild under other rules, or a half-removed one."""
    file = get_rebuild_folder(components, request.id) / REQUEST_FILE
    same = file.exists() and json.loads(file.read_text(encoding="utf-8")).get("apart") == request.target_digest
    rebuilt = make_rebuild_lane(request.lane, request.into)
    with closing(components.open_sink(rebuilt.sink)) as sink:
        try:
            sink.state(rebuilt)
        except DataLoss:
            same = False
    if file.exists() and not same:
        drop_lane(components, rebuilt)


def _copy_dead_letters(components: Components, rebuild: Components, request: RebuildRequest) -> None:
    """Store the rebuild's rejects as those of the lane, before its position covers them."""
    with closing(rebuild.open_dead_letters()) as rejected_store:
        letters = rejected_store.read()
    if not letters:
        return
    lane = request.lane.id
    with closing(components.open_dead_letters()) as store:
        store.write([replace(one, lane=lane if one.lane == request.id else one.lane) for one in letters])


def _swap_in_daemon_or_here(components: Components, request: RebuildRequest) -> LaneState | None:
    """In the running daemon if it writes the lane, otherwise in this process, while no daemon can start."""
    (live, rebuilt), lane = read_states(components, request), request.lane
    running = components.ask_daemon()
    if running is not None:
        if lane.id not in {one["id"] for one in running["lanes"]}:
            raise ConfigProblem(
                f"the daemon runs without lane {lane.id}",
                next_step="Stop the daemon, repeat the command, and start the daemon again.",
            )
        swap_request = SwapRequest(lane.table, request.into, components.digest(lane, with_target=True))
        components.command_daemon("swap", lane.id, msgspec.json.encode(swap_request).decode())
        return read_states(components, request)[0]
    with InstanceLock(components.folder, components.pipeline):
        if find_gap(live, rebuilt):
            with closing(components.use_local().open_source(lane.source)) as source:
                refuse_lost_records(source, lane, live, rebuilt)
        entry = components.register.load(lane.source)
        rules = components.sources[lane.source].transactions
        decide_cutover = Cutover(lane, entry.beginnings.get(lane.id, Position()), rules)
        with closing(components.open_sink(lane.sink, "rewrite")) as sink:
            return swap_in_sink(sink, lane, make_rebuild_lane(lane, request.into), decide_cutover)


# Switches a lane to a target that was rebuilt from the event log: no gap, and nothing twice.


@dataclass(frozen=True)
class Cutover:
    """A `ports.sink.CutoverDecision`: the lane continues where the rebuilt rows end.

    `begun`, the start position of the lane, shows partitions of which it has applied nothing. `transactions`: the
    rules of a source with transactions. Their topic has no rows of the table, so the rebuilt rows have no position
    in it. If lanes wait for each other at transactions, the rebuilt rows may not be ahead of the lane.
    """

    lane: Lane
    begun: Position
    transactions: TransactionRules | None = None

    def __call__(self, live: LaneState | None, rebuilt: LaneState) -> LaneState:
        """The combined state. DataLoss if the lane has applied records of a partition in which the rebuilt rows
        have no position."""
        live = live or LaneState()
        for partition, offset in without_transaction_topic(live.position, self.transactions).items():
            if partition not in rebuilt.position and offset > self.begun.get(partition, 0):
                raise DataLoss(
                    f"the event log has no records of {partition}, but lane {self.lane.id} has applied some",
                    next_step="Record the table's topics in the event log (`to: [{sink: LOG}]`), or keep the table as it "
                    "is.",
                )
        ahead = [p for p, offset in rebuilt.position.items() if offset > live.position.get(p, self.begun.get(p, 0))]
        if self.transactions and self.transactions.together and ahead:
            raise Fatal(
                f"the event log is ahead of lane {self.lane.id} in {ahead[0]}: the lane waits for the end of a transaction",
                next_step="Repeat the command when the lane has caught up. The rebuilt rows are kept.",
            )
        position = Position({**live.position, **rebuilt.position})
        return replace(rebuilt, position=position, identity=live.identity)


def without_transaction_topic(position: Position, transactions: TransactionRules | None) -> Position:
    """The position without the transaction topic, which a lane reads besides the topics of its table."""
    return position.only(p for p in position if transactions is None or p.topic != transactions.topic)


def find_gap(live: LaneState | None, rebuilt: LaneState | None) -> Position:
    """The end of the rebuilt rows, in the partitions in which the lane is further."""
    live_position, position = (state.position if state else Position() for state in (live, rebuilt))
    return Position({p: offset for p, offset in position.items() if offset < live_position.get(p, offset)})


def refuse_lost_records(source: Source[Any], lane: Lane, live: LaneState | None, rebuilt: LaneState | None) -> None:
    """Raise DataLoss if the lane is ahead of the rebuilt rows and its source has lost the records between them."""
    gap = find_gap(live, rebuilt)
    lost = source.losses(gap, dict(live.identity if live else ())) if gap else {}
    if lost:
        sentences = "; ".join(f"{p}: {why.rstrip('.')}" for p, why in sorted(lost.items()))
        raise DataLoss(
            f"the event log ends at {gap.to_option()}, and lane {lane.id} could not continue from there: {sentences}",
            next_step="Check that the lane of the event log is running (`replicator lanes list`), and repeat the command.",
        )


def swap_in_sink(sink: Sink[Any], lane: Lane, rebuilt: Lane, decide_cutover: Cutover) -> LaneState:
    """Swap the tables of the two lanes. ConfigProblem for a sink that cannot."""
    swap = sink.features.swap
    if swap is None:
        raise ConfigProblem(
            f"the sink of lane {lane.id} cannot swap a target with its rebuild",
            next_step="Name another table with `--into`. Or stop the daemon, and repeat the command.",
        )
    return swap(lane, rebuilt, decide_cutover)


class SwapRequest(msgspec.Struct, frozen=True):
    """The request to the running daemon, as JSON: the lane's table, the rebuilt target, and the digest of its rules."""

    table: str
    into: str
    digest: str


def swap_from_text(words: str) -> SwapRequest:
    """The request from its JSON text. ConfigProblem for any other text."""
    try:
        return msgspec.json.decode(words, type=SwapRequest)
    except msgspec.MsgspecError as wrong:
        raise ConfigProblem(
            "a swap needs the table, its new target and the digest of the rules", next_step="Use `replicator replay TABLE`."
        ) from wrong


# `replay --dry-run`: shows how the rows of a target would differ under the current rules. Changes nothing.

MAX_SHOWN = 5


def compare_target(
    components: Components, lane: Lane, build_target: BuildTarget, show_line: ShowLine = show_nothing, **options: Any
) -> dict[str, Any]:
    """Rebuild the target of the lane as a second table, compare, and remove it again; returns the differences.

    `options`: policy and times of the `RebuildRequest`. Both tables are read into memory. `exact` is false if the
    positions of the log and the lane differ.
    """
    request = make_request(components, lane, DRY_RUN_SUFFIX, **options)
    with lock_rebuild(components, request.id):
        if get_rebuild_folder(components, request.id).exists():
            remove_rebuild(components, request)  # Of a comparison that was killed.
        rebuild = prepare_restored_rebuild(components, request, show_line)
        try:
            totals = catch_up_with_lane(components, rebuild, request, build_target)
            states = read_states(components, request)  # Before the tables are read.
            with closing(components.open_sink(lane.sink)) as sink:
                reader = get_reader(sink)
                names = set(reader.tables())
                tables = [reader.read(name) if name in names else pa.table({}) for name in (lane.into, request.into)]
            before, after = tables
            source_keys = rebuild.register.load(lane.source).keys.get(lane.table, ())
            rebuilt_lane = replace(lane, policy=request.policy or lane.policy)
            keys = list_identity_columns(rebuilt_lane, source_keys, before.column_names)
            diff = compare_tables(before, after, keys, ignored=[CDC_APPLIED_AT], max_shown=MAX_SHOWN)
        finally:
            remove_rebuild(components, request)
    rules = components.sources[lane.source].transactions
    positions = [without_transaction_topic(state.position, rules) if state else None for state in states]
    exact = positions[0] is not None and positions[0] == positions[1]
    return {
        **totals,
        "lane": lane.id,
        "exact": exact,
        "rows": {"live": before.num_rows, "rebuilt": after.num_rows},
        "same": diff.same,
        "only_live": diff.only_before,
        "only_rebuilt": diff.only_after,
        "differing": diff.different,
        "columns": dict(diff.columns),
        "columns_only_live": diff.columns_only_before,
        "columns_only_rebuilt": diff.columns_only_after,
        "first": {
            "only_live": [to_json_value(row) for row in diff.first["only_before"]],
            "only_rebuilt": [to_json_value(row) for row in diff.first["only_after"]],
            "differing": [to_json_value(row) for row in diff.first["differing"]],
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
            changes = ", ".join(f"{name}: {old!r} → {new!r}" for name, (old, new) in row["columns"].items())
            yield f"  {row['key']}: {changes}"
    for name, words in (
        ("columns_only_live", "only the target has"),
        ("columns_only_rebuilt", "only the rebuild has"),
    ):
        if result[name]:
            yield f"columns that {words}: {', '.join(result[name])}"
    if result["rejected"]:
        yield f"{format_count(result['rejected'], 'record')} would be rejected"
