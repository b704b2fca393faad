"""Bulk load: writes the first rows of a new target in one commit, from spill files.

Merging batch after batch would rewrite the target each time, and compare each batch with all of it in memory.
If new rows are only needed at the end of the stream, and the target is empty, rows go to files instead. The files
are partitioned by key hash. A partition contains all changes of its keys, so it is folded by itself, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, cast
from urllib.parse import quote

import pyarrow as pa

from replicator.application.problem import ensure_accounting
from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.policy.plan import Counts, Facts, LaneState, merge_facts
from replicator.domain.position import Position
from replicator.ports.bulk_load import BulkLoads, PartitionsByKey
from replicator.ports.engine import Engine
from replicator.ports.frames import F, FoldedChanges, Lane, LaneOutcome, RejectRows
from replicator.ports.sink import Sink

from .batch_records import RecordFrame, RecordFrames
from .bounded_queue import WriteRequest, can_join_pair
from .spill_files import SPILL_PARTITIONS, SpillFiles, SpillSlice

LOAD_BYTES = 16 << 20
"""Bytes of rows that are folded at once, in whole partitions."""
MIN_FOLD_BYTES = 1 << 20
"""Smallest mean size, in bytes, of partitions that are folded one by one."""
SPILL_BYTES = 64 << 20
"""Bytes in the queue before its writes are spilled: more would not be faster."""


def make_bulk_loader(folder: Path | None, sink: Sink[Any], engine: Engine[Any]) -> BulkLoader[Any] | None:
    """The bulk loader of a sink, with its files in `folder`; None without a folder, or if sink or engine do not
    support it."""
    bulk_load = sink.features.bulk_load
    if folder is None or bulk_load is None or not isinstance(engine, PartitionsByKey):
        return None
    return BulkLoader(folder, sink, bulk_load, engine)


class BulkLoader(Generic[F]):
    """The bulk loads of one sink. Only the thread of its worker uses it.

    Spill files outlive the program, and the next run continues with them: `get_state` returns the position they
    reach. OSErrors are raised as EnvironmentProblem.
    """

    def __init__(self, folder: Path, sink: Sink[F], bulk_load: BulkLoads[F], engine: Any) -> None:
        self._folder = folder
        self._sink = sink
        self._bulk_load = bulk_load
        self._engine = engine
        self._spill_files: dict[str, SpillFiles] = {}
        self.ended = False
        """True once a write could not be spilled: from then on writes are merged."""
        self._last: dict[str, WriteRequest[F]] = {}

    def get_state(self, lane: Lane) -> LaneState | None:
        """The state of the lane, its spilled rows included. The first call reads the files of an earlier run."""
        state = self._sink.state(lane)
        spill_files = self._open_spill(lane)
        if state is not None:
            _wrap_os_errors(spill_files.remove)  # An earlier run loaded it and ended before it removed the files.
        if state is not None or not spill_files.slices:
            return state
        return LaneState(spill_files.span.end, identity=tuple(sorted(spill_files.identity.items())), rule=spill_files.rule)

    def has_spilled(self, lane: Lane) -> bool:
        """True if the lane has spilled rows."""
        return lane.id in self._last

    def list_placeholder_writes(self) -> tuple[WriteRequest[F], ...]:
        """For each lane with spilled rows, a write without rows that represents all of them."""
        return tuple(self._last.values())

    def is_placeholder(self, item: WriteRequest[F]) -> bool:
        """True if the write is one of `list_placeholder_writes`."""
        return self._last.get(item.run.lane.id) is item

    def is_other_plan(self, item: WriteRequest[F]) -> bool:
        """True if the lane has spilled rows of a plan other than the write's.

        The target is not prepared for the latter yet.
        """
        last = self._last.get(item.run.lane.id)
        return last is not None and last.write.plan != item.write.plan

    def spill_write(self, item: WriteRequest[F]) -> Position | None:
        """Spill a write of a prepared lane. Returns the position of the lane after it.

        None if the write cannot be spilled: it affects others, or the target has rows already. Fatal if the
        files of an earlier run were written under another plan.
        """
        write, spill_files = item.write, self._open_spill(item.run.lane)
        at = spill_files.span.end
        if spill_files.slices and not write.out_of_band and not write.span.after(at):
            return at
        if spill_files.slices and not self.has_spilled(item.run.lane):
            self._resume_spill(item, spill_files)
        if not self._can_spill(item, spill_files):
            self.ended = True
            return None
        keys, facts = write.plan.table.keys, write.folded.facts
        number = spill_files.slices[-1].number + 1 if spill_files.slices else 0
        flags = (facts.has_unchanged, facts.has_deletes)
        piece = SpillSlice(number, write.span, write.folded.rows, write.folded.counts, (), (), *flags)
        spill_files.rule = write.plan.rule
        spill_files.identity.update(write.identity)
        parts = self._engine.partition_rows(write.folded.frame, keys, SPILL_PARTITIONS)
        _wrap_os_errors(lambda: spill_files.add_slice(piece, parts, item.raw))
        self._last[item.run.lane.id] = self._make_placeholder_write(item, spill_files)
        return spill_files.span.end

    def load_target(self, lane: Lane, reject: RejectRows[F]) -> LaneOutcome:
        """Write the spilled rows into the lane's target, in one commit. The outcome counts all changes behind them.

        Errors as of `Sink.apply`. The spill files are kept then.
        """
        item, spill_files = self._last[lane.id], self._open_spill(lane)
        state = self._sink.state(lane)
        if state is not None:  # A failed attempt had committed.
            applied = LaneOutcome(state.position, spill_files.counts + Counts(applied=spill_files.rows), state.purged_up_to)
            return self._finish_load(lane, applied)
        parts, folder = _FoldedPartitions(spill_files, item, self._engine), spill_files.folder / "load"
        shutil.rmtree(folder, ignore_errors=True)
        _wrap_os_errors(lambda: folder.mkdir(parents=True))
        applied = self._bulk_load.load(item.write, parts, reject, folder)
        total = parts.counts.total + applied.counts.total
        ensure_accounting(
            total == spill_files.rows,
            f"Lane {lane.id} has spilled {format_count(spill_files.rows, 'row')}, but accounts for {total}.",
        )
        return self._finish_load(lane, replace(applied, counts=spill_files.counts + parts.counts + applied.counts))

    def _finish_load(self, lane: Lane, applied: LaneOutcome) -> LaneOutcome:
        del self._last[lane.id]
        _wrap_os_errors(self._open_spill(lane).remove)
        return applied

    def read_records(self, lane: Lane) -> RecordFrames[F]:
        """The records behind the spilled rows."""
        return RecordFrames(tuple(cast("Iterator[RecordFrame[F]]", self._open_spill(lane).read_records())))

    def _open_spill(self, lane: Lane) -> SpillFiles:
        if lane.id not in self._spill_files:
            folder = self._folder / quote(lane.id, safe="")
            self._spill_files[lane.id] = _wrap_os_errors(lambda: SpillFiles.open_folder(folder, self._engine.partitioner))
        return self._spill_files[lane.id]

    def _can_spill(self, item: WriteRequest[F], spill_files: SpillFiles) -> bool:
        write, facts = item.write, item.write.folded.facts
        alone = write.out_of_band or write.complete is not None or item.bundle
        if alone or facts.has_key_changes or facts.truncated_at is not None or facts.truncates:
            return False
        if spill_files.slices:
            return can_join_pair(self._last[item.run.lane.id], item)
        return self._bulk_load.loads(item.run.lane, write.plan)

    def _resume_spill(self, item: WriteRequest[F], spill_files: SpillFiles) -> None:
        """Continue the files of an earlier run, no matter if the first write after them can be spilled."""
        if (spill_files.rule, spill_files.read_schema()) != (item.write.plan.rule, _get_frame(item).schema):
            raise _make_orphan_error(item.run.lane.id, "were written under another configuration")
        self._last[item.run.lane.id] = self._make_placeholder_write(item, spill_files)

    def find_orphans(self) -> Mapping[str, Fatal]:
        """By lane, the error for spill files of an earlier run that no write continued, so that their plan is
        unknown."""
        left = [lane for lane, spill_files in self._spill_files.items() if spill_files.slices and lane not in self._last]
        return {lane: _make_orphan_error(lane, "are followed by no record that can be applied") for lane in left}

    def _make_placeholder_write(self, item: WriteRequest[F], spill_files: SpillFiles) -> WriteRequest[F]:
        """One write without rows that represents all spilled rows."""
        facts = Facts(
            has_unchanged=any(p.unsent for p in spill_files.slices), has_deletes=any(p.deletes for p in spill_files.slices)
        )
        nothing = FoldedChanges(_get_frame(item).slice(0, 0), facts, Counts(), 0, 0)
        write = replace(
            item.write, folded=cast("FoldedChanges[F]", nothing), span=spill_files.span, identity=dict(spill_files.identity)
        )
        return replace(item, write=write, raw=(), size=0)


class _FoldedPartitions(Generic[F]):
    """The folded partitions of spilled rows. `counts`: the counts of the folds, complete after each iteration."""

    def __init__(self, spill_files: SpillFiles, item: WriteRequest[F], engine: Any) -> None:
        self._spill_files = spill_files
        self._engine = engine
        self._plan = item.write.plan
        self.counts = Counts()

    def __iter__(self) -> Iterator[FoldedChanges[F]]:
        self.counts = Counts()
        for parts in self._group_partitions():
            folded = self._fold_partitions(parts)
            self.counts += folded.counts
            yield folded

    def _fold_partitions(self, parts: Sequence[pa.Table]) -> FoldedChanges[F]:
        """Fold partitions, which share no key.

        A partition is in log order if the topic has one partition, which saves the fold most of its work. Small
        partitions are joined first: the saving is too small for them.
        """
        if len(parts) > 1 and sum(part.nbytes for part in parts) < MIN_FOLD_BYTES * len(parts):
            parts = [pa.concat_tables(parts)]
        folded: list[FoldedChanges[F]] = [self._engine.fold(part, self._plan) for part in parts]
        frame = self._engine.concat([one.frame for one in folded])
        counts = sum((one.counts for one in folded), Counts())
        rows, size = sum(one.rows for one in folded), sum(one.size for one in folded)
        return FoldedChanges(frame, merge_facts(one.facts for one in folded), counts, rows, size)

    def _group_partitions(self) -> Iterator[list[pa.Table]]:
        """Whole partitions, in groups of limited size."""
        found: list[pa.Table] = []
        for number in range(SPILL_PARTITIONS):
            batches = self._spill_files.read_partition(number)
            found += [pa.Table.from_batches(batches)] if batches else []
            if sum(part.nbytes for part in found) >= LOAD_BYTES:
                yield found
                found = []
        if found:
            yield found


def _make_orphan_error(lane: str, why: str) -> Fatal:
    step = f"Start from scratch: `replicator drop {lane}`, then repeat the command."
    return Fatal(f"the spill files of lane {lane} {why}", next_step=step)


def _get_frame(item: WriteRequest[Any]) -> pa.Table:
    return item.write.folded.frame


def _wrap_os_errors(act: Any) -> Any:
    try:
        return act()
    except OSError as error:
        raise EnvironmentProblem(
            f"the spill files of a new target cannot be written or read ({error.strerror or error})",
            next_step="Free disk space in the `state` folder of the config, and repeat the command: it resumes.",
        ) from error
