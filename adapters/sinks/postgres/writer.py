"""Stages 2 to 4 of one write in the caller's transaction.

`apply.lane_progress` decides gaps, trimming, truncates, counts and the next state. The stages themselves are not those
of `apply.stages`, which read rows into this process:

- The server compares keys and values as its types do: `citext`, `char(n)`, collations. It completes values that no Arrow
  type can store.
- Rows of Spark are copied by its executors, and are never in this process.
- Most small writes need no stage 3. They are sent together with the commit, in one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from replicator.domain.errors import AMBIGUOUS_DELETE, AlreadyWritten, Fatal
from replicator.domain.event_log import make_duplicate_error
from replicator.domain.policy import CHANGE_POLICIES, EVENT_LOG_POLICY
from replicator.domain.policy.late_changes import advance_purge, find_lateness_limit, make_late_reject, needs_tombstones
from replicator.domain.policy.plan import (
    EVENT_ID,
    Counts,
    Facts,
    LaneState,
    find_highest,
    get_resent_limit,
    has_overlap,
    needs_reconcile,
)
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Lane, Write

from ...apply.lane_progress import (
    advance_position,
    advance_state,
    count_truncates,
    find_late_truncates,
    find_new_truncates,
    is_applied,
    refuse_gap,
)
from ...arrow.key_change import needs_target_row
from ...postgres.connection import planner_hints
from ...postgres.names import escape, quote_name
from ...sql.dialect import POSTGRES
from ...sql.reconcile import DUPLICATE, INCOMPLETE, LATE, SUPERSEDED, missing_values_reject, render_truncate
from .per_column import ServerPerColumn
from .refused_rows import RefusedRow, RowsWaiting, merge_with_bisection
from .row_provider import ArrowTargetRows, RowProvider, TargetRows, to_target_rows
from .scd2 import InProcessScd2, ServerScd2
from .target import STAGED_ROW, PostgresTarget

BULK_ROWS = 50_000
"""From this number of rows, one scan of the target is cheaper than a look-up per row, and the staging table is
analyzed."""


@dataclass
class WriteOutcome:
    """The result of a write: the lane's next state, its counts, and its rejects."""

    state: LaneState
    counts: Counts
    rejects: list[pa.Table] = field(default_factory=list)


class PendingStatements:
    """Statements for the next round trip, each with one parameter."""

    def __init__(self, cursor: psycopg.Cursor) -> None:
        self.cursor = cursor
        self._statements: list[tuple[bytes, str]] = []

    def add(self, statement: bytes, parameter: str) -> None:
        """Adds `statement` to the end."""
        self._statements.append((statement, parameter))

    def send(self) -> None:
        """Runs the pending statements; in a pipeline it does not wait for answers."""
        waiting, self._statements = self._statements, []
        for statement, parameter in waiting:
            self.cursor.execute(statement, (parameter,))

    def flush(self) -> None:
        """Runs the pending statements before a statement that may depend on them."""
        if self._statements:
            with self.cursor.connection.pipeline():
                self.send()


