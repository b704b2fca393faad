"""Finds deletes that belong to another row than the current row of their key, in frames on the executors.

See `arrow.key_change` and `apply.reconcile_in_process`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from replicator.domain.change import ERROR, KEY_CHANGE_DELETE, OP, UNCHANGED, Op
from replicator.domain.errors import AMBIGUOUS_DELETE
from replicator.domain.policy.plan import ApplyPlan, Facts

from ..arrow.key_change import RowOwner, can_have_foreign_deletes, find_owners, list_owner_columns, needs_target_row
from ..sql.dialect import SPARK
from ..sql.fold import ARRIVAL, BELOW, KEPT, OUTCOME
from ..sql.reconcile import other_row_condition
from .frames import cache_frame, column, keep_parents, map_partitions, quote_name

OTHERS = "_others"
"""True for a change of another row."""


@dataclass(frozen=True)
class ForeignDeleteTask:
    """The parameters of every task; can be pickled."""

    plan: ApplyPlan

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The numbers of the deletes of other rows, and of the deletes to compare with the target.

        The input has all changes of some keys. No other task has changes of these keys.
        """
        pieces = list(batches)
        if not pieces:
            return
        inputs = pa.Table.from_batches(pieces)
        changes = inputs.take(pc.sort_indices(inputs[ARRIVAL]))
        owners = find_owners(changes, self.plan)
        decisions = [
            (changes[ARRIVAL][i].as_py(), owner is RowOwner.OTHERS)
            for i, owner in owners.items()
            if owner is not RowOwner.ITS_OWN
        ]
        schema = pa.schema([(ARRIVAL, pa.int64()), (OTHERS, pa.bool_())])
        rows, others = [row for row, _ in decisions], [is_others for _, is_others in decisions]
        yield pa.record_batch([pa.array(rows, pa.int64()), pa.array(others, pa.bool_())], schema=schema)


def is_doubtful(names: Sequence[str]) -> Column:
    """See `arrow.key_change.is_doubtful`."""
    marks = [sf.when(column(n).isNotNull(), sf.lit(n)) for n in names]
    present_names = sf.array_compact(sf.array(*marks).cast("array<string>"))
    return sf.coalesce(column(KEY_CHANGE_DELETE) & sf.arrays_overlap(column(UNCHANGED), present_names), sf.lit(False))


def mark_foreign_deletes(marked: DataFrame, plan: ApplyPlan) -> DataFrame:
    """Numbered changes with `_outcome`: deletes of other rows are superseded.

    `_moved_to` is true only for deletes to compare with the target's row. One shuffle by key, of the columns
    that are read.
    """
    if not can_have_foreign_deletes(plan):
        return marked
    changes = marked.filter((column(OUTCOME) == KEPT) & (column(OP) != Op.TRUNCATE.value))
    owner_rows = changes.select([column(n) for n in (ARRIVAL, *list_owner_columns(plan))])
    keys = [column(key) for key in plan.table.keys]
    schema = StructType([StructField(ARRIVAL, LongType()), StructField(OTHERS, BooleanType())])
    decisions = map_partitions(owner_rows.repartition(*keys), ForeignDeleteTask(plan).run, schema)
    joined_changes = marked.join(decisions, ARRIVAL, "left")
    replacements = {
        KEY_CHANGE_DELETE: sf.when(~column(OTHERS), sf.lit(True)),
        OUTCOME: sf.when(column(OTHERS), sf.lit(BELOW)).otherwise(column(OUTCOME)),
    }
    columns = [replacements.get(n, column(n)).alias(n, metadata=marked.schema[n].metadata) for n in marked.columns]
    return keep_parents(joined_changes.select(columns), marked)


def drop_foreign_deletes(
    plan: ApplyPlan, facts: Facts, rows: DataFrame, related: DataFrame
) -> tuple[DataFrame, int, DataFrame | None]:
    """Returns the rows without deletes of other rows, the number of such deletes, and the ambiguous deletes as
    rejects."""
    if not (facts.has_key_changes and needs_target_row(plan)):
        return rows, 0, None
    remaining_rows, others = _split_rows(plan, rows, related, doubtful=False)
    if not facts.has_doubtful_deletes:
        return remaining_rows, others.count(), None
    certain_rows, ambiguous = _split_rows(plan, remaining_rows, related, doubtful=True)
    rejects = keep_parents(ambiguous.withColumn(ERROR, sf.lit(str(AMBIGUOUS_DELETE))), ambiguous)
    return certain_rows, others.count(), rejects


def _split_rows(plan: ApplyPlan, rows: DataFrame, related: DataFrame, *, doubtful: bool) -> tuple[DataFrame, DataFrame]:
    """The rows that are not such deletes, and the deletes."""
    key = f"t.{quote_name(plan.table.keys[0])}"
    marked = rows.alias("r").join(related.alias("t"), sf.expr(other_row_condition(plan, SPARK, doubtful=doubtful)), "left")
    marked = marked.select("r.*", sf.col(key).isNotNull().alias(OTHERS))
    marked = cache_frame(keep_parents(marked, rows, related))
    rest, others = (
        keep_parents(marked.filter(column(OTHERS) == is_others).drop(OTHERS), marked) for is_others in (False, True)
    )
    return rest, others
