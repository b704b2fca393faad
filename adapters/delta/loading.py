"""The first rows of a table, in parts and in one commit."""

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
from replicator.domain.plan import ApplyPlan, Counts, LaneState, highest, united_facts
from replicator.ports.frames import Folded, Lane, RejectRows, Write

from .commits import WRITER, Attempt, Operation
from .merge import Merge, has_no_rows, stored_rows, takes_rows_as_they_are
from .staged import Staged, moved_on
from .tables import FILE_BYTES, schema_of

ROWS = "rows.arrow"
AT_ONCE = 2
"""Parts that are staged side by side: DuckDB and Arrow use one thread for each."""
Part = TypeVar("Part")
Result = TypeVar("Result")
WRITTEN = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


def loadable(plan: ApplyPlan) -> bool:
    """Whether rows of the plan are written as they are, each key by itself, and judged in whatever order parts come."""
    return bool(plan.merge_keys) and takes_rows_as_they_are(plan) and not plan.by_column and plan.watermark is None


@dataclass(frozen=True)
class Load:
    """What a lane without rows is about to write: `parts` staged one after the other, and what is left of them, kept in
    `folder` until its commit."""

    stages: Any
    parts: Iterable[Folded[Any]]
    folder: Path

    def staged(self, snapshot: DeltaTable, write: Write[Any], reject: RejectRows[Any]) -> Staged:
        """See `lane.Stages.stage`, of all parts. Rejects are durable on return. DataLoss where the table has rows."""
        if not has_no_rows(snapshot):
            raise _not_empty(write.lane)
        nothing, schema, facts = LaneState(), schema_of(snapshot), []
        counts, remembered = Counts(), None
        with pa.OSFile(str(self.folder / ROWS), "wb") as file, pa.ipc.new_file(file, schema, options=WRITTEN) as rows:
            stage = partial(self._stage, snapshot, write)
            for part, staged in side_by_side(stage, self.parts):
                if staged.counts.rejected:
                    reject(write.lane, staged.rejects)
                if isinstance(staged.write, Merge):
                    rows.write_table(stored_rows(staged.write.inserted, schema))
                facts.append(part.facts)
                counts += staged.counts
                remembered = highest(remembered, staged.state.ledger_high)
        state = moved_on(write.plan, nothing, united_facts(facts), remembered, write.at)
        return Staged(self._operation(), state, counts, None)

    def _stage(self, snapshot: DeltaTable, write: Write[Any], part: Folded[Any]) -> Staged:
        staged: Staged = self.stages.stage(snapshot, LaneState(), replace(write, folded=part))
        return staged

    def _operation(self) -> Operation:
        def append(snapshot: DeltaTable, attempt: Attempt) -> None:
            with pa.memory_map(str(self.folder / ROWS)) as file:
                rows = pa.ipc.open_file(file)
                reader = pa.RecordBatchReader.from_batches(rows.schema, _batches(rows))
                write_deltalake(
                    snapshot,
                    reader,
                    mode="append",
                    target_file_size=FILE_BYTES,
                    writer_properties=WRITER,
                    commit_properties=attempt.properties,
                )

        return append


def side_by_side(stage: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[tuple[Part, Result]]:
    """`stage` of every part, in their order, up to `AT_ONCE` of them at a time."""
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


def _batches(rows: pa.ipc.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    yield from (rows.get_batch(number) for number in range(rows.num_record_batches))


def _not_empty(lane: Lane) -> DataLoss:
    return DataLoss(
        f"the target of lane {lane.id} is not empty, so it cannot be loaded in parts",
        next_step=f"Begin anew: `replicator drop {lane.id}`, then repeat the command.",
    )
