"""One lane of a lake: its lock, its table and its commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import DataLoss, Retryable
from replicator.domain.plan import ApplyPlan, Counts, LaneState
from replicator.domain.position import Span
from replicator.domain.remedies import reload_or_skip
from replicator.domain.retention import forgetting
from replicator.ports.frames import Lane, LaneApplied, RejectRows, Write
from replicator.ports.sink import Erased

from .commits import LaneLog, LostRace, Operation, append_nothing
from .erasing import count, key_row
from .errors import FileGone, translating
from .folders import Folder
from .layout import Lake
from .loading import Load, loadable
from .merge import has_no_rows, remove_key
from .positions import Positions
from .protocol import refuse_newer
from .staged import Staged
from .tables import exists, opened, schema_of
from .upkeep import Upkeep
from .versions import end_versions, held_by_versions

ATTEMPTS = 8
"""How often a write is redone because others commit to its table; then it is left to the caller to try again."""

Shelf = dict[Folder, DeltaTable]
"""The snapshots that this process's own commits left, by table; lanes that share a table share them."""


class Stages(Protocol):
    """Stages 2 to 4 up to the commit, for one kind of target and frame."""

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[Any]) -> Staged:
        """Read what is needed from `snapshot` and say what to commit on it."""

    def cleared(self, state: LaneState | None, /) -> Operation | None:
        """Removes the rows of a lane that stands at `state`; None when it has none."""

    def cleared_blindly(self, lane: Lane, why: DataLoss, /) -> Operation:
        """Removes the rows of a lane whose state cannot be read; Fatal where its rows cannot be told without."""


def lane_log(lake: Lake, path: Folder, lane: Lane, nothing: Operation = append_nothing) -> LaneLog:
    """The transactions of `lane` in the table at `path`; `nothing` commits no rows."""
    positions = Positions(lake.positions(lane.pipeline, lane.id), lane.id)
    return LaneLog(path, lane.pipeline, lane.id, positions, nothing)


