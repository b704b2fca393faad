"""Stages 2 to 4 on Spark for scd2 tables, with frames on the executors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, UNCHANGED
from replicator.domain.policy.plan import (
    CDC_UNSENT,
    ApplyPlan,
    Counts,
    LaneState,
    cdc_sequence_columns,
    has_overlap,
    merge_truncates,
)
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.ports.frames import Write

from ....apply.lane_progress import find_late_truncates
from ....delta.partitions import Partitions
from ....delta.tables import source_name
from ....spark.frames import cache_frame, column, filter_rows, get_facts, keep_parents, read_version, run_select
from ....spark.key_change_deletes import drop_foreign_deletes
from ....spark.rows import incomplete_reason, to_rejects
from ....spark.session import LazySession
from ....sql.dialect import SPARK
from ....sql.reconcile import APPLY, DUPLICATE, INCOMPLETE, VERDICT
from ....sql.scd2 import absorbed_select, events_select, versions_select
from ....sql.scd2_events import CHANGE, KIND, ROW_NUMBER, Scd2Input, carried_columns, render_truncates, select_candidates
from .side_tables import SparkSideTables


@dataclass(frozen=True, slots=True)
class SparkDecision:
    """The result of stage 3, for plans of any kind.

    - `rows`: rows for stage 4, which match only rows of `partitions`. `has_rows`: there are any.
    - `counts`: every row that fits the table, once.
    - `rejects`: rows with `_error`, or None.
    - `recorded`, `version`: the highest sequence that was stored in the side table, and the version of that table; None if
      there is none.
    """

    rows: DataFrame
    has_rows: bool
    counts: Counts
    rejects: DataFrame | None = None
    recorded: SequenceKey | None = None
    version: int | None = None
    partitions: Partitions = field(default_factory=dict)


class SparkScd2:
    """Stage 3 of scd2 lanes: the rows to write and the absorbed changes."""

    def __init__(self, session: LazySession, side_tables: SparkSideTables) -> None:
        self._session = session
        self._side_tables = side_tables

    def compute_versions(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame
    ) -> SparkDecision:
        """Stage 3 of a rows frame that fits the table. Absorbed changes are stored on return."""
        plan, facts = write.plan, write.folded.facts
        lowest = facts.lowest or ()
        # The order of arrival is the physical order. Stored, since a sort that is repeated may divide its rows otherwise.
        rows = cache_frame(keep_parents(rows.withColumn(ROW_NUMBER, sf.monotonically_increasing_id()), rows))
        late_truncates = find_late_truncates(plan, facts, state)
        moves, run = facts.has_key_changes, partial(run_select, self._session.spark)
        table = read_version(self._session.spark, snapshot.table_uri, snapshot.version())

        def select_related(names: Mapping[str, str]) -> str:
            target, changes = names["table"], names["rows"]
            return select_candidates(plan, SPARK, target, changes, lowest, moves=moves, truncates=late_truncates)

        related = cache_frame(run(select_related, {"table": table, "rows": rows}))
        rows, others, ambiguous = drop_foreign_deletes(plan, facts, rows, related)
        overlaps = has_overlap(facts, state)
        absorbed = (
            self._side_tables.lookup_absorbed(write.lane, plan, rows, related, state.position, again=write.out_of_band)
            if overlaps and state.max_side_table_sequence is not None
            else None
        )
        later = render_truncates(merge_truncates(state.truncates, facts.truncates), SPARK, lowest)
        relations = {"rows": rows, "related": related} | ({} if absorbed is None else {"absorbed": absorbed})
        stored = [frame for frame in (related, absorbed) if frame is not None] if overlaps else []
        missing = _list_missing_columns(plan, write, stored)

        applied_at = SPARK.instant(round(time.time() * 1_000_000))

        def make_input(names: Mapping[str, str]) -> Scd2Input:
            related, absorbed = names["related"], names.get("absorbed")
            return Scd2Input(names["rows"], related, absorbed, lowest, later, missing, moves=moves, applied_at=applied_at)

        events = run(lambda names: events_select(plan, SPARK, make_input(names)), relations)
        events = cache_frame(keep_parents(events, *relations.values()))
        totals: dict[str, int] = dict(events.filter(column(KIND) == CHANGE).groupBy(VERDICT).count().collect())
        scd2_input, event_relations = make_input(dict.fromkeys(("rows", "related", "absorbed"), "")), {"events": events}
        versions = run(lambda names: versions_select(plan, SPARK, scd2_input, names["events"]), event_relations)
        changes = run(lambda names: absorbed_select(plan, SPARK, scd2_input, names["events"]), event_relations)
        recorded = facts.highest if self._side_tables.record(write.lane, plan, keep_parents(changes, events)) else None
        incomplete = totals.get(INCOMPLETE, 0)
        bad = incomplete + (ambiguous.count() if ambiguous else 0)
        counts = Counts(applied=totals.get(APPLY, 0), duplicate=totals.get(DUPLICATE, 0), rejected=bad, superseded=others)
        rejects = to_rejects(_select_rejects(plan, rows, events) if incomplete else None, ambiguous)
        written_rows = cache_frame(keep_parents(versions, events))
        return SparkDecision(written_rows, counts.applied > 0, counts, rejects, recorded)


def _list_missing_columns(plan: ApplyPlan, write: Write[DataFrame], stored: list[DataFrame]) -> tuple[str, ...]:
    """The columns that some event did not send.

    For the batch this is known. `stored`: versions and absorbed changes, if a change may come before them.
    """
    facts = get_facts(write.folded.frame)
    missing = set(facts.unsent) if facts is not None else set()
    batch = [] if facts is not None else [write.folded.frame.withColumn(CDC_UNSENT, column(UNCHANGED))]
    for frame in [*stored, *batch]:
        names = frame.select(sf.explode(column(CDC_UNSENT)).alias("name")).distinct()
        missing |= {row["name"] for row in names.collect()}
    # The changes of the batch name columns as the source does.
    return tuple(n for n in carried_columns(plan) if not missing.isdisjoint((n, source_name(n))))


def _select_rejects(plan: ApplyPlan, rows: DataFrame, events: DataFrame) -> DataFrame:
    """The rows that cannot be completed, with `_error`."""
    names = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), ROW_NUMBER]
    lost = filter_rows(events, (column(KIND) == CHANGE) & (column(VERDICT) == INCOMPLETE)).select([column(n) for n in names])
    return keep_parents(rows.join(lost, names, "left_semi").withColumn(ERROR, incomplete_reason()), rows, events)
