"""Stage 1 as Spark SQL: one shuffle by key; the driver sees counts and facts only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf

from replicator.domain.change import (
    KEEP_EXISTING,
    KEY_CHANGE_DELETE,
    OLD_KEY,
    OP,
    PARTITION,
    RESET,
    TOPIC,
    TS,
    UNCHANGED,
    Op,
    sequence_columns,
)
from replicator.domain.policy.plan import ApplyPlan, Counts, Facts, Truncate, merge_truncates
from replicator.domain.position import TopicPartition
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.ports.frames import FoldedChanges

from ...arrow.key_change import can_have_foreign_deletes, needs_target_row
from ...spark.frames import FrameFacts, cache_frame, collect_facts, column, get_facts, keep_parents, run_select, set_facts
from ...spark.key_change_deletes import is_doubtful, mark_foreign_deletes
from ...sql.dialect import SPARK
from ...sql.fold import (
    ARRIVAL,
    BELOW,
    EQUAL,
    KEPT,
    LAST,
    LIVE,
    OUTCOME,
    VOID,
    first_windows,
    guard_windows,
    last_windows,
    sent_windows,
)

ROW = "_row"
"""True for the rows of the folded frame."""


def fold_changes(changes: DataFrame, plan: ApplyPlan) -> FoldedChanges[DataFrame]:
    """See `ports.engine.Engine.fold`."""
    names = changes.columns if RESET in changes.columns else [*changes.columns, RESET]
    facts = get_facts(changes) or collect_facts(changes).get((), FrameFacts())
    reset = column(RESET) if RESET in changes.columns else sf.lit(False)
    # The order of arrival is the physical order.
    numbered = changes.withColumn(RESET, reset).withColumn(ARRIVAL, sf.monotonically_increasing_id())
    numbered = keep_parents(numbered, changes)
    marked = _last_per_key(numbered, plan, facts) if plan.fold == "last" else _drop_duplicates(numbered, plan, facts)
    marked = cache_frame(keep_parents(marked, changes))
    row = _collect_counts(marked, plan, halves=facts.halves > 0)
    rows = marked.filter(column(ROW))
    if plan.has_column_versions or (plan.history and row["partial"]):
        rows = rows.sort(ARRIVAL)  # A missing value is that of a change that arrived before, and the windows moved the rows.
    frame = keep_parents(rows.select([column(n) for n in names]), marked)
    # The folded rows lie within the same offsets as all changes.
    of_rows = {name: row[name] for name in ("rows", "partial", "moves", "truncates")}
    frame = set_facts(frame, replace(facts, unsent=facts.unsent if row["partial"] else frozenset(), **of_rows))
    counts = Counts(folded=row["folded"], superseded=row["superseded"], duplicate=row["duplicate"])
    return FoldedChanges(frame, _to_facts(marked, row, plan), counts, row["rows"], 0)


def _select_over(frame: DataFrame, select: Any) -> DataFrame:
    """Run a SELECT over a frame; `select` builds the statement from a relation's name."""
    return run_select(frame.sparkSession, lambda names: str(select(names["frame"])), {"frame": frame})