class DeltaLane:
    """Writes one lane; holds it from construction to `close`. Raises `Fenced` when another instance holds it."""

    def __init__(self, lake: Lake, path: Folder, lane: Lane, stages: Stages, shelf: Shelf, *, upkeep: Upkeep) -> None:
        self.lane = lane
        self._writer = upkeep.writer
        with translating(lane.into):
            self._hold = lake.hold(lane)
        self._log = lane_log(lake, path, lane, self._writer.commit_nothing)
        self._stages = stages
        self._upkeep = upkeep
        self._path = path
        self._shelf = shelf

    def apply(self, write: Write[pa.Table], reject: RejectRows[pa.Table]) -> LaneApplied:
        """See `ports.sink.Sink.apply`. When others committed meanwhile, stages 2 to 4 are redone on what is there now."""
        with translating(self.lane.into):
            for _ in range(ATTEMPTS):
                snapshot = self._current()
                try:
                    before = self._log.version(snapshot)
                    with translating(self.lane.into):
                        outcome = self._attempt(snapshot, write, reject)
                except LostRace:
                    continue
                except FileGone:
                    # Somebody else may have rewritten the files and removed them.
                    if not self._log.is_behind(snapshot):
                        raise
                    continue
                if (commits := self._log.version(snapshot)) > before:
                    self._upkeep.after_commit(snapshot, commits)
                self._shelf[self._path] = snapshot
                return outcome
        raise Retryable(f"other writers keep committing to table {self.lane.into}")

    def load(self, write: Write[Any], load: Load, reject: RejectRows[Any]) -> LaneApplied:
        """See `ports.laying.Loads.load`."""
        with translating(self.lane.into):
            for _ in range(ATTEMPTS):
                snapshot = self.newest()
                staged = load.staged(snapshot, write, reject)
                identity = tuple(sorted(write.identity.items()))
                after = replace(staged.state, position=write.span.end, identity=identity, rule=write.plan.rule)
                try:
                    self._commit(snapshot, after, write.span, staged.write)
                except LostRace:
                    continue
                self._shelf[self._path] = snapshot
                return LaneApplied(after.position, staged.counts, after.forgotten)
        raise Retryable(f"other writers keep committing to table {self.lane.into}")

    def can_load(self, plan: ApplyPlan) -> bool:
        """See `ports.laying.Loads.loads`."""
        return loadable(plan) and self.state() is None and has_no_rows(self.newest())

    def record(self, state: LaneState | None, write: Operation | None = None) -> None:
        """Commit `write` (nothing by default) with `state` as the lane's state, whatever it was."""
        with translating(self.lane.into):
            for _ in range(ATTEMPTS):
                try:
                    self._commit(self.newest(), state, None, write)
                except LostRace:
                    continue
                self.forget_snapshot()
                return
        raise Retryable(f"other writers keep committing to table {self.lane.into}")

    def clear(self) -> None:
        """Remove the lane's rows and its state, in one commit that leaves a mark in its place: also a state that cannot
        be read, since this is how the operator repairs it."""
        with translating(self.lane.into):
            snapshot = self.newest()
            try:
                write = self._stages.cleared(self._log.state(snapshot))
            except DataLoss as lost:
                write = self._stages.cleared_blindly(self.lane, lost)
        self.record(None, write)

    def state(self) -> LaneState | None:
        """Where the lane stands."""
        with translating(self.lane.into):
            return self._log.state(self.newest())

    def erase(self, key: Mapping[str, str], beside: Folder) -> Erased:
        """See `ports.sink.Erases.erase`. First what is beside the table: what is done again then finds the rows."""
        with translating(self.lane.into):
            state, freed, versions = self.state(), 0, []
            if exists(beside):
                other = opened(beside)
                if state is not None and state.beside not in (None, other.version()):
                    other.restore(state.beside)  # What came after it is of an attempt that died.
                row = key_row(self.lane, self.lane.into, schema_of(other), key)
                freed = count(other, row) if row is not None else 0
                if row is not None and freed:
                    remove_key(row)(other, None)
                if state is not None and state.beside is not None:
                    state = replace(state, beside=other.version())
                versions.append(held_by_versions(beside, other))
            snapshot = self.newest()
            row = key_row(self.lane, self.lane.into, schema_of(snapshot), key)
            rows = count(snapshot, row) if row is not None else 0
            versions.append(held_by_versions(self._path, snapshot))
        if row is not None and (rows or freed):
            self.record(state, self._writer.remove_key(row))
        return Erased(rows, freed, "; ".join(versions))

    def end_beside(self, beside: Folder) -> str:
        """End the older versions of what is kept beside the table, but for the one that belongs to its rows: as
        `versions.end_versions`."""
        with translating(self.lane.into):
            table, state = opened(beside), self.state()
            if state is None or state.beside is None:
                return end_versions(beside, table)
            if state.beside != table.version():
                table.restore(state.beside)  # What came after it is of an attempt that died.
            return end_versions(beside, table, lambda: self.record(replace(state, beside=table.version())))

    def newest(self) -> DeltaTable:
        """The newest snapshot of the lane's table; Fatal when we cannot write to it, Fenced when another instance has."""
        snapshot = self._log.open()
        refuse_newer(snapshot, self.lane.into, self._writer.features)
        self._hold.expect(self._log.version(snapshot))
        return snapshot

    def set_properties(self, wanted: Mapping[str, str]) -> None:
        """Give the table the properties of these that it has not."""
        table = self.newest()
        there = table.metadata().configuration
        missing = {name: value for name, value in wanted.items() if value is not None and there.get(name) != value}
        if missing:
            self._writer.set_properties(table, missing)
            self.forget_snapshot()

    def forget_snapshot(self) -> None:
        """Read the table anew next time: its schema has changed."""
        self._shelf.pop(self._path, None)

    def close(self) -> None:
        """Let others have the lane; may be called twice."""
        self._hold.release()

    def _current(self) -> DeltaTable:
        """The snapshot that the last commit left, or the newest one. It leaves the shelf: after a failure it is void."""
        kept = self._shelf.pop(self._path, None)
        if kept is None:
            return self.newest()
        # A lane that shares the table left it, and may have seen there what another instance wrote.
        self._hold.expect(self._log.version(kept))
        return kept

    def _attempt(self, snapshot: DeltaTable, write: Write[pa.Table], reject: RejectRows[pa.Table]) -> LaneApplied:
        state = self._log.state(snapshot) or LaneState()
        _refuse_gaps(self.lane, write.span, state)
        if not write.beside and not write.span.after(state.position).end:
            return LaneApplied(state.position, Counts(duplicate=write.folded.rows), state.forgotten)
        state = self._forgetting(snapshot, state, write)
        staged = self._stages.stage(snapshot, state, write)
        if staged.counts.rejected:
            # A row that the newest snapshot would complete must not be rejected for want of it.
            if self._log.is_behind(snapshot):
                raise LostRace
            reject(self.lane, staged.rejects)
        position = state.position.advanced_to(write.span.end)
        identity = tuple(sorted({**dict(state.identity), **write.identity}.items()))
        after = replace(staged.state, position=position, identity=identity, rule=write.plan.rule)
        self._commit(snapshot, after, write.span, staged.write)
        return LaneApplied(position, staged.counts, after.forgotten)

    def _forgetting(self, snapshot: DeltaTable, state: LaneState, write: Write[Any]) -> LaneState:
        """The state that the write is judged under. What it forgets more than before is committed first, by itself: only
        then may it be removed, and that has to be before the write remembers deletes of its own. Marked rows go with that
        commit."""
        after = forgetting(write.plan, state, write.at)
        if after == state:
            return state
        after = replace(after, owed=True)
        rows = write.plan.soft_deletes and after.forgotten
        self._commit(snapshot, after, None, self._writer.remove_forgotten(write.plan, rows) if rows else None)
        return after

    def _commit(self, snapshot: DeltaTable, state: LaneState | None, span: Span | None, write: Operation | None) -> None:
        try:
            number = self._log.commit(snapshot, state, span, write)
        except Exception:
            if self._log.announced is not None:
                # The answer may be all that was lost.
                self._hold.doubt(self._log.announced)
            raise
        self._hold.committed(number)
        self._log.prune(number)


def _refuse_gaps(lane: Lane, span: Span, state: LaneState) -> None:
    gaps = span.gaps(state.position)
    if gaps:
        first = gaps[0]
        raise DataLoss(
            f"lane {lane.id} stands at {first} offset {state.position[first]}, but the batch starts at {span.start[first]}",
            next_step=reload_or_skip(lane.id, f"{first.topic}:{first.partition}:{span.start[first]}"),
        )
