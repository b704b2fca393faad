"""Stages 2 to 4 on Spark for mirror tables: `adapters.sinks.delta.mirror` for frames on the executors."""

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

from replicator.domain.change import ERROR, OLD_KEY, OP, RECORD_POSITION, UNCHANGED, Op
from replicator.domain.policy.late_changes import find_lateness_limit, make_late_reject, needs_tombstones
from replicator.domain.policy.plan import CDC_DELETED, ApplyPlan, Counts, Facts, LaneState, get_resent_limit, needs_reconcile
from replicator.ports.frames import Lane, Write

from ....apply.conform import REJECTED, ROW_NUMBER, conform_changes, number_rows, out_of_range_reason
from ....apply.lane_progress import advance_state, count_truncates, find_late_truncates, find_new_truncates
from ....delta.commits import Operation
from ....delta.lake import Lake
from ....delta.partitions import (
    MOST_LOOKED_FOR,
    NULL_FOLDER,
    Partitions,
    list_prunable_columns,
    max_text_bytes,
    old_key_column,
    partition_columns,
    select_few_values,
    unnameable_reason,
)
from ....delta.tables import Names, read_schema, stored_names, stored_plan
from ....delta.types import conform_to_table, storage_type
from ....spark.errors import translate_errors
from ....spark.frames import cache_frame, column, filter_rows, keep_parents, map_frame, read_version, run_select
from ....spark.key_change_deletes import drop_foreign_deletes
from ....spark.merge import clear_table, make_merge_operation
from ....spark.rows import drop_applied, filter_late, incomplete_reason, to_rejects, to_rows
from ....spark.session import LazySession
from ....spark.types import arrow_schema
from ....sql.dialect import SPARK
from ....sql.reconcile import APPLY, DUPLICATE, INCOMPLETE, LATE, SUPERSEDED, VERDICT, old_key_columns, reconcile_select
from ..lane import PreparedCommit
from .per_column import SparkPerColumn
from .scd2 import SparkDecision, SparkScd2
from .side_tables import SparkColumnVersions, SparkSideTables

Related = Callable[[], DataFrame]
"""Reads the rows of stage 2, for batches that need stage 3."""


