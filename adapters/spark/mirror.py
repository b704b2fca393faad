"""Stages 2 to 4 on Spark for tables that mirror a source: `adapters.delta.mirror` for frames that stay on the executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from replicator.domain.change import ERROR, MOVED_FROM, OP, UNSENT, Op
from replicator.domain.errors import DataLoss
from replicator.domain.plan import CDC_DELETED, ApplyPlan, Counts, Facts, LaneState, needs_repair, resent_below
from replicator.domain.retention import can_be_late, late, recalls
from replicator.ports.frames import Lane, Write

from ..delta.column_names import Names, stored_names, stored_plan
from ..delta.commits import Operation
from ..delta.fit import PLACE, REJECTED, fit, out_of_range, placed
from ..delta.partitions import (
    MOST_LOOKED_FOR,
    NULL_FOLDER,
    Partitions,
    few,
    longest,
    old_key_column,
    partition_columns,
    prunable,
    unnameable,
)
from ..delta.staged import Staged, clearing, late_cuts, moved_on, new_cuts, truncated
from ..delta.tables import schema_of
from ..delta.types import storage_type
from ..sql.dialect import SPARK
from ..sql.repair import APPLY, DUPLICATE, INCOMPLETE, LATE, SUPERSEDED, VERDICT, from_columns, repair_select
from .beside import SparkBeside
from .columns import SparkColumns
from .departures import without_others
from .errors import translating
from .frames import column, derived, kept, mapped, selected, where
from .histories import SparkHistories
from .ledger import SparkTombstoneLedger
from .marks import SparkMarks
from .rows import POSITION, as_rejects, incomplete, to_rows
from .session import Session
from .stores import place
from .trim import untouched
from .types import arrow_schema
from .watermark import admitted
from .write import clear_stage, write_stage

Related = Callable[[], DataFrame]
"""Reads the rows of stage 2; a batch that needs no repair does without."""


class SparkMirror:
    """`delta.lane.Stages` over Spark's frames. The snapshot is what delta-rs reads of the same table: schema and version."""

    def __init__(self, session: Session, ledger: SparkTombstoneLedger, marks: SparkMarks, beside: SparkBeside) -> None:
        self._session = session
        self._ledger = ledger
        self._columns = SparkColumns(beside, self._related)
        self._histories = SparkHistories(session, marks)

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame]) -> Staged:
        """See `delta.lane.Stages.stage`."""
        with translating(f"writing {write.lane.id}"):
            return self._staged(snapshot, state, write)

    def _staged(self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame]) -> Staged:
        plan, facts = write.plan, write.folded.facts
        frame, trimmed = untouched(write, state.position)
        let_in = admitted(frame, write, state)
        frame, left_out = let_in.rows, trimmed + let_in.duplicates
        truncates = _truncates(plan, facts)
        if truncates and trimmed:
            truncates = frame.filter(column(OP) == Op.TRUNCATE.value).count()
        schema = schema_of(snapshot)
        names = stored_names(plan.table.column_names, schema.names)
        plan, frame = (stored_plan(plan, names), _renamed(frame, names)) if names else (plan, frame)
        applied_at = datetime.now(UTC)
        rows = to_rows(frame, plan, applied_at)
        total = write.folded.rows - left_out - let_in.rejected - truncates
        good, unfit, counts = _parted(rows, plan, schema, total)
        if plan.history:
            kept_apart = Counts(rejected=counts.rejected, duplicate=left_out) + truncated(facts, state, truncates)
            staged = self._history(snapshot, state, replace(write, plan=plan), good, applied_at, any_rows=counts.applied > 0)
            rejects = as_rejects(unfit, staged.rejects)
            return replace(staged, counts=staged.counts + kept_apart, rejects=rejects)
        if plan.by_column:
            staged = self._by_column(snapshot, state, replace(write, plan=plan), good, any_rows=counts.applied > 0)
            left = Counts(rejected=counts.rejected, duplicate=left_out)
            return replace(staged, counts=staged.counts + left, rejects=as_rejects(unfit, staged.rejects))
        if state.owed and state.forgotten is not None and plan.repair.ledger:
            self._ledger.forget(write.lane, plan, state.forgotten.high)
        partitions = _met(snapshot, plan, good) if counts.applied else {}
        related = partial(self._related, snapshot, partitions)
        good, given_up, verdicts = self._repaired(related, state, replace(write, plan=plan), good, counts)
        recorded = self._ledger.record(write.lane, plan, good, facts)
        good, holes, empty = _refused(good, plan, [*_holes(good, snapshot), *_nameless(good, partition_columns(snapshot))])
        verdicts += Counts(applied=-empty, rejected=empty)
        clear = clearing(facts, state)
        idle = not verdicts.applied and clear is None
        operation = None if idle else write_stage(plan, good, clear, partitions)
        refused = counts.rejected + let_in.rejected
        counts = verdicts + Counts(rejected=refused, duplicate=left_out) + truncated(facts, state, truncates)
        rejects = as_rejects(let_in.late, unfit, given_up, holes)
        return Staged(operation, moved_on(plan, state, facts, recorded, write.at), counts, rejects)

    def _history(
        self,
        snapshot: DeltaTable,
        state: LaneState,
        write: Write[DataFrame],
        rows: DataFrame,
        applied_at: datetime,
        *,
        any_rows: bool,
    ) -> Staged:
        """Of the rows of a history that fit the table."""
        plan, facts = write.plan, write.folded.facts
        cuts = new_cuts(facts, state)
        if not any_rows and not late_cuts(facts, state):
            nothing = rows.select([column(OP), *(column(c.name) for c in plan.target)]).limit(0)
            operation = write_stage(plan, nothing, None, {}, cuts) if cuts else None
            return Staged(operation, moved_on(plan, state, facts, None), Counts(), None)
        good, holes, empty = _refused(rows, plan, [*_holes(rows, snapshot), *_nameless(rows, partition_columns(snapshot))])
        done = self._histories.versions(snapshot, state, write, good, applied_at)
        counts = done.counts + Counts(rejected=empty)
        operation = write_stage(plan, done.write, None, {}, cuts) if done.counts.applied or cuts else None
        rejects = as_rejects(holes, done.rejects)
        return Staged(operation, moved_on(plan, state, facts, done.recorded), counts, rejects)

    def _by_column(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame, *, any_rows: bool
    ) -> Staged:
        """Of the rows and truncates that fit the table of a lane with a sequence for each column."""
        plan, facts = write.plan, write.folded.facts
        if not any_rows:
            return Staged(None, moved_on(plan, state, facts, None), Counts(), None)
        good, nameless, bad = _refused(rows, plan, _nameless(rows, partition_columns(snapshot)))
        # A truncate may concern rows that the batch does not name.
        partitions = _met(snapshot, plan, good) if facts.clear_below is None else {}
        staged = self._columns.stage(snapshot, state, write, good, partitions)
        return replace(staged, counts=staged.counts + Counts(rejected=bad), rejects=nameless)

    def cleared(self, _: LaneState | None) -> Operation:
        """Every row: the table belongs to its lane alone."""
        return clear_stage(self._session)

    def cleared_blindly(self, _: Lane, __: DataLoss) -> Operation:
        """Every row too."""
        return clear_stage(self._session)

    def _repaired(
        self, related: Related, state: LaneState, write: Write[DataFrame], rows: DataFrame, counts: Counts
    ) -> tuple[DataFrame, DataFrame | None, Counts]:
        """Stages 2 and 3 where they can matter: rows to write, rejects, and what became of every row that fits."""
        if not needs_repair(write.plan, write.folded.facts, state):
            return rows, None, Counts(applied=counts.applied)
        known = related()
        rows, others, untold = without_others(write.plan, write.folded.facts, rows, known)
        ledger = self._remembered(write, rows, state)
        relations = {"rows": rows, "related": known} | ({} if ledger is None else {"ledger": ledger})
        resent = resent_below(write.plan, state, write.span)
        below = can_be_late(write.plan, write.folded.facts, state)

        def select(names: Mapping[str, str]) -> str:
            return repair_select(
                write.plan,
                SPARK,
                rows=names["rows"],
                related=names["related"],
                ledger=names.get("ledger"),
                floor=state.floor,
                resent=resent,
                forgetting=below,
            )

        done = kept(derived(selected(self._session.spark, select, relations), rows))
        seen = {row[0]: row[1] for row in done.groupBy(VERDICT).count().collect()}
        too_late = sf.when(column(VERDICT) == LATE, sf.lit(str(late(write.lane.id))))
        given_up = where(done, column(VERDICT).isin(INCOMPLETE, LATE)).withColumn(ERROR, too_late.otherwise(incomplete()))
        verdicts = Counts(
            applied=seen.get(APPLY, 0),
            superseded=seen.get(SUPERSEDED, 0) + others,
            duplicate=seen.get(DUPLICATE, 0),
            rejected=seen.get(INCOMPLETE, 0) + seen.get(LATE, 0) + (untold.count() if untold else 0),
        )
        return where(done, column(VERDICT) == APPLY), as_rejects(derived(given_up, done), untold), verdicts

    def _related(self, snapshot: DeltaTable, partitions: Partitions) -> DataFrame:
        """The rows of `snapshot` in these partitions."""
        reader = self._session.spark.read.format("delta").option("versionAsOf", snapshot.version())
        related = reader.load(place(snapshot.table_uri))
        for name, values in partitions.items():
            related = related.filter(column(name).isin(values))
        return related

    def _remembered(self, write: Write[DataFrame], rows: DataFrame, state: LaneState) -> DataFrame | None:
        if not recalls(write.plan, write.folded.facts, state):
            return None
        return self._ledger.lookup(write.lane, write.plan, rows, state.position, again=write.beside)