def _last_per_key(changes: DataFrame, plan: ApplyPlan, facts: FrameFacts) -> DataFrame:
    truncates, lacking = facts.truncates if plan.truncates else 0, sorted(facts.unsent - {KEEP_EXISTING})
    if plan.soft_deletes and facts.partial:
        lacking = [c.name for c in plan.table.values]
    marked = _select_over(changes, lambda relation: guard_windows(plan, SPARK, relation, truncates=truncates > 0))
    marked = mark_foreign_deletes(marked, plan) if facts.halves else marked
    live = column(OUTCOME) == KEPT
    if truncates:
        highest = sf.max(_sequence_column(plan)).alias("highest")
        floor = marked.filter(_is_kept_truncate()).agg(highest).collect()[0]["highest"]
        live = live & (column(OP) != Op.TRUNCATE.value)
        if floor:
            constants = sf.struct(*(sf.lit(value).alias(name) for name, value in floor.asDict().items()))
            live = live & (_sequence_column(plan) > constants)
    marked = _select_over(marked.withColumn(LIVE, live), lambda relation: last_windows(plan, SPARK, relation))
    if facts.partial or facts.moves:
        marked = _select_over(marked, lambda relation: sent_windows(plan, SPARK, relation, lacking))
        marked = _complete_rows(marked, lacking, plan)
    void = (column(VOID).isNotNull() | sf.lit(truncates > 0)) & (column(OP) != Op.DELETE.value)
    is_row = column(LIVE) & (column(ARRIVAL) == column(LAST))
    marked = marked.withColumn(RESET, sf.when(column(OP) == Op.TRUNCATE.value, column(RESET)).otherwise(void))
    if truncates:
        last = marked.filter(_is_kept_truncate()).agg(sf.max(ARRIVAL)).collect()[0][0]
        is_row = is_row | (column(ARRIVAL) == sf.lit(last))
    return marked.withColumn(ROW, sf.coalesce(is_row, sf.lit(False)))


def _is_kept_truncate() -> Column:
    return (column(OUTCOME) == KEPT) & (column(OP) == Op.TRUNCATE.value)


def _sequence_column(plan: ApplyPlan) -> Column:
    return sf.struct(*(column(n) for n in sequence_columns(plan.table.sequence)))


def _complete_rows(marked: DataFrame, names: Sequence[str], plan: ApplyPlan) -> DataFrame:
    """Fill values that a key's last change did not contain, from the last change that did. Set the old key of rows that
    still lack values. Deletes keep their own image, except with soft deletes."""
    is_delete = column(OP) == Op.DELETE.value
    if plan.soft_deletes:
        is_filled = is_delete & column("_a").isNotNull()
        unchanged = sf.when(is_filled, sf.array(*map(sf.lit, names)).cast("array<string>")).otherwise(column(UNCHANGED))
        marked, is_delete = marked.withColumn(UNCHANGED, unchanged), is_delete & column("_a").isNull()
    for i, name in enumerate(names):
        value = sf.when(is_delete, column(name)).otherwise(column(f"_v{i}"))
        marked = marked.withColumn(name, value.alias(name, metadata=marked.schema[name].metadata))
    marked = marked.withColumn(UNCHANGED, list_still_missing(names))
    old = sf.when(column(UNCHANGED).isNotNull(), column("_m"))
    return marked.withColumn(OLD_KEY, old.alias(OLD_KEY, metadata=marked.schema[OLD_KEY].metadata))


def list_still_missing(names: Sequence[str]) -> Column:
    """The names that are still without a value. Empty, not null, if all values are known but from several changes."""
    # Not as nested expressions, whose size would double with each column.
    sent_names = sf.array_compact(sf.array(*(sf.when(column(f"_p{i}").isNotNull(), sf.lit(n)) for i, n in enumerate(names))))
    missing = sf.array_except(column(UNCHANGED), sent_names.cast("array<string>"))
    return sf.when(column(UNCHANGED).isNull() | column("_w").isNotNull(), sf.lit(None)).otherwise(missing)


def _drop_duplicates(changes: DataFrame, plan: ApplyPlan, facts: FrameFacts) -> DataFrame:
    """Every change once: of changes with equal key and sequence, the first one. Without a key, all values must be equal
    too. Under a watermark all changes stay, because the first may be late when the second is not."""
    if not plan.table.sequence or plan.watermark is not None:
        return changes.withColumn(ROW, sf.lit(True)).withColumn(OUTCOME, sf.lit(KEPT))
    counted = plan.reconcile.counted and len(facts.end) == 1
    marked = _select_over(changes, lambda relation: first_windows(plan, SPARK, relation, counted=counted))
    is_row = column(ARRIVAL) == column(LAST)
    marked = marked.withColumn(OUTCOME, sf.when(is_row, KEPT).otherwise(EQUAL))
    marked = mark_foreign_deletes(marked, plan) if facts.halves else marked
    return marked.withColumn(ROW, column(OUTCOME) == KEPT)


