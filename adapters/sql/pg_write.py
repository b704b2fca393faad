"""Stages 2 to 4 of one write inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from replicator.domain.errors import AMBIGUOUS_DELETE, AlreadyWritten, DataLoss, Fatal
from replicator.domain.event_log import already_logged
from replicator.domain.plan import (
    EVENT_ID,
    Counts,
    Cut,
    Facts,
    LaneState,
    highest,
    needs_repair,
    overlaps,
    resent_below,
    united_cuts,
)
from replicator.domain.position import Position, TopicPartition
from replicator.domain.retention import can_be_late, deletes_after, forgetting, late, recalls
from replicator.domain.sequence import SequenceValue
from replicator.domain.watermark import reached_after
from replicator.ports.frames import Lane, Write

from ..arrow.departures import asks_target
from .pg_columns import ColumnsInServer, changed_keys
from .pg_connection import planning
from .pg_history import VersionsInServer
from .pg_names import quoted
from .pg_refused import Refused, Waiting, merge_bisecting
from .pg_supply import Entered, Rows, RowsInMemory, Supply, numbered
from .pg_target import ROW, Target
from .pg_versions_here import VersionsHere
from .repair import DUPLICATE, INCOMPLETE, LATE, SUPERSEDED, not_sent

BULK_ROWS = 50_000
"""From here on one scan of the target is cheaper than a look-up per row; statistics of the staging table then matter."""


@dataclass
class Outcome:
    """What a write came to: the lane's next state, its counts, and the rows it gives up."""

    state: LaneState
    counts: Counts
    rejects: list[pa.Table] = field(default_factory=list)


class Pending:
    """Statements that wait for the next round trip, each with one parameter."""

    def __init__(self, cursor: psycopg.Cursor) -> None:
        self.cursor = cursor
        self._statements: list[tuple[bytes, str]] = []

    def add(self, statement: bytes, parameter: str) -> None:
        """Run `statement` later, in its turn."""
        self._statements.append((statement, parameter))

    def send(self) -> None:
        """Run what waits; within a pipeline without waiting for the answers."""
        waiting, self._statements = self._statements, []
        for statement, parameter in waiting:
            self.cursor.execute(statement, (parameter,))

    def flush(self) -> None:
        """Run what waits, before a statement that may depend on it."""
        if self._statements:
            with self.cursor.connection.pipeline():
                self.send()