class PostgresWriter:
    """One write.

    - With `isolate`, a savepoint guards every step, and rows that the database refuses are left out as rejects.
    - Without `isolate`, such a row fails the whole transaction, which is then repeated with `isolate`.
    - With `may_wait`, rows that wait for other rows are not rejected: they raise `RowsWaiting`.
    """

    def __init__(
        self, pending: PendingStatements, target: PostgresTarget, generation: int, *, isolate: bool, may_wait: bool = False
    ) -> None:
        self._may_wait = may_wait
        self._pending = pending
        self._cursor = pending.cursor
        self._target = target
        self._generation = generation
        self._isolate = isolate

    def apply(self, write: Write[RowProvider], state: LaneState | None, applied_at: datetime) -> WriteOutcome:
        """Applies the write to `state`, the lane's committed state (locked by the caller)."""
        plan, facts, committed = write.plan, write.folded.facts, state or LaneState()
        refuse_gap(write, committed)
        refuse_existing_rows(self._cursor, write.lane, self._target.relation, write.span.start, committed.position)
        if is_applied(write, committed):
            return WriteOutcome(committed, Counts(duplicate=write.folded.rows))
        provided = write.folded.frame.provide_rows(write, committed, self._target, applied_at, isolate=self._isolate)
        before = advance_purge(plan, committed, write.at)
        if before != committed and before.purged_up_to is not None:
            self._pending.flush()
            self._cursor.execute(self._target.delete_tombstones(before.purged_up_to.max_sequence), prepare=False)
            if plan.soft_deletes:
                self._cursor.execute(self._target.delete_marked_rows(before.purged_up_to), prepare=False)
        counts = Counts(duplicate=provided.trimmed) + count_truncates(plan, facts, before, provided.truncates)
        # `advance_lane` calls `advance_purge` again, which then finds nothing to do.
        outcome = WriteOutcome(advance_lane(write, before), counts)
        for rows in provided.rejects:
            _reject(outcome, rows)
        if plan.has_column_versions:
            return self._write_per_column(provided.rows, write, before, outcome)
        self._apply_truncates(write, before)
        if plan.history:
            return self._write_versions(provided.rows, write, before, outcome, applied_at)
        if provided.rows.count:
            self._write_rows(provided.rows, write, before, outcome)
        return outcome

    def _apply_truncates(self, write: Write[RowProvider], before: LaneState) -> None:
        truncates = find_new_truncates(write.plan, write.folded.facts, before)
        if truncates:
            self._pending.flush()
        for truncate in truncates:
            statement = render_truncate(write.plan, POSTGRES, self._target.relation, truncate)
            self._cursor.execute(statement.encode(), prepare=False)

    def _write_rows(self, rows: TargetRows, write: Write[RowProvider], before: LaneState, outcome: WriteOutcome) -> None:
        plan, target, facts = self._target.plan, self._target, write.folded.facts
        reconciling = needs_reconcile(plan, facts, before)
        values = None
        if target.indexed and not reconciling and not self._isolate:
            values = rows.inline(target.conversions)
        if values is not None:
            # Few rows are sent together with the commit.
            self._pending.add(target.merge_inline(), values)
            if plan.reconcile.uses_tombstones and facts.has_deletes:
                self._pending.add(target.record_tombstones_inline(), values)
            outcome.counts += Counts(applied=rows.count)
            return
        self._pending.flush()
        target.create_temporary(self._cursor, self._generation, reconciled=reconciling)
        bulk = rows.count >= BULK_ROWS or not target.indexed
        refused_values = rows.copy_to_staging(
            self._cursor, target, target.list_columns(whole=reconciling), isolate=self._isolate
        )
        row_count = rows.count - self._reject_refused(rows, refused_values, outcome)
        if bulk:
            self._cursor.execute(target.analyze(whole=reconciling), prepare=False)
        with planner_hints(self._cursor, bulk=bulk):
            row_count -= self._delete_foreign_deletes(rows, facts, outcome)
            if reconciling:
                row_count = self._reconcile(rows, row_count, write, before, outcome)
            if bulk and reconciling:
                self._cursor.execute(target.analyze(whole=False, reconciled=True), prepare=False)
            refused_rows = self._merge_or_refuse(rows, reconciled=reconciling, bulk=bulk)
            row_count -= self._reject_refused(rows, refused_rows, outcome)
            outcome.counts += Counts(applied=row_count)
            if refused_rows:  # A delete that the database refused leaves no tombstone.
                relation = target.reconciled_table if reconciling else target.staging_table
                self._delete_staged(relation, [one.number for one in refused_rows])
            if plan.reconcile.uses_tombstones and facts.has_deletes:
                self._cursor.execute(target.record_tombstones(reconciled=reconciling))

    def _write_versions(
        self, rows: TargetRows, write: Write[RowProvider], before: LaneState, outcome: WriteOutcome, applied_at: datetime
    ) -> WriteOutcome:
        """Stages 2 to 4 for scd2. A constraint that refuses a version refuses the write, because neighbouring
        versions depend on it."""
        facts, target = write.folded.facts, self._target
        late_truncates = find_late_truncates(write.plan, facts, before)
        if not (rows.count or late_truncates) or facts.lowest is None:
            return outcome
        self._pending.flush()
        target.create_temporary(self._cursor, self._generation, reconciled=False)
        absorbed_matter = before.max_side_table_sequence is not None and has_overlap(facts, before)
        in_process = target.is_lossless and not (self._isolate or late_truncates or absorbed_matter)
        if in_process and isinstance(rows, ArrowTargetRows):
            return self._write_versions_in_process(rows.rows, write, before, outcome)
        versions = ServerScd2(self._cursor, target, applied_at)
        refused_rows = rows.copy_to_staging(self._cursor, target, target.list_columns(whole=True), isolate=self._isolate)
        row_count = rows.count - self._reject_refused(rows, refused_rows, outcome)
        bulk = rows.count >= BULK_ROWS
        if bulk:
            self._cursor.execute(target.analyze(whole=True), prepare=False)
        with planner_hints(self._cursor, bulk=bulk):
            row_count -= self._delete_foreign_deletes(rows, facts, outcome)
            totals = versions.judge_changes(
                facts.lowest,
                outcome.state.truncates,
                late_truncates,
                absorbed_matter=absorbed_matter,
                moves=facts.has_key_changes,
            )
            duplicate, incomplete = totals.get(DUPLICATE, 0), totals.get(INCOMPLETE, 0)
            outcome.counts += Counts(applied=row_count - duplicate - incomplete, duplicate=duplicate)
            if incomplete:
                sentences = {number: str(missing_values_reject(names or ())) for number, names in versions.read_incomplete()}
                _reject(outcome, rows.rejects(self._cursor, target, sentences))
            versions.write_versions()
            if versions.store_absorbed_changes():
                _note_absorbed(outcome, before, facts)
        return outcome

    def _write_versions_in_process(
        self, rows: pa.Table, write: Write[RowProvider], before: LaneState, outcome: WriteOutcome
    ) -> WriteOutcome:
        """Stages 2 to 4 for scd2, with stage 3 in this process. If the server refuses a row, the write is
        repeated with `isolate`, in the server."""
        facts = write.folded.facts
        versions = InProcessScd2(self._cursor, self._target)
        absorbed = []
        parts = versions.judge_parts(rows.drop_columns([STAGED_ROW]), facts, outcome.state.truncates)
        for part in versions.write_versions(parts):
            outcome.counts += replace(part.counts, rejected=0)
            _reject(outcome, part.rejects)
            absorbed.append(part.absorbed)
        if versions.store_absorbed_changes(pa.concat_tables(absorbed)):
            _note_absorbed(outcome, before, facts)
        return outcome

    def _write_per_column(
        self, target_rows: TargetRows, write: Write[RowProvider], before: LaneState, outcome: WriteOutcome
    ) -> WriteOutcome:
        """Stages 2 to 4 with a sequence for each column.

        A constraint that refuses a row refuses the write, because the row can be the result of several changes.
        """
        target, truncates = self._target, write.folded.facts.truncated_at is not None
        self._pending.flush()
        rows = self._drop_refused_values(target_rows, outcome)
        columns = ServerPerColumn(self._cursor, target)
        decision = columns.decide(rows, before.truncated_at, truncates=truncates)
        outcome.counts += decision.counts
        self._apply_truncates(write, before)
        columns.store_versions(decision.side_rows)
        written_rows = to_target_rows(decision.write)
        if not written_rows.count:
            return outcome
        target.create_temporary(self._cursor, self._generation, reconciled=False)
        written_rows.copy_to_staging(self._cursor, target, target.list_columns(whole=True), isolate=False)
        bulk = written_rows.count >= BULK_ROWS or not target.indexed
        if bulk:
            self._cursor.execute(target.analyze(whole=True), prepare=False)
        with planner_hints(self._cursor, bulk=bulk):
            if refused_rows := self._merge_or_refuse(written_rows, reconciled=False, bulk=bulk):
                raise refused_rows[0].error
        return outcome

    def _drop_refused_values(self, rows: TargetRows, outcome: WriteOutcome) -> pa.Table:
        """The changes in memory. With `isolate`, without changes that have a value the server refuses."""
        if not isinstance(rows, ArrowTargetRows):
            raise Fatal(f"lane {self._target.lane.id} has sequences per column, which only the local engine keeps")
        if not self._isolate:
            return rows.rows
        changes = to_target_rows(rows.rows.drop_columns([STAGED_ROW]))
        self._target.create_temporary(self._cursor, self._generation, reconciled=False)
        refused_rows = changes.copy_to_staging(
            self._cursor, self._target, self._target.list_columns(whole=True), isolate=True
        )
        self._reject_refused(changes, refused_rows, outcome)
        numbers = pa.array([one.number for one in refused_rows], pa.int32())
        return changes.rows.filter(pc.invert(pc.is_in(changes.rows[STAGED_ROW], value_set=numbers)))

    def _reconcile(
        self, rows: TargetRows, row_count: int, write: Write[RowProvider], before: LaneState, outcome: WriteOutcome
    ) -> int:
        """Stages 2 and 3 in the server; returns how many of the `row_count` staged rows apply."""
        facts, resent = write.folded.facts, get_resent_limit(self._target.plan, before, write.span)
        tombstones = needs_tombstones(self._target.plan, facts, before)
        below = find_lateness_limit(self._target.plan, facts, before)
        statement = self._target.reconcile(
            tombstones=tombstones, truncated_at=before.truncated_at, resent=resent, lateness=below
        )
        self._cursor.execute(statement, prepare=False)
        self._cursor.execute(self._target.count_verdicts())
        totals: dict[str, int] = dict(self._cursor.fetchall())
        superseded, duplicate = totals.get(SUPERSEDED, 0), totals.get(DUPLICATE, 0)
        given_up_count = totals.get(INCOMPLETE, 0) + totals.get(LATE, 0)
        outcome.counts += Counts(superseded=superseded, duplicate=duplicate)
        if given_up_count:
            self._cursor.execute(self._target.select_given_up())
            too_late = make_late_reject(write.lane.id)
            given_up_rows = self._cursor.fetchall()
            sentences = {
                number: str(too_late if verdict == LATE else missing_values_reject(names or ()))
                for number, verdict, names in given_up_rows
            }
            _reject(outcome, rows.rejects(self._cursor, self._target, sentences))
        return row_count - superseded - duplicate - given_up_count

    def _delete_foreign_deletes(self, rows: TargetRows, facts: Facts, outcome: WriteOutcome) -> int:
        """The number of staged deletes that belong, or may belong, to other rows than the target's; see
        `apply.reconcile_in_process`."""
        if not (facts.has_key_changes and needs_target_row(self._target.plan)):
            return 0
        count = self._cursor.execute(self._target.delete_foreign_deletes(), prepare=False).rowcount
        outcome.counts += Counts(superseded=count)
        if not facts.has_doubtful_deletes:
            return count
        ambiguous = [number for (number,) in self._cursor.execute(self._target.select_ambiguous_deletes(), prepare=False)]
        if ambiguous:
            _reject(outcome, rows.rejects(self._cursor, self._target, dict.fromkeys(ambiguous, str(AMBIGUOUS_DELETE))))
            self._delete_staged(self._target.staging_table, ambiguous)
        return count + len(ambiguous)

    def _merge_or_refuse(self, rows: TargetRows, *, reconciled: bool, bulk: bool) -> Sequence[RefusedRow]:
        """Stage 4; returns the refused rows, which are searched only with `isolate`."""
        if not self._isolate:
            self._cursor.execute(self._target.merge(reconciled=reconciled), prepare=not bulk)
            return ()
        refused_rows = merge_with_bisection(self._cursor, self._target, range(rows.bound), reconciled=reconciled)
        waiting = [one for one in refused_rows if one.waits]
        if waiting and self._may_wait:
            raise RowsWaiting(waiting[0].reject.sentence)
        return refused_rows

    def _delete_staged(self, relation: str, numbers: list[int]) -> None:
        query = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(sql.Identifier(relation), sql.Identifier(STAGED_ROW))
        self._cursor.execute(query, (numbers,))

    def _reject_refused(self, rows: TargetRows, refused_rows: Sequence[RefusedRow], outcome: WriteOutcome) -> int:
        """Rejects the rows that the database refused; returns their number."""
        if refused_rows:
            sentences = {one.number: str(one.reject) for one in refused_rows}
            _reject(outcome, rows.rejects(self._cursor, self._target, sentences))
        return len(refused_rows)


