"""Stages 2 to 4 on Spark for tables with a sequence for each column, with frames on the executors.

Spark shuffles changes, target rows and column versions by key. Each task then decides the keys of its
partition, as `apply.per_column_in_process` does for all keys. Truncates affect every key. They are few, so each
task gets all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from replicator.domain.change import OP, UNCHANGED, Op
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, cdc_sequence_columns
from replicator.domain.sequence import Sequence
from replicator.ports.frames import Write

from ....apply.column_versions import COLUMN_VERSIONS
from ....apply.per_column_in_process import KeyState, add_key_rows, decide_columns, read_key_states
from ....delta.partitions import Partitions
from ....delta.tables import read_schema
from ....spark.frames import cache_frame, column, filter_rows, keep_parents, map_partitions
from .scd2 import SparkDecision
from .side_tables import SparkColumnVersions

KIND, ARRIVAL = "_cdc_kind", "_cdc_place"
CHANGE, RELATED, STORED = "change", "related", "kept"
"""Kinds of input rows of a task: changes with their number in arrival order, target rows, and column versions."""
WRITE, KEEP, COUNTS = "write", "keep", "counts"
"""Kinds of output rows of a task: rows to write, column versions to store, and the counts of its changes."""
PIECE = 10_000

ReadCandidates = Callable[[DeltaTable, Partitions], DataFrame]


@dataclass(frozen=True)
class PerColumnTask:
    """The parameters of every task; can be pickled.

    - `truncates`: rows with their numbers in arrival order.
    - `alone`: the counts of the truncates.
    - `clears`: there is a truncate, so keys outside the batch count, too.
    """

    plan: ApplyPlan
    truncated_at: Sequence | None
    truncates: pa.Table
    alone: Counts
    clears: bool

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decides all rows of some keys. No other task has rows of these keys."""
        pieces = list(batches)
        if not pieces:
            return
        inputs = pa.Table.from_batches(pieces)
        schema = pa.schema([pa.field(f.name, f.type) for f in inputs.schema])
        keys, sequence = list(self.plan.table.keys), cdc_sequence_columns(self.plan.table.sequence)
        changes, related, column_versions = (
            inputs.filter(pc.equal(inputs[KIND], kind)) for kind in (CHANGE, RELATED, STORED)
        )
        changes = pa.concat_tables([changes.cast(schema), _widen_rows(self.truncates, CHANGE, schema)])
        rows = changes.take(pc.sort_indices(changes[ARRIVAL])).drop_columns([KIND, ARRIVAL, COLUMN_VERSIONS])
        rows = add_key_rows(rows, column_versions.select(keys)) if self.clears else rows
        related, column_versions = related.select([*keys, *sequence]), column_versions.select([*keys, COLUMN_VERSIONS])

        def read_states(first: pa.Table) -> list[KeyState]:
            return read_key_states(self.plan, first, related, column_versions)

        decision = decide_columns(self.plan, rows, self.truncated_at, read_states)
        keep = decision.side_rows
        counts = [a - b for a, b in zip(decision.counts.as_tuple(), self.alone.as_tuple(), strict=True)]
        totals = pa.table({COLUMN_VERSIONS: [json.dumps([*counts, decision.write.num_rows, keep.num_rows])]})
        for output, kind in ((decision.write, WRITE), (keep, KEEP), (totals, COUNTS)):
            if output.num_rows:
                yield from _widen_rows(output, kind, schema).combine_chunks().to_batches(max_chunksize=PIECE)


def _widen_rows(rows: pa.Table, kind: str, schema: pa.Schema) -> pa.Table:
    """`rows` as rows of that kind. Missing columns are null."""
    count = rows.num_rows
    values = {name: rows[name] for name in rows.column_names} | {KIND: pa.repeat(pa.scalar(kind), count)}
    columns = [values[f.name].cast(f.type) if f.name in values else pa.nulls(count, f.type) for f in schema]
    return pa.table(columns, schema=schema)