def _truncates(plan: ApplyPlan, facts: Facts) -> int:
    """How many truncates are no rows."""
    if plan.by_column:
        return 0
    return len(facts.cuts) or (1 if plan.truncates and facts.clear_below is not None else 0)


def _renamed(frame: DataFrame, names: Names) -> DataFrame:
    """The frame under the names that the table keeps columns by, what it says about columns included."""
    unsent = sf.transform(column(UNSENT), lambda name: _stored(name, names))
    out = []
    for field in frame.schema:
        value = column(field.name)
        if field.name == UNSENT:
            value = unsent
        elif field.name == MOVED_FROM:
            value = _renamed_key(frame, names)
        out.append(value.alias(names.get(field.name, field.name), metadata=field.metadata))
    return derived(frame.select(out), frame)


def _renamed_key(frame: DataFrame, names: Names) -> Any:
    inner: Any = frame.schema[MOVED_FROM].dataType
    fields = [StructField(names.get(f.name, f.name), f.dataType, f.nullable, f.metadata) for f in inner]
    return column(MOVED_FROM).cast(StructType(fields))


def _stored(name: Any, names: Names) -> Any:
    out = name
    for source, stored in names.items():
        out = sf.when(name == source, sf.lit(stored)).otherwise(out)
    return out


def _parted(rows: DataFrame, plan: ApplyPlan, schema: pa.Schema, total: int) -> tuple[DataFrame, DataFrame | None, Counts]:
    """The rows that fit the table, the others with `_error`, and how many of `total` these are."""
    fitting = _fitting(rows, plan, schema)
    if fitting is None:
        return rows, None, Counts(applied=total)
    fitting = kept(fitting)
    good = derived(where(fitting, column(ERROR).isNull()).drop(ERROR), fitting)
    return good, where(fitting, column(ERROR).isNotNull()), _counted(fitting)