class Writing:
    """One write on its way. With `careful` every step is guarded by a savepoint, and rows that the database refuses are
    found and left out; without, such a row fails the whole transaction, which is then done again with care. With `patient`
    rows that wait for other rows are not left out: they raise `Waiting`."""

    def __init__(self, pending: Pending, target: Target, generation: int, *, careful: bool, patient: bool = False) -> None:
        self._patient = patient
        self._pending = pending
        self._cursor = pending.cursor
        self._target = target
        self._generation = generation
        self._careful = careful

    def apply(self, write: Write[Supply], state: LaneState | None, applied_at: datetime) -> Outcome:
        """Do the write on top of `state`, the lane's committed state (locked by the caller)."""
        before = state or LaneState()
        refuse_gap(write, before.position)
        refuse_written(self._cursor, write.lane, self._target.relation, write.span.start, before.position)
        if is_applied(write, before):
            return Outcome(before, Counts(duplicate=write.folded.rows))
        entered = write.folded.frame.entered(write, before, self._target, applied_at, careful=self._careful)
        before = self._forgetting(write, before)
        facts = write.folded.facts
        outcome = Outcome(advanced(before, write, self._target), Counts(duplicate=entered.trimmed))
        for rows in entered.rejects:
            _reject(outcome, rows)
        if write.plan.history:
            return self._versions(entered, write, before, outcome, applied_at)
        if write.plan.by_column:
            return self._columns(entered, write, before, outcome)
        if facts.clear_below is not None and write.plan.truncates:
            self._pending.flush()
            self._cursor.execute(self._target.clear(Cut(facts.clear_below, facts.cleared_at)), prepare=False)
            outcome.counts += _truncated(entered.truncates, facts.clear_below, before.floor)
        if entered.rows.count:
            self._write(entered.rows, write, before, outcome)
        return outcome

    def _forgetting(self, write: Write[Supply], before: LaneState) -> LaneState:
        """The state that the write is judged under. What it forgets is gone before anything else is looked at."""
        after = forgetting(write.plan, before, write.at)
        if after != before and after.forgotten is not None and self._target.ledger is not None:
            self._pending.flush()
            self._cursor.execute(self._target.forget(after.forgotten.high), prepare=False)
            if write.plan.soft_deletes:
                self._cursor.execute(self._target.forget_rows(after.forgotten), prepare=False)
        return after

    def _write(self, rows: Rows, write: Write[Supply], before: LaneState, outcome: Outcome) -> None:
        plan, target, facts = self._target.plan, self._target, write.folded.facts
        repairing = needs_repair(plan, facts, before)
        if not repairing and not self._careful and self._inlined(rows, facts, outcome):
            return
        self._pending.flush()
        target.make_temporary(self._cursor, self._generation, repaired=repairing)
        bulk = rows.count >= BULK_ROWS or not target.indexed
        refused = rows.stage(self._cursor, target, target.names(whole=repairing), careful=self._careful)
        left = rows.count - self._given_up(rows, refused, outcome)
        if bulk:
            self._cursor.execute(target.analyze(whole=repairing), prepare=False)
        with planning(self._cursor, bulk=bulk):
            left -= self._left_out(rows, facts, outcome)
            if repairing:
                left = self._repaired(rows, left, write, before, outcome)
            if bulk and repairing:
                self._cursor.execute(target.analyze(whole=False, repaired=True), prepare=False)
            self._merged(rows, left, outcome, repairing, bulk)
            if plan.repair.ledger and facts.deletes:
                self._cursor.execute(target.remember(repaired=repairing))

    def _versions(
        self, entered: Entered, write: Write[Supply], before: LaneState, outcome: Outcome, applied_at: datetime
    ) -> Outcome:
        """Stages 2 to 4 of a history. A constraint that refuses a version refuses the write: its neighbours depend on it."""
        facts, target, rows = write.folded.facts, self._target, entered.rows
        known = {cut.sequence for cut in before.cuts}
        new = [cut for cut in facts.cuts if cut.sequence not in known]
        outcome.counts += Counts(applied=len(new), duplicate=entered.truncates - len(new))
        self._pending.flush()
        versions = VersionsInServer(self._cursor, target, applied_at)
        versions.end(new)
        crossing = [cut.sequence for cut in new if before.high is not None and cut.sequence <= before.high]
        if not (rows.count or crossing) or facts.lowest is None:
            return outcome
        target.make_temporary(self._cursor, self._generation, repaired=False)
        late = before.ledger_high is not None and overlaps(facts, before)
        here = target.keeps_as_is and not (self._careful or crossing or late)
        if here and isinstance(rows, RowsInMemory):
            return self._versions_here(rows.rows, write, before, outcome)
        refused = rows.stage(self._cursor, target, target.names(whole=True), careful=self._careful)
        left = rows.count - self._given_up(rows, refused, outcome)
        bulk = rows.count >= BULK_ROWS
        if bulk:
            self._cursor.execute(target.analyze(whole=True), prepare=False)
        with planning(self._cursor, bulk=bulk):
            left -= self._left_out(rows, facts, outcome)
            seen = versions.judge(facts.lowest, outcome.state.cuts, crossing, late=late, moves=facts.moves)
            duplicate, incomplete = seen.get(DUPLICATE, 0), seen.get(INCOMPLETE, 0)
            outcome.counts += Counts(applied=left - duplicate - incomplete, duplicate=duplicate)
            if incomplete:
                lacking = {number: str(not_sent(names or ())) for number, names in versions.incomplete()}
                _reject(outcome, rows.rejects(self._cursor, target, lacking))
            versions.write()
            if versions.remember():
                outcome.state = replace(outcome.state, ledger_high=highest(before.ledger_high, facts.highest))
        return outcome

    def _versions_here(self, rows: pa.Table, write: Write[Supply], before: LaneState, outcome: Outcome) -> Outcome:
        """Stages 2 to 4 of a history whose stage 3 this process can do. A row that the server refuses has the write done
        again with care, and in the server."""
        facts = write.folded.facts
        versions = VersionsHere(self._cursor, self._target)
        marks = []
        for done in versions.write(versions.judged(rows.drop_columns([ROW]), facts, outcome.state.cuts)):
            outcome.counts += replace(done.counts, rejected=0)
            _reject(outcome, done.rejects)
            marks.append(done.marks)
        if versions.remember(pa.concat_tables(marks)):
            outcome.state = replace(outcome.state, ledger_high=highest(before.ledger_high, facts.highest))
        return outcome

    def _columns(self, entered: Entered, write: Write[Supply], before: LaneState, outcome: Outcome) -> Outcome:
        """Stages 2 to 4 with a sequence for each column. A constraint that refuses a row refuses the write: several changes
        may have made it."""
        facts, target = write.folded.facts, self._target
        self._pending.flush()
        rows = self._acceptable(entered.rows, outcome)
        columns, cut = ColumnsInServer(self._cursor, target), facts.clear_below
        rows, done = columns.decided(rows, before.floor, truncates=cut is not None)
        outcome.counts += done.counts
        if cut is not None:
            self._cursor.execute(target.clear(Cut(cut, facts.cleared_at)), prepare=False)
        columns.keep(changed_keys(rows, done, target.plan.table.keys), list(done.beside.values()))
        written = numbered(done.write)
        if not written.count:
            return outcome
        target.make_temporary(self._cursor, self._generation, repaired=False)
        written.stage(self._cursor, target, target.names(whole=True), careful=False)
        bulk = written.count >= BULK_ROWS or not target.indexed
        if bulk:
            self._cursor.execute(target.analyze(whole=True), prepare=False)
        with planning(self._cursor, bulk=bulk):
            if refused := self._refused(written, repaired=False, bulk=bulk):
                raise refused[0].error
        return outcome

    def _acceptable(self, rows: Rows, outcome: Outcome) -> pa.Table:
        """The changes in memory, without those of which the server refuses a value; found with care only."""
        if not isinstance(rows, RowsInMemory):
            raise Fatal(f"lane {self._target.lane.id} has sequences per column, which only the local engine keeps")
        if not self._careful:
            return rows.rows
        changes = numbered(rows.rows.drop_columns([ROW]))
        self._target.make_temporary(self._cursor, self._generation, repaired=False)
        refused = changes.stage(self._cursor, self._target, self._target.names(whole=True), careful=True)
        self._given_up(changes, refused, outcome)
        left = pc.invert(pc.is_in(changes.rows[ROW], value_set=pa.array([one.number for one in refused], pa.int32())))
        return changes.rows.filter(left)

    def _inlined(self, rows: Rows, facts: Facts, outcome: Outcome) -> bool:
        """Few rows are written by a statement that waits for the commit, to travel with it."""
        values = rows.inline(self._target.fits) if self._target.indexed else None
        if values is None:
            return False
        self._pending.add(self._target.merge_inline(), values)
        if self._target.plan.repair.ledger and facts.deletes:
            self._pending.add(self._target.remember_inline(), values)
        outcome.counts += Counts(applied=rows.count)
        return True

    def _repaired(self, rows: Rows, left: int, write: Write[Supply], before: LaneState, outcome: Outcome) -> int:
        """Stages 2 and 3 in the server; returns how many of the `left` staged rows apply."""
        facts, resent = write.folded.facts, resent_below(self._target.plan, before, write.span)
        ledger = self._target.ledger is not None and recalls(self._target.plan, facts, before)
        below = can_be_late(self._target.plan, facts, before)
        repair = self._target.repair(ledger=ledger, floor=before.floor, resent=resent, forgetting=below)
        self._cursor.execute(repair, prepare=False)
        self._cursor.execute(self._target.verdicts())
        seen: dict[str, int] = dict(self._cursor.fetchall())
        superseded, duplicate = seen.get(SUPERSEDED, 0), seen.get(DUPLICATE, 0)
        given_up = seen.get(INCOMPLETE, 0) + seen.get(LATE, 0)
        outcome.counts += Counts(superseded=superseded, duplicate=duplicate)
        if given_up:
            self._cursor.execute(self._target.given_up())
            too_late = late(write.lane.id)
            found = self._cursor.fetchall()
            why = {number: str(too_late if said == LATE else not_sent(names or ())) for number, said, names in found}
            _reject(outcome, rows.rejects(self._cursor, self._target, why))
        return left - superseded - duplicate - given_up

    def _left_out(self, rows: Rows, facts: Facts, outcome: Outcome) -> int:
        """How many staged rows are deletes of other rows than the target's (`departures`), or may be."""
        if not (facts.moves and asks_target(self._target.plan)):
            return 0
        found = self._cursor.execute(self._target.leave(), prepare=False).rowcount
        outcome.counts += Counts(superseded=found)
        if not facts.doubts:
            return found
        untold = [number for (number,) in self._cursor.execute(self._target.untold(), prepare=False)]
        if untold:
            _reject(outcome, rows.rejects(self._cursor, self._target, dict.fromkeys(untold, str(AMBIGUOUS_DELETE))))
            self._take_out(self._target.stage, untold)
        return found + len(untold)

    def _merged(self, rows: Rows, left: int, outcome: Outcome, repaired: bool, bulk: bool) -> None:
        refused = self._refused(rows, repaired=repaired, bulk=bulk)
        left -= self._given_up(rows, refused, outcome)
        outcome.counts += Counts(applied=left)
        self._forget(refused, repaired)

    def _refused(self, rows: Rows, *, repaired: bool, bulk: bool) -> Sequence[Refused]:
        """Stage 4; the rows that are refused, which are looked for with care only."""
        if not self._careful:
            self._cursor.execute(self._target.merge(repaired=repaired), prepare=not bulk)
            return ()
        refused = merge_bisecting(self._cursor, self._target, range(rows.bound), repaired=repaired)
        waiting = [one for one in refused if one.waits]
        if waiting and self._patient:
            raise Waiting(waiting[0].reject.sentence)
        return refused

    def _forget(self, refused: Sequence[Refused], repaired: bool) -> None:
        """A delete that the database refused is not remembered."""
        if refused:
            relation = self._target.repaired if repaired else self._target.stage
            self._take_out(relation, [one.number for one in refused])

    def _take_out(self, relation: str, numbers: list[int]) -> None:
        query = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(sql.Identifier(relation), sql.Identifier(ROW))
        self._cursor.execute(query, (numbers,))

    def _given_up(self, rows: Rows, refused: Sequence[Refused], outcome: Outcome) -> int:
        """Rejects what the database refused; returns how many rows that were."""
        if refused:
            sentences = {one.number: str(one.reject) for one in refused}
            _reject(outcome, rows.rejects(self._cursor, self._target, sentences))
        return len(refused)