def refuse_existing_rows(cursor: psycopg.Cursor, lane: Lane, relation: str, start: Position, applied: Position) -> None:
    """Raises DataLoss when rows from `start` on are already in the table of a lane that inserts.

    This is checked for partitions that the lane starts to read there, because these rows would be inserted
    twice.
    """
    if lane.policy not in CHANGE_POLICIES | {EVENT_LOG_POLICY}:
        return
    is_log = lane.policy == EVENT_LOG_POLICY
    rows_by_position = relation
    if not is_log:
        # Read the position of each change from its event id.
        event_id = quote_name(EVENT_ID)
        rows_by_position = f"""(SELECT r.{event_id} AS event_id, m[1] AS topic, m[2]::int AS partition,
        m[3]::bigint AS "offset" FROM {relation} r, regexp_match(r.{event_id}, '^(.*)-([0-9]+)-([0-9]+)$') m) positions"""
    query = f"""SELECT 1 FROM {escape(rows_by_position)}
        WHERE starts_with(event_id, %s) AND topic = %s AND partition = %s AND "offset" >= %s LIMIT 1"""
    for partition, first in start.items():
        begins = (f"{partition.topic}-{partition.partition}-", partition.topic, partition.partition, first)
        if partition in applied or not cursor.execute(query.encode(), begins).fetchone():
            continue
        ends = f'SELECT topic, partition, max("offset") + 1 FROM {rows_by_position} GROUP BY 1, 2'
        written_ends = Position({TopicPartition(t, p): end for t, p, end in cursor.execute(ends.encode())})
        if is_log:
            raise make_duplicate_error(lane.id, partition, written_ends)
        raise AlreadyWritten(
            f"_replicator.positions has no position of lane {lane.id} in {partition}, but table {relation} has rows of it, "
            "which would be appended again",
            lane=lane.id,
            step=f"Restore the lane's row of _replicator.positions, load the table again with `replicator lanes resync "
            f"{lane.id}`, or keep its rows and continue after them",
            ends=written_ends,
        )


def advance_lane(write: Write[Any], before: LaneState) -> LaneState:
    """The lane's state after a write to `before`. Absorbed changes are not part of it."""
    plan, facts = write.plan, write.folded.facts
    recorded = facts.highest if facts.has_deletes and plan.reconcile.uses_tombstones else None
    after = advance_state(plan, advance_purge(plan, before, write.at), facts, recorded, write.at)
    return advance_position(after, write)


def _note_absorbed(outcome: WriteOutcome, before: LaneState, facts: Facts) -> None:
    highest = find_highest(before.max_side_table_sequence, facts.highest)
    outcome.state = replace(outcome.state, max_side_table_sequence=highest)


def _reject(outcome: WriteOutcome, rows: pa.Table) -> None:
    if rows.num_rows:
        outcome.rejects.append(rows)
        outcome.counts += Counts(rejected=rows.num_rows)