class SparkMirror:
    """`sinks.delta.lane.CommitPreparer` over Spark frames. The snapshot is delta-rs's view of the table: schema
    and version."""

    def __init__(self, session: LazySession, lake: Lake, compact_every: int) -> None:
        self._session = session
        self.side_tables = SparkSideTables(session, lake, compact_every)
        self._columns = SparkPerColumn(SparkColumnVersions(session, lake, compact_every), self._read_candidates)
        self._histories = SparkScd2(session, self.side_tables)

    def prepare_commit(self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame]) -> PreparedCommit:
        with translate_errors(f"writing {write.lane.id}"):
            plan, facts = write.plan, write.folded.facts
            frame, trimmed = drop_applied(write, state.position)
            watermark_result = filter_late(frame, write, state)
            frame, left_out = watermark_result.rows, trimmed + watermark_result.duplicates
            truncates = _count_truncates(plan, facts)
            if truncates and trimmed:
                truncates = frame.filter(column(OP) == Op.TRUNCATE.value).count()
            schema = read_schema(snapshot)
            names = stored_names(plan.table.column_names, schema.names)
            plan, frame = (stored_plan(plan, names), _rename_columns(frame, names)) if names else (plan, frame)
            total = write.folded.rows - left_out - watermark_result.rejected - truncates
            good, unfit, fitting = _split_misfits(to_rows(frame, plan, datetime.now(UTC)), plan, schema, total)
            write = replace(write, plan=plan)
            decide = self.decide_versions if plan.history else self.decide_rows
            decide = self.decide_columns if plan.has_column_versions else decide
            decision = decide(snapshot, state, write, good, fitting.applied)
            new_truncates = find_new_truncates(plan, facts, state)
            idle = not decision.has_rows and not new_truncates
            operation = None if idle else make_merge_operation(plan, decision.rows, new_truncates, decision.partitions)
            counts = decision.counts + count_truncates(plan, facts, state, truncates)
            counts += Counts(rejected=fitting.rejected + watermark_result.rejected, duplicate=left_out)
            after = advance_state(plan, state, facts, decision.recorded, write.at)
            if decision.version is not None:
                after = replace(after, side_table_version=decision.version)
            return PreparedCommit(operation, after, counts, to_rejects(watermark_result.late, unfit, decision.rejects))

    def decide_rows(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame, count: int
    ) -> SparkDecision:
        """Stages 2 and 3 of the `count` rows that fit, for a plan that keeps the newest row of a key, or every change."""
        plan, facts = write.plan, write.folded.facts
        if state.purge_pending and state.purged_up_to is not None and plan.reconcile.uses_tombstones:
            self.side_tables.forget(write.lane, plan, state.purged_up_to.max_sequence)
        partitions = _find_partitions(snapshot, plan, rows) if count else {}
        related = partial(self._read_candidates, snapshot, partitions)
        rows, given_up_rows, verdicts = self._reconcile(related, state, write, rows, count)
        recorded = None
        if plan.reconcile.uses_tombstones and facts.has_deletes:
            self.side_tables.record(write.lane, plan, rows)
            recorded = facts.highest
        rows, holes, bad = _split_storable_rows(rows, plan, snapshot)
        counts = verdicts + Counts(applied=-bad, rejected=bad)
        rejects = to_rejects(given_up_rows, holes)
        return SparkDecision(rows, counts.applied > 0, counts, rejects, recorded, partitions=partitions)

    def decide_versions(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame, count: int
    ) -> SparkDecision:
        """The same for a plan that keeps every version of a row."""
        plan = write.plan
        if not count and not find_late_truncates(plan, write.folded.facts, state):
            return SparkDecision(rows.limit(0), False, Counts())
        rows, holes, bad = _split_storable_rows(rows, plan, snapshot)
        decision = self._histories.compute_versions(snapshot, state, write, rows)
        counts = decision.counts + Counts(rejected=bad)
        return replace(decision, counts=counts, rejects=to_rejects(holes, decision.rejects))

    def decide_columns(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame, count: int
    ) -> SparkDecision:
        """The same for a plan with a sequence for each column."""
        plan = write.plan
        if not count:
            return SparkDecision(rows.limit(0), False, Counts())
        rows, nameless, bad = _split_storable_rows(rows, plan, snapshot, nulls=False)
        # A truncate affects rows of all partitions.
        partitions = _find_partitions(snapshot, plan, rows) if write.folded.facts.truncated_at is None else {}
        decision = self._columns.decide(snapshot, state, write, rows, partitions)
        return replace(decision, counts=decision.counts + Counts(rejected=bad), rejects=nameless)

    def clear(self, _: Lane, __: object, /) -> Operation:
        """Deletes every row: the table belongs to its lane alone."""
        return clear_table(self._session)

    def _reconcile(
        self, related: Related, state: LaneState, write: Write[DataFrame], rows: DataFrame, count: int
    ) -> tuple[DataFrame, DataFrame | None, Counts]:
        """Stages 2 and 3 if the batch needs them: rows to write, rejects, and the counts of all rows that fit."""
        if not needs_reconcile(write.plan, write.folded.facts, state):
            return rows, None, Counts(applied=count)
        related_rows = related()
        rows, others, ambiguous = drop_foreign_deletes(write.plan, write.folded.facts, rows, related_rows)
        relations = {"rows": rows, "related": related_rows}
        if needs_tombstones(write.plan, write.folded.facts, state):
            relations["tombstones"] = self.side_tables.lookup_tombstones(
                write.lane, write.plan, rows, state.position, again=write.out_of_band
            )
        resent = get_resent_limit(write.plan, state, write.span)
        below = find_lateness_limit(write.plan, write.folded.facts, state)

        def select(names: Mapping[str, str]) -> str:
            return reconcile_select(
                write.plan,
                SPARK,
                rows=names["rows"],
                related=names["related"],
                tombstones=names.get("tombstones"),
                truncated_at=state.truncated_at,
                resent=resent,
                lateness=below,
            )

        judged_rows = cache_frame(keep_parents(run_select(self._session.spark, select, relations), rows))
        totals = {row[0]: row[1] for row in judged_rows.groupBy(VERDICT).count().collect()}
        too_late = sf.when(column(VERDICT) == LATE, sf.lit(str(make_late_reject(write.lane.id))))
        given_up_rows = filter_rows(judged_rows, column(VERDICT).isin(INCOMPLETE, LATE)).withColumn(
            ERROR, too_late.otherwise(incomplete_reason())
        )
        verdicts = Counts(
            applied=totals.get(APPLY, 0),
            superseded=totals.get(SUPERSEDED, 0) + others,
            duplicate=totals.get(DUPLICATE, 0),
            rejected=totals.get(INCOMPLETE, 0) + totals.get(LATE, 0) + (ambiguous.count() if ambiguous else 0),
        )
        rejects = to_rejects(keep_parents(given_up_rows, judged_rows), ambiguous)
        return filter_rows(judged_rows, column(VERDICT) == APPLY), rejects, verdicts

    def _read_candidates(self, snapshot: DeltaTable, partitions: Partitions) -> DataFrame:
        """The rows of `snapshot` in these partitions."""
        related = read_version(self._session.spark, snapshot.table_uri, snapshot.version())
        for name, values in partitions.items():
            related = related.filter(column(name).isin(values))
        return related


