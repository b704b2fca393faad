"""Outbox events in the Delta table of the event store.

The lanes number the events. Programs that emit their own events can write to the same store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from replicator.domain.errors import DataLoss
from replicator.domain.events import (
    Aggregate,
    AggregateHead,
    Event,
    EventLimits,
    StoredEvents,
    find_heads,
    number_events,
    select_new,
)
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState
from replicator.domain.position import Position
from replicator.ports.frames import F, Lane, Write

from ...apply.redelivery import drop_applied
from ...arrow.outbox_events import read_new_events
from ...delta.commits import WRITER, Attempt, Operation, append_nothing
from ...delta.errors import translate_errors
from ...delta.folders import Folder, LocalFolder, sync_commit
from ...delta.lake import Lake
from ...delta.options import LakeOptions
from ...delta.table_writer import DeltaRsTableWriter
from ...delta.tables import has_table
from ...stores import EventStoreSettings
from . import event_store
from .event_store import NAME
from .lane_sink import LaneSink
from .lanes import DeltaLanes, refuse_options, refuse_policy
from .staged_write import StagedWrite

POLICIES = frozenset({"append"})
MOST_HEADS = 100_000


class EventLanes(LaneSink[F]):
    """`ports.sink.Sink` for lanes of outbox events over the event store in `lake`'s folder.

    All lanes, and all programs that emit events, append to one table. A commit has events, their versions and
    the lane's position. It is valid only directly after the snapshot in which ids and heads were read. It also
    carries the event store's transaction, which stops writers that append to a newer snapshot.

    Positions and locks are in the table's folder under `_replicator`. `reset` keeps the events: their ids
    identify them, so reading them again changes nothing.
    """

    policies = POLICIES

    def __init__(self, lake: Lake, stages: EventNumbering, compact_every: int) -> None:
        self._lake = lake
        writer = SyncedWriter(lake.root)
        super().__init__(DeltaLanes(lake, lambda _: lake.root, stages, compact_every=compact_every, writer=writer))

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """Creates the store if it does not exist. Raises ConfigProblem for another kind of table."""
        refuse_policy(lane, plan, POLICIES)
        refuse_options(lane)
        with translate_errors(NAME):
            held = self._lanes.hold(lane)
            if not has_table(self._lake.root):
                event_store.prepare_table(self._lake.root)
                held.drop_snapshot()
            event_store.check_table(held.newest())


class DeltaEventLanes(EventLanes[pa.Table]):
    """`EventLanes` in process; options of `DeltaEventStore`."""

    frame = pa.Table

    def __init__(self, options: EventStoreSettings | Mapping[str, Any]) -> None:
        settings = EventStoreSettings.read(options)
        said = LakeOptions.from_settings(settings)
        super().__init__(said.lake, EventNumbering(said.lake.root, settings.limits), said.compact_every)


class EventNumbering:
    """`lane.WriteStages`: reads ids and heads in one snapshot, and assigns versions to new events."""

    def __init__(self, root: Folder, limits: EventLimits) -> None:
        self._root = root
        self._limits = limits
        self._heads: dict[Aggregate, AggregateHead] = {}
        self._seen: int | None = None

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table]) -> StagedWrite:
        """Stages every event above the position whose id is not stored yet, as the next version of its aggregate."""
        position = Position() if write.out_of_band else state.position
        frame, trimmed = drop_applied(write.folded.frame, position)
        events, rejects = read_new_events(frame, self._limits)
        there = event_store.find_stored_ids(snapshot, {one.event_id for one in events})
        missing = [one for one in events if one.event_id not in there]
        known = StoredEvents(heads=self._read_heads(snapshot, {one.aggregate for one in missing}))
        new = select_new(number_events(missing, known, datetime.now(UTC)))
        duplicates = trimmed + len(events) - len(new)
        counts = Counts(applied=len(new), duplicate=duplicates, rejected=rejects.num_rows)
        return StagedWrite(self._append_operation(new) if new else None, state, counts, rejects)

    def clear(self, _: LaneState | None, /) -> Operation | None:
        """See `sinks.delta.lane.WriteStages.clear`. All events stay, also events of other writers."""
        return None

    def clear_blindly(self, _: Lane, __: DataLoss, /) -> Operation:
        """See `sinks.delta.lane.WriteStages.clear_blindly`. Events stay."""
        return append_nothing

    def _read_heads(self, snapshot: DeltaTable, aggregates: set[Aggregate]) -> dict[Aggregate, AggregateHead]:
        """The heads are cached as long as no other writer commits."""
        if self._seen != snapshot.version() or len(self._heads) > MOST_HEADS:
            self._heads = {}
        missing = aggregates - self._heads.keys()
        return {**self._heads, **event_store.read_heads(snapshot, missing)}

    def _append_operation(self, events: Sequence[Event]) -> Operation:
        def append(snapshot: DeltaTable, attempt: Attempt) -> None:
            before, rows = snapshot.version(), event_store.events_to_rows(events)
            properties = attempt.with_transactions([event_store.next_transaction(snapshot)])
            write_deltalake(snapshot, rows, mode="append", writer_properties=WRITER, commit_properties=properties)
            sync_table(self._root, snapshot)
            # The snapshot may already contain commits of others.
            alone = snapshot.version() == before + 1
            kept = self._heads if self._seen == before else {}
            self._heads, self._seen = ({**kept, **find_heads(events)}, before + 1) if alone else ({}, None)

        return append


class SyncedWriter(DeltaRsTableWriter):
    """Makes each commit durable before the next one. An emitted event must stay, and so must every commit
    before it."""

    def __init__(self, root: Folder) -> None:
        self._root = root

    def commit_nothing(self, snapshot: DeltaTable, attempt: Attempt) -> None:
        super().commit_nothing(snapshot, attempt)
        sync_table(self._root, snapshot)

    def compact(self, table: DeltaTable) -> None:
        before = table.version()
        super().compact(table)
        if table.version() != before:
            sync_table(self._root, table)


def sync_table(root: Folder, table: DeltaTable) -> None:
    """Returns when the commit of `table` is on the disk. An object store does this by itself."""
    if isinstance(root, LocalFolder):
        sync_commit(root, table.version())
