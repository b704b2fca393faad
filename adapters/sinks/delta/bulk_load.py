"""The bulk load: the first rows of a table, in slices and one commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from replicator.domain.errors import DataLoss
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, find_highest, merge_facts
from replicator.ports.frames import FoldedChanges, Lane, RejectRows, Write

from ...apply.lane_progress import advance_state
from ...delta.commits import WRITER, Attempt, Operation
from ...delta.merge import Merge, can_insert_as_is, is_empty, stored_rows
from ...delta.tables import FILE_BYTES, read_schema
from .staged_write import StagedWrite

ROWS = "rows.arrow"
AT_ONCE = 2
"""Slices that are staged in parallel. DuckDB and Arrow use one thread for each."""
Part = TypeVar("Part")
Result = TypeVar("Result")
WRITTEN = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def can_bulk_load(plan: ApplyPlan) -> bool:
    """True when rows of the plan are inserted unchanged, keys are independent of each other, and the order of
    slices does not matter."""
    return bool(plan.merge_keys) and can_insert_as_is(plan) and not plan.has_column_versions and plan.watermark is None


@dataclass(frozen=True)
class BulkLoad:
    """The bulk load of a lane without rows. `parts` are staged one after the other; their rows are in `folder`
    until the commit."""

    stages: Any
    parts: Iterable[FoldedChanges[Any]]
    folder: Path

    def stage_parts(self, snapshot: DeltaTable, write: Write[Any], reject: RejectRows[Any]) -> StagedWrite:
        """See `sinks.delta.lane.WriteStages.stage`, for all slices. Rejects are durable on return.

        Raises DataLoss when the table has rows.
        """
        if not is_empty(snapshot):
            raise _not_empty_error(write.lane)
        nothing, schema, facts = LaneState(), read_schema(snapshot), []
        counts, max_side_table_sequence = Counts(), None
        with pa.OSFile(str(self.folder / ROWS), "wb") as file, pa.ipc.new_file(file, schema, options=WRITTEN) as rows:
            stage = partial(self._stage_part, snapshot, write)
            for part, staged in stage_in_parallel(stage, self.parts):
                if staged.counts.rejected:
                    reject(write.lane, staged.rejects)
                if isinstance(staged.write, Merge):
                    rows.write_table(stored_rows(staged.write.inserted_rows, schema))
                facts.append(part.facts)
                counts += staged.counts
                max_side_table_sequence = find_highest(max_side_table_sequence, staged.state.max_side_table_sequence)
        state = advance_state(write.plan, nothing, merge_facts(facts), max_side_table_sequence, write.at)
        return StagedWrite(self._insert_operation(), state, counts, None)

    def _stage_part(self, snapshot: DeltaTable, write: Write[Any], part: FoldedChanges[Any]) -> StagedWrite:
        staged: StagedWrite = self.stages.stage(snapshot, LaneState(), replace(write, folded=part))
        return staged

    def _insert_operation(self) -> Operation:
        def append(snapshot: DeltaTable, attempt: Attempt) -> None:
            with pa.memory_map(str(self.folder / ROWS)) as file:
                rows = pa.ipc.open_file(file)
                reader = pa.RecordBatchReader.from_batches(rows.schema, _read_batches(rows))
                write_deltalake(
                    snapshot,
                    reader,
                    mode="append",
                    target_file_size=FILE_BYTES,
                    writer_properties=WRITER,
                    commit_properties=attempt.properties,
                )

        return append


def stage_in_parallel(stage: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[tuple[Part, Result]]:
    """`stage` of every slice, in their order, with up to `AT_ONCE` at a time."""
    coming: deque[tuple[Part, Future[Result]]] = deque()
    with ThreadPoolExecutor(AT_ONCE, "stage") as pool:
        for part in parts:
            coming.append((part, pool.submit(stage, part)))
            if len(coming) > AT_ONCE:
                done, result = coming.popleft()
                yield done, result.result()
        while coming:
            done, result = coming.popleft()
            yield done, result.result()


def _read_batches(rows: pa.ipc.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    yield from (rows.get_batch(number) for number in range(rows.num_record_batches))


def _not_empty_error(lane: Lane) -> DataLoss:
    return DataLoss(
        f"the target of lane {lane.id} is not empty, so a bulk load is not possible",
        next_step=f"Start from scratch: `replicator drop {lane.id}`, then repeat the command.",
    )