def _fitting(rows: DataFrame, plan: ApplyPlan, schema: pa.Schema) -> DataFrame | None:
    """Rows with the types of the table, and `_error` where a value does not fit; None where the types are the table's."""
    known = {c.name: c.type for c in plan.target} | {
        old: plan.table.column(key).type for old, key in zip(from_columns(plan), plan.table.keys, strict=True)
    }
    wanted = {f.name: f for f in schema} | {
        old: schema.field(key) for old, key in zip(from_columns(plan), plan.table.keys, strict=True)
    }
    same = all(storage_type(kind).equals(wanted[name].type) for name, kind in known.items())
    if same:
        return None
    given = arrow_schema(rows.schema)
    target = pa.schema([f.with_type(wanted[f.name].type) if f.name in wanted else f for f in given])
    to = pa.schema([pa.field(name, field.type, nullable=field.nullable) for name, field in wanted.items()])
    return mapped(rows, lambda table: _fitted(table, to, target), target.append(pa.field(ERROR, pa.string())))


def _fitted(rows: pa.Table, to: pa.Schema, target: pa.Schema) -> pa.Table:
    """On the executors: rows of `target` and `_error`; of a row that does not fit only the place is known."""
    good, bad = fit(placed(rows), to)
    good = good.drop_columns([PLACE]).append_column(ERROR, pa.nulls(good.num_rows, pa.string()))
    good = good.select([*target.names, ERROR]).cast(target.append(pa.field(ERROR, pa.string())))
    refused = rows.take(bad[PLACE])
    columns = [refused[f.name] if f.name in (*POSITION, OP) else pa.nulls(refused.num_rows, f.type) for f in target]
    lost = pa.table([*columns, bad[REJECTED.names[1]]], schema=good.schema)
    return pa.concat_tables([good, lost])