def _count_truncates(plan: ApplyPlan, facts: Facts) -> int:
    """The number of truncates that are not rows."""
    if plan.has_column_versions:
        return 0
    return len(facts.truncates) or (1 if plan.truncates and facts.truncated_at is not None else 0)


def _rename_columns(frame: DataFrame, names: Names) -> DataFrame:
    """The frame with the column names of the table, also within `_unsent` and the old key."""

    def rename(name: Any) -> Any:
        out = name
        for source, target in names.items():
            out = sf.when(name == source, sf.lit(target)).otherwise(out)
        return out

    columns = []
    for field in frame.schema:
        value = column(field.name)
        if field.name == UNCHANGED:
            value = sf.transform(value, rename)
        elif field.name == OLD_KEY:
            inner: Any = field.dataType
            fields = [StructField(names.get(f.name, f.name), f.dataType, f.nullable, f.metadata) for f in inner]
            value = value.cast(StructType(fields))
        columns.append(value.alias(names.get(field.name, field.name), metadata=field.metadata))
    return keep_parents(frame.select(columns), frame)


def _split_misfits(
    rows: DataFrame, plan: ApplyPlan, schema: pa.Schema, total: int
) -> tuple[DataFrame, DataFrame | None, Counts]:
    """The rows that fit the table, the others with `_error`, and the counts of both. `total`: the number of rows."""
    fitting = _conform_rows(rows, plan, schema)
    if fitting is None:
        return rows, None, Counts(applied=total)
    fitting = cache_frame(fitting)
    is_good, is_bad = column(ERROR).isNull(), column(ERROR).isNotNull()
    applied, rejected = fitting.agg(sf.count_if(is_good), sf.count_if(is_bad)).collect()[0]
    good = keep_parents(filter_rows(fitting, is_good).drop(ERROR), fitting)
    return good, filter_rows(fitting, is_bad), Counts(applied=applied, rejected=rejected)