def _collect_counts(marked: DataFrame, plan: ApplyPlan, *, halves: bool) -> Row:
    """Counts over all changes, and facts over the folded rows, in one job."""
    row, outcome = column(ROW), column(OUTCOME)
    sequence = _sequence_column(plan) if plan.table.sequence else sf.lit(None)
    clears = row & (column(OP) == Op.TRUNCATE.value)
    moves = row & column(OLD_KEY).isNotNull() if OLD_KEY in marked.columns else sf.lit(False)
    moves = moves | (row & column(KEY_CHANGE_DELETE).isNotNull()) if can_have_foreign_deletes(plan) else moves
    doubtful = column(KEY_CHANGE_DELETE).isNotNull() if plan.table.by_tx else is_doubtful(plan.delete_evidence_columns)
    doubts = row & doubtful if halves and needs_target_row(plan) else sf.lit(False)
    return marked.agg(
        sf.count_if(row).alias("rows"),
        sf.count_if(outcome == EQUAL).alias("duplicate"),
        sf.count_if(outcome == BELOW).alias("superseded"),
        sf.count_if((outcome == KEPT) & ~row).alias("folded"),
        sf.min(sequence).alias("lowest"),
        sf.max(sequence).alias("highest"),
        sf.max(sf.when(column(OP) == Op.DELETE.value, sequence)).alias("deleted"),
        sf.max(sf.when(clears, sequence)).alias("clear_below"),
        sf.max_by(sf.unix_micros(column(TS)), sf.when(clears, sequence)).alias("cleared_at"),
        sf.count_if(clears).alias("truncates"),
        sf.count_if(row & column(UNCHANGED).isNotNull()).alias("partial"),
        sf.count_if(row & ~sf.array_contains(UNCHANGED, KEEP_EXISTING)).alias("unsent"),
        sf.count_if(moves).alias("moves"),
        sf.count_if(doubts).alias("doubts"),
        sf.count_if(row & (column(OP) == Op.DELETE.value)).alias("deletes"),
        sf.max(sf.unix_micros(column(TS))).alias("newest"),
    ).collect()[0]


def _to_facts(marked: DataFrame, row: Row, plan: ApplyPlan) -> Facts:
    """The facts in a row of `_collect_counts`, and others from jobs of their own if the plan needs them."""
    micros = sf.unix_micros(column(TS))
    truncates: tuple[Truncate, ...] = ()
    watermark: dict[str, Any] = {}
    if plan.history and row["truncates"]:
        clears = marked.filter(column(ROW) & (column(OP) == Op.TRUNCATE.value))
        few = clears.select(_sequence_column(plan).alias("sequence"), micros.alias("at")).collect()
        truncates = merge_truncates(tuple(Truncate(tuple(each["sequence"]), each["at"]) for each in few))
    if plan.watermark is not None:  # Snapshot rows do not count, because they have the time of reading.
        timed = marked.filter((column(OP) != Op.READ.value) & column(TS).isNotNull()).groupBy(TOPIC, PARTITION)
        each = timed.agg(sf.min(micros).alias("oldest"), sf.max(micros).alias("newest")).collect()
        watermark = {
            "oldest": min((group["oldest"] for group in each), default=None),
            "max_event_times": {TopicPartition(group[TOPIC], group[PARTITION]): group["newest"] for group in each},
        }
    return Facts(
        lowest=_to_sequence_key(row["lowest"]),
        highest=_to_sequence_key(row["highest"]),
        has_unchanged=row["unsent"] > 0,
        has_key_changes=row["moves"] > 0,
        has_doubtful_deletes=row["doubts"] > 0,
        has_deletes=row["deletes"] > 0,
        truncated_at=_to_sequence_key(row["clear_below"]) if plan.truncates else None,
        truncate_time=row["cleared_at"] if plan.truncates else None,
        newest=row["newest"],
        max_delete=_to_sequence_key(row["deleted"]) if plan.fold == "last" else None,
        truncates=truncates,
        **watermark,
    )


def _to_sequence_key(sequence: Row | None) -> SequenceKey | None:
    return None if sequence is None else tuple(sequence)