Refusal = tuple[Column, str]
"""A condition under which a row cannot be kept, and the reason."""


def _holes(rows: DataFrame, snapshot: DeltaTable) -> list[Refusal]:
    """As `delta.fit.filled`."""
    strict = [f.name for f in schema_of(snapshot) if not f.nullable and f.name in rows.columns]
    return [(column(n).isNull(), out_of_range(f"column {n!r} of the target must not be null")) for n in strict]


def _nameless(rows: DataFrame, partitions: list[str]) -> list[Refusal]:
    """As `delta.partitions.nameable`."""
    texts = [n for n in partitions if n in rows.columns and isinstance(rows.schema[n].dataType, StringType)]
    return [(_names_nothing(n), unnameable(n)) for n in texts]


def _names_nothing(name: str) -> Column:
    value = column(name)
    return value.isin("", NULL_FOLDER) | value.contains("\0") | (sf.octet_length(value) > longest(name))


def _met(snapshot: DeltaTable, plan: ApplyPlan, rows: DataFrame) -> Partitions:
    """The partitions in which the rows of the keys and old keys of `rows` can be, where these tell."""
    values = {}
    for name in prunable(snapshot, plan):
        old = rows.select(column(old_key_column(plan, name)).alias(name)).dropna()
        both = rows.select(column(name)).unionAll(old).distinct().limit(MOST_LOOKED_FOR + 1)
        values[name] = [row[0] for row in both.collect()]
    return few(values)


def _refused(rows: DataFrame, plan: ApplyPlan, refusals: list[Refusal]) -> tuple[DataFrame, DataFrame | None, int]:
    """Rows that none of the conditions holds for, the others with `_error`, and how many these are; deletes that a merge
    does not keep pass."""
    if not refusals:
        return rows, None, 0
    error = sf.lit(None).cast("string")
    for condition, reason in reversed(refusals):
        error = sf.when(condition, sf.lit(reason)).otherwise(error)
    if plan.soft_deletes:
        # As `delta.fit.without`: a delete that brings bad values brings none.
        marks = sf.when((column(OP) == Op.DELETE.value) & error.isNotNull(), sf.lit(None)).otherwise(column(CDC_DELETED))
        rows = derived(rows.withColumn(CDC_DELETED, marks), rows)
    error = sf.when(column(OP) != Op.DELETE.value, error) if plan.merge_keys else error
    holes = derived(where(rows, error.isNotNull()).withColumn(ERROR, error), rows)
    return where(rows, error.isNull()), holes, holes.count()


def _counted(rows: DataFrame) -> Counts:
    """`applied`: the rows that fit; `rejected`: the others. Computes and keeps the rows."""
    error = column(ERROR)
    good, bad = rows.agg(sf.count_if(error.isNull()), sf.count_if(error.isNotNull())).collect()[0]
    return Counts(applied=good, rejected=bad)
