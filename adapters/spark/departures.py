"""Deletes that are of another row than the one which their key has by then: `arrow.departures` and `sql.departures` for
frames that stay on the executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from replicator.domain.change import ERROR, MOVED_TO, OP, UNSENT, Op
from replicator.domain.errors import AMBIGUOUS_DELETE
from replicator.domain.plan import ApplyPlan, Facts

from ..arrow.departures import Whose, asks_target, looks, read_columns, whose_rows
from ..sql.departures import another_row
from ..sql.dialect import SPARK
from ..sql.fold import BELOW, KEPT, OUTCOME, PLACE
from .frames import column, derived, kept, quoted, where

OTHERS = "_others"
"""True for a change that is of another row."""


@dataclass(frozen=True)
class Judging:
    """What every task knows; can be pickled."""

    plan: ApplyPlan
    names: tuple[str, ...]

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All changes of some keys, each of which is in no other task: the places of the deletes that are of other rows, and
        of those that the target is to be asked of."""
        pieces = [batch.rename_columns(self.names) for batch in batches]
        if not pieces:
            return
        given = pa.Table.from_batches(pieces)
        changes = given.take(pc.sort_indices(given[PLACE]))
        found = whose_rows(changes, self.plan)
        told = [
            (changes[PLACE][i].as_py(), whose is Whose.OTHERS) for i, whose in found.items() if whose is not Whose.ITS_OWN
        ]
        schema = pa.schema([(PLACE, pa.int64()), (OTHERS, pa.bool_())])
        places, others = [place for place, _ in told], [is_others for _, is_others in told]
        yield pa.record_batch([pa.array(places, pa.int64()), pa.array(others, pa.bool_())], schema=schema)


def is_doubtful(names: Sequence[str]) -> Column:
    """As `arrow.departures.is_doubtful`."""
    given = sf.array_compact(sf.array(*(sf.when(column(n).isNotNull(), sf.lit(n)) for n in names)).cast("array<string>"))
    return sf.coalesce(column(MOVED_TO) & sf.arrays_overlap(column(UNSENT), given), sf.lit(False))


def left_out(marked: DataFrame, plan: ApplyPlan) -> DataFrame:
    """Numbered changes with `_outcome`: that of deletes which are of other rows is superseded, and `_moved_to` is true only
    where the target's row has to be asked. One shuffle by key, of what is looked at."""
    if not looks(plan):
        return marked
    names = (PLACE, *read_columns(plan))
    changes = marked.filter((column(OUTCOME) == KEPT) & (column(OP) != Op.TRUNCATE.value))
    # Spark looks for columns by what it reads in their names: quotes, and dots.
    given = changes.select([column(n).alias(f"_{i}") for i, n in enumerate(names)])
    keys = [f"_{names.index(key)}" for key in plan.table.keys]
    schema = StructType([StructField(PLACE, LongType()), StructField(OTHERS, BooleanType())])
    told = given.repartition(*keys).mapInArrow(Judging(plan, names).run, schema)
    joined = marked.join(told, PLACE, "left")
    made = {
        MOVED_TO: sf.when(~column(OTHERS), sf.lit(True)),
        OUTCOME: sf.when(column(OTHERS), sf.lit(BELOW)).otherwise(column(OUTCOME)),
    }
    return derived(
        joined.select([made.get(n, column(n)).alias(n, metadata=marked.schema[n].metadata) for n in marked.columns]), marked
    )


def without_others(
    plan: ApplyPlan, facts: Facts, rows: DataFrame, related: DataFrame
) -> tuple[DataFrame, int, DataFrame | None]:
    """The rows of a rows frame that are not deletes of other rows than the target's, how many were, and as rejects those of
    which that cannot be told."""
    if not (facts.moves and asks_target(plan)):
        return rows, 0, None
    left, others = _parted(plan, rows, related, doubtful=False)
    if not facts.doubts:
        return left, others.count(), None
    told, untold = _parted(plan, left, related, doubtful=True)
    return told, others.count(), untold.withColumn(ERROR, sf.lit(str(AMBIGUOUS_DELETE)))


def _parted(plan: ApplyPlan, rows: DataFrame, related: DataFrame, *, doubtful: bool) -> tuple[DataFrame, DataFrame]:
    """The rows that are not such, and those that are."""
    key = f"t.{quoted(plan.table.keys[0])}"
    marked = rows.alias("r").join(related.alias("t"), sf.expr(another_row(plan, SPARK, doubtful=doubtful)), "left")
    marked = marked.select("r.*", sf.col(key).isNotNull().alias(OTHERS))
    marked = kept(derived(marked, rows, related))
    found = derived(marked.filter(column(OTHERS)).drop(OTHERS), marked)
    return where(marked, ~column(OTHERS)).drop(OTHERS), found
