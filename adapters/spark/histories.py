"""Stages 2 to 4 on Spark for tables that keep every version of a row: `adapters.delta.histories` for frames that stay on the
executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replicator.domain.change import ERROR, OFFSET, UNSENT
from replicator.domain.plan import (
    CDC_UNSENT,
    ApplyPlan,
    Counts,
    Cut,
    LaneState,
    cdc_sequence_columns,
    overlaps,
    united_cuts,
)
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.ports.frames import Write

from ..delta.staged import late_cuts
from ..sql.dialect import SPARK
from ..sql.history import events_select, marks_select, versions_select
from ..sql.history_events import CHANGE, KIND, PLACE, Known, carried, related_select
from ..sql.repair import APPLY, DUPLICATE, INCOMPLETE, VERDICT
from .departures import without_others
from .frames import column, derived, kept, selected, where
from .known import known_of
from .marks import SparkMarks
from .rows import as_rejects, incomplete
from .session import Session
from .stores import place


@dataclass(frozen=True, slots=True)
class Versions:
    """`write`: rows for stage 4. `rejects`: rows that cannot be completed, None where there are none. `counts`: every row.
    `recorded`: the highest sequence of what is remembered now, None where nothing was added."""

    write: DataFrame
    rejects: DataFrame | None
    counts: Counts
    recorded: SequenceKey | None


class SparkHistories:
    """Stage 3 of lanes that keep versions, up to what is to be written and what is to be remembered."""

    def __init__(self, session: Session, marks: SparkMarks) -> None:
        self._session = session
        self._marks = marks

    def versions(
        self, snapshot: DeltaTable, state: LaneState, write: Write[DataFrame], rows: DataFrame, applied_at: datetime
    ) -> Versions:
        """What becomes of the rows of a rows frame, which fit the table. What is to be remembered beside the target is there
        on return."""
        plan, facts = write.plan, write.folded.facts
        lowest = facts.lowest or ()
        rows = derived(rows.withColumn(PLACE, column(OFFSET)), rows)
        crossing = late_cuts(facts, state)
        related = kept(self._related(snapshot, plan, rows, lowest, crossing, moves=facts.moves))
        rows, others, untold = without_others(plan, facts, rows, related)
        late = state.ledger_high is not None and overlaps(facts, state)
        marks = self._marks.lookup(write.lane, plan, rows, related, state.position, again=write.beside) if late else None
        cuts = united_cuts(state.cuts, facts.cuts)
        relations = {"rows": rows, "related": related} | ({} if marks is None else {"marks": marks})
        lacking = _lacking(plan, write, related, marks)

        def known(names: Mapping[str, str]) -> Known:
            return _known(plan, names, cuts, lowest, lacking, moves=facts.moves, applied_at=applied_at)

        events = self._selected(lambda names: events_select(plan, SPARK, known(names)), relations)
        events = kept(derived(events, *relations.values()))
        seen: dict[str, int] = dict(events.filter(column(KIND) == CHANGE).groupBy(VERDICT).count().collect())
        found, made = known(dict.fromkeys(("rows", "related", "marks"), "")), {"events": events}
        written = self._selected(lambda names: versions_select(plan, SPARK, found, names["events"]), made)
        hidden = self._selected(lambda names: marks_select(plan, SPARK, found, names["events"]), made)
        recorded = facts.highest if self._marks.record(write.lane, plan, derived(hidden, events)) else None
        incomplete = seen.get(INCOMPLETE, 0)
        rejected = incomplete + (untold.count() if untold else 0)
        counts = Counts(applied=seen.get(APPLY, 0), duplicate=seen.get(DUPLICATE, 0), rejected=rejected, superseded=others)
        rejects = as_rejects(_rejected(plan, rows, events) if incomplete else None, untold)
        return Versions(kept(derived(written, events)), rejects, counts, recorded)

    def _selected(self, select: object, relations: Mapping[str, DataFrame]) -> DataFrame:
        return selected(self._session.spark, select, relations)  # type: ignore[arg-type]

    def _related(
        self,
        snapshot: DeltaTable,
        plan: ApplyPlan,
        rows: DataFrame,
        lowest: SequenceKey,
        crossing: Sequence[SequenceKey],
        *,
        moves: bool,
    ) -> DataFrame:
        reader = self._session.spark.read.format("delta").option("versionAsOf", snapshot.version())
        table = reader.load(place(snapshot.table_uri))
        return self._selected(
            lambda names: related_select(plan, SPARK, names["table"], names["rows"], lowest, moves=moves, cuts=crossing),
            {"table": table, "rows": rows},
        )


def _known(
    plan: ApplyPlan,
    names: Mapping[str, str],
    cuts: Sequence[Cut],
    lowest: SequenceKey,
    lacking: tuple[str, ...],
    *,
    moves: bool,
    applied_at: datetime,
) -> Known:
    history = plan.history
    if history is None:
        raise TypeError(f"policy {plan.policy} keeps no versions")
    return Known(
        rows=names["rows"],
        related=names["related"],
        marks=names.get("marks"),
        lowest=lowest,
        cuts=[(cut.sequence, _instant(cut.at)) for cut in cuts if cut.sequence >= lowest],
        values=carried(plan),
        compared=history.tracked,
        untracked=history.untracked,
        lacking=lacking,
        moves=moves,
        applied_at=_instant(round(applied_at.timestamp() * 1_000_000)),
    )


def _lacking(plan: ApplyPlan, write: Write[DataFrame], related: DataFrame, marks: DataFrame | None) -> tuple[str, ...]:
    """The columns that some event did not send. Of the batch that is known; versions and what is remembered are asked only
    where a change may come before them."""
    known = known_of(write.folded.frame)
    found = set(known.unsent) if known is not None else set()
    asked = [] if marks is None else [related, marks]
    if known is None:
        asked.append(write.folded.frame.withColumn(CDC_UNSENT, column(UNSENT)))
    for frame in asked:
        names = frame.select(sf.explode(column(CDC_UNSENT)).alias("name")).distinct()
        found |= {row["name"] for row in names.collect()}
    return tuple(n for n in carried(plan) if n in found)


def _rejected(plan: ApplyPlan, rows: DataFrame, events: DataFrame) -> DataFrame:
    """The rows that cannot be completed, with `_error`."""
    names = [*plan.table.keys, *cdc_sequence_columns(plan.table.sequence), PLACE]
    lost = where(events, (column(KIND) == CHANGE) & (column(VERDICT) == INCOMPLETE)).select([column(n) for n in names])
    return derived(rows.join(lost, names, "left_semi").withColumn(ERROR, incomplete()), rows, events)


def _instant(micros: int | None) -> str:
    return "CAST(NULL AS TIMESTAMP)" if micros is None else f"timestamp_micros({micros})"