class SparkPerColumn:
    """Stage 3 of lanes with a sequence for each column. `read`: the rows of a snapshot in these partitions."""

    def __init__(self, column_versions: SparkColumnVersions, read: ReadCandidates) -> None:
        self._column_versions = column_versions
        self._read = read

    def decide(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame, partitions: Partitions
    ) -> SparkDecision:
        """Stage 3 of a rows frame with its truncates. Its rows fit the table and match only rows of `partitions`.

        The side table is written on return.
        """
        plan, facts = write.plan, write.folded.facts
        table = self._column_versions.open_table(write.lane, plan, state.side_table_version, read_schema(snapshot))
        names = [OP, *(c.name for c in plan.target), UNCHANGED]
        # Numbers in arrival order, which is the physical order of the rows.
        numbered = rows.select(sf.monotonically_increasing_id().alias(ARRIVAL), *(column(n) for n in names))
        changes = cache_frame(keep_parents(numbered, rows))
        task = PerColumnTask(plan, state.truncated_at, pa.table({}), Counts(), clears=False)
        if facts.truncated_at is not None:
            is_truncate = column(OP) == Op.TRUNCATE.value
            truncates = changes.filter(is_truncate).toArrow()
            truncates = truncates.take(pc.sort_indices(truncates[ARRIVAL]))
            alone = decide_columns(plan, truncates.drop_columns([ARRIVAL]), state.truncated_at, lambda _: []).counts
            task = PerColumnTask(plan, state.truncated_at, truncates, alone, clears=True)
            changes = filter_rows(changes, ~is_truncate)
        related, texts = self._read(snapshot, partitions), self._column_versions.read_rows(table)
        outputs = cache_frame(_decide_by_key(changes, related, texts, task))
        numbers = [json.loads(row[0]) for row in outputs.filter(column(KIND) == COUNTS).select(COLUMN_VERSIONS).collect()]
        *counts, written_count, keep = (sum(each) for each in zip([0] * 8, *numbers, strict=True))
        version = table.version()
        if keep:
            texts = outputs.filter(column(KIND) == KEEP).select([column(n) for n in (*plan.table.keys, COLUMN_VERSIONS)])
            version = self._column_versions.store(table, texts, keep, write.lane)
        written_rows = keep_parents(outputs.filter(column(KIND) == WRITE).select([column(n) for n in names]), outputs)
        all_counts = Counts(*counts) + task.alone
        return SparkDecision(written_rows, written_count > 0, all_counts, version=version, partitions=partitions)


def _decide_by_key(changes: DataFrame, target: DataFrame, column_versions: DataFrame, task: PerColumnTask) -> DataFrame:
    """The output of the tasks. All rows of a key are in one task."""
    plan = task.plan
    keys, names = [column(k) for k in plan.table.keys], list(plan.table.keys)
    wanted = changes.select(keys)
    if task.clears:
        wanted = wanted.unionAll(column_versions.select(keys))
    target_columns = [*keys, *(column(n) for n in cdc_sequence_columns(plan.table.sequence))]
    parts = {
        CHANGE: changes,
        RELATED: target.select(target_columns).join(wanted, names, "left_semi"),
        STORED: column_versions if task.clears else column_versions.join(wanted, names, "left_semi"),
    }
    plain = [StructField(f.name, f.dataType) for f in changes.schema if f.name != ARRIVAL]
    schema = StructType([StructField(KIND, StringType()), StructField(ARRIVAL, LongType()), *plain])
    schema.add(COLUMN_VERSIONS, StringType())
    frames = []
    for kind, frame in parts.items():
        values = {name: column(name) for name in frame.columns} | {KIND: sf.lit(kind)}
        frames.append(frame.select([values.get(f.name, sf.lit(None)).cast(f.dataType).alias(f.name) for f in schema]))
    together = reduce(DataFrame.unionAll, frames).repartition(*keys)
    return keep_parents(map_partitions(together, task.run, schema), changes, target)