def _places_of_rows(relation: str) -> str:
    """The rows of a table that was appended to, each with where its change came from, as it is said in a FROM clause."""
    return f"""(SELECT r.{quoted(EVENT_ID)} AS event_id, m[1] AS topic, m[2]::int AS partition, m[3]::bigint AS "offset"
        FROM {relation} r, regexp_match(r.{quoted(EVENT_ID)}, '^(.*)-([0-9]+)-([0-9]+)$') m) places"""


def refuse_written(cursor: psycopg.Cursor, lane: Lane, relation: str, start: Position, applied: Position) -> None:
    """Raise DataLoss when the table of a lane that inserts has what comes from `start` on, or later changes, of partitions
    that the lane begins there: they would be inserted again."""
    if lane.policy not in ("append", "event_log"):
        return
    is_log = lane.policy == "event_log"
    places = relation if is_log else _places_of_rows(relation)
    query = f"""SELECT 1 FROM {places.replace("%", "%%")}
        WHERE starts_with(event_id, %s) AND topic = %s AND partition = %s AND "offset" >= %s LIMIT 1"""
    for place, first in start.items():
        begins = (f"{place.topic}-{place.partition}-", place.topic, place.partition, first)
        if place in applied or not cursor.execute(query.encode(), begins).fetchone():
            continue
        ends = f'SELECT topic, partition, max("offset") + 1 FROM {places} GROUP BY 1, 2'
        known = Position({TopicPartition(t, p): end for t, p, end in cursor.execute(ends.encode())})
        if is_log:
            raise already_logged(lane.id, place, known)
        raise AlreadyWritten(
            f"table {relation} has rows that were appended before, and they would be appended again: "
            f"_replicator.positions has no position of lane {lane.id} in {place}",
            lane=lane.id,
            step=f"Restore the lane's row of _replicator.positions, load the table again with `replicator lanes resync "
            f"{lane.id}`, or keep its rows and go on behind them",
            ends=known,
        )


