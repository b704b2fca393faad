"""Stages 2 to 4 for tables that keep every version of a row."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.plan import Counts, LaneState, overlaps, united_cuts
from replicator.ports.frames import Write

from ..sql.local_history import Versions, versions
from .fit import REJECTED, as_rejects, filled
from .marks import DeltaMarks
from .merge import write_stage
from .partitions import nameable, partition_columns
from .related import related_versions
from .staged import Staged, late_cuts, moved_on, new_cuts, truncated
from .tables import schema_of


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows frame of a write as far as it fits the table, with `_place` (their numbers in `frame`); those that do not, as
    `fit.REJECTED`; how many of the write were applied before; and how many truncates are no rows."""

    frame: pa.Table
    fitting: pa.Table
    unfit: pa.Table
    trimmed: int
    truncates: int


class Histories:
    """Stages the writes of lanes that keep versions."""

    def __init__(self, marks: DeltaMarks) -> None:
        self._marks = marks

    def stage(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: Rows) -> Staged:
        """See `lane.Stages.stage`. What is to be remembered beside the target is there on return."""
        plan, facts = write.plan, write.folded.facts
        good, holes = filled(rows.fitting, plan, schema_of(snapshot))
        good, nameless = nameable(good, plan, partition_columns(snapshot))
        done = self._versions(snapshot, state, write, good)
        recorded = self._marks.record(write.lane, plan, done.marks)
        refused = rows.unfit.num_rows + holes.num_rows + nameless.num_rows
        counts = done.counts + Counts(rejected=refused, duplicate=rows.trimmed)
        operation = write_stage(plan, done.write, None, new_cuts(facts, state))
        rejects = as_rejects(rows.frame, rows.unfit, holes, nameless, done.rejects)
        return Staged(
            operation, moved_on(plan, state, facts, recorded), counts + truncated(facts, state, rows.truncates), rejects
        )

    def _versions(self, snapshot: DeltaTable, state: LaneState, write: Write[pa.Table], rows: pa.Table) -> Versions:
        plan, facts = write.plan, write.folded.facts
        late = late_cuts(facts, state)
        if not (rows.num_rows or late) or facts.lowest is None or plan.history is None:
            return Versions(rows.slice(0, 0), pa.array([], pa.bool_()), rows.slice(0, 0), REJECTED.empty_table(), Counts())
        cuts = united_cuts(state.cuts, facts.cuts)
        related = related_versions(snapshot, plan, rows, facts.lowest, late)
        marks = self._remembered(state, write, rows, related)
        return versions(plan, plan.history, rows, related, marks, lowest=facts.lowest, cuts=cuts)

    def _remembered(self, state: LaneState, write: Write[pa.Table], rows: pa.Table, related: pa.Table) -> pa.Table | None:
        """What is not shown matters to changes that are late only."""
        if state.ledger_high is None or not overlaps(write.folded.facts, state):
            return None
        return self._marks.lookup(write.lane, write.plan, rows, related, state.position, again=write.beside)