def _conform_rows(rows: DataFrame, plan: ApplyPlan, schema: pa.Schema) -> DataFrame | None:
    """Rows with the types of the table, and `_error` where a value does not fit; None when no type differs."""
    types = {c.name: c.type for c in plan.target} | {
        old: plan.table.column(key).type for old, key in zip(old_key_columns(plan), plan.table.keys, strict=True)
    }
    wanted = {f.name: f for f in schema} | {
        old: schema.field(key) for old, key in zip(old_key_columns(plan), plan.table.keys, strict=True)
    }
    same = all(storage_type(kind).equals(wanted[name].type) for name, kind in types.items())
    if same:
        return None
    row_schema = arrow_schema(rows.schema)
    target = pa.schema([f.with_type(wanted[f.name].type) if f.name in wanted else f for f in row_schema])
    to = pa.schema([pa.field(name, field.type, nullable=field.nullable) for name, field in wanted.items()])
    return map_frame(
        rows, lambda table: _conform_batch(table, plan, to, target), target.append(pa.field(ERROR, pa.string()))
    )


def _conform_batch(rows: pa.Table, plan: ApplyPlan, to: pa.Schema, target: pa.Schema) -> pa.Table:
    """On the executors: rows of `target` with `_error`. A row that does not fit has only its position and
    operation."""
    good, bad = conform_changes(number_rows(rows), plan, lambda part: conform_to_table(part, to))
    good = good.drop_columns([ROW_NUMBER]).append_column(ERROR, pa.nulls(good.num_rows, pa.string()))
    good = good.select([*target.names, ERROR]).cast(target.append(pa.field(ERROR, pa.string())))
    misfits = rows.take(bad[ROW_NUMBER])
    columns = [misfits[f.name] if f.name in (*RECORD_POSITION, OP) else pa.nulls(misfits.num_rows, f.type) for f in target]
    lost = pa.table([*columns, bad[REJECTED.names[1]]], schema=good.schema)
    return pa.concat_tables([good, lost])


def _find_partitions(snapshot: DeltaTable, plan: ApplyPlan, rows: DataFrame) -> Partitions:
    """The partitions that can contain rows of the keys and old keys in `rows`, if these determine them."""
    values = {}
    for name in list_prunable_columns(snapshot, plan):
        old = rows.select(column(old_key_column(plan, name)).alias(name)).dropna()
        both = rows.select(column(name)).unionAll(old).distinct().limit(MOST_LOOKED_FOR + 1)
        values[name] = [row[0] for row in both.collect()]
    return select_few_values(values)


def _split_storable_rows(
    rows: DataFrame, plan: ApplyPlan, snapshot: DeltaTable, *, nulls: bool = True
) -> tuple[DataFrame, DataFrame | None, int]:
    """Rows that the table can store, the others with `_error`, and their number. Deletes pass, if the plan merges by key.

    See `delta.partitions.split_unnameable`, and with `nulls` also `apply.conform.require_values`.
    """
    refusals: list[tuple[Column, str]] = []
    for name in (f.name for f in read_schema(snapshot) if nulls and not f.nullable and f.name in rows.columns):
        refusals.append((column(name).isNull(), out_of_range_reason(f"column {name!r} of the target must not be null")))
    for name in partition_columns(snapshot):
        if name in rows.columns and isinstance(rows.schema[name].dataType, StringType):
            value = column(name)
            is_too_long = sf.octet_length(value) > max_text_bytes(name)
            refusals.append((value.isin("", NULL_FOLDER) | value.contains("\0") | is_too_long, unnameable_reason(name)))
    if not refusals:
        return rows, None, 0
    error = sf.lit(None).cast("string")
    for condition, reason in reversed(refusals):
        error = sf.when(condition, sf.lit(reason)).otherwise(error)
    if plan.soft_deletes:
        # As in `apply.conform.reject_rows`, a delete with bad values counts as a delete without values.
        mark = sf.when((column(OP) == Op.DELETE.value) & error.isNotNull(), sf.lit(None)).otherwise(column(CDC_DELETED))
        rows = keep_parents(rows.withColumn(CDC_DELETED, mark), rows)
    error = sf.when(column(OP) != Op.DELETE.value, error) if plan.merge_keys else error
    holes = keep_parents(filter_rows(rows, error.isNotNull()).withColumn(ERROR, error), rows)
    return filter_rows(rows, error.isNull()), holes, holes.count()