def refuse_gap(write: Write[Any], applied: Position) -> None:
    """Raise DataLoss when records between what was applied and this write are missing."""
    gaps = write.span.gaps(applied)
    if gaps:
        first = gaps[0]
        raise DataLoss(
            f"lane {write.lane.id} stands at offset {applied[first]} of {first}, and the next records begin at "
            f"{write.span.start[first]}",
            next_step=f"Reload the target with `replicator lanes resync {write.lane.id}`.",
        )


def is_applied(write: Write[Any], before: LaneState) -> bool:
    """Nothing of the write is above the lane's position."""
    return not write.beside and bool(before.position) and not write.span.after(before.position)


def advanced(before: LaneState, write: Write[Any], target: Target) -> LaneState:
    """The lane's state after the write."""
    before = forgetting(write.plan, before, write.at)
    facts, plan = write.folded.facts, write.plan
    deleted = facts.highest if facts.deletes and plan.repair.ledger and target.ledger else None
    return replace(
        before,
        position=before.position.advanced_to(write.span.end),
        high=highest(before.high, facts.highest),
        floor=highest(before.floor, facts.clear_below if plan.truncates else None),
        ledger_high=highest(before.ledger_high, deleted),
        identity=tuple(sorted({**dict(before.identity), **write.identity}.items())),
        rule=plan.rule,
        reached=reached_after(plan, facts, before),
        cuts=united_cuts(before.cuts, facts.cuts),
        deletes=deletes_after(plan, facts, before, write.at),
    )


def _reject(outcome: Outcome, rows: pa.Table) -> None:
    if rows.num_rows:
        outcome.rejects.append(rows)
        outcome.counts += Counts(rejected=rows.num_rows)


def _truncated(count: int, sequence: Sequence[SequenceValue], floor: Sequence[SequenceValue] | None) -> Counts:
    """What became of the folded truncate: one that was known, or older than a known one, does nothing."""
    if floor is None or tuple(sequence) > tuple(floor):
        return Counts(applied=count)
    return Counts(duplicate=count) if tuple(sequence) == tuple(floor) else Counts(superseded=count)
