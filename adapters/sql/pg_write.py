"""Stages 2 to 4 of one write inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from replicator.domain.change import ERROR
from replicator.domain.errors import DataLoss, Reject, RejectCode
from replicator.domain.event_log import already_logged
from replicator.domain.plan import Counts, Facts, LaneState, highest, needs_repair, resent_below
from replicator.domain.position import Position, TopicPartition
from replicator.domain.sequence import SequenceValue
from replicator.ports.frames import Write

from .conform import conform
from .pg_inline import inline_json
from .pg_refused import Refused, copy_bisecting, merge_bisecting
from .pg_target import ROW, Target
from .repair import APPLY, DUPLICATE, INCOMPLETE, SUPERSEDED, VERDICT, not_sent
from .rows import POSITION, to_rows

BULK_ROWS = 50_000
"""From here on one scan of the target is cheaper than a look-up per row; statistics of the staging table then matter."""

Inside = Callable[[pa.ChunkedArray], pa.ChunkedArray]

EVENT_POSITION = ("topic", "partition", "offset")


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
    found and left out; without, such a row fails the whole transaction, which is then done again with care."""

    def __init__(self, pending: Pending, target: Target, generation: int, *, careful: bool) -> None:
        self._pending = pending
        self._cursor = pending.cursor
        self._target = target
        self._generation = generation
        self._careful = careful

    def apply(self, write: Write[pa.Table], state: LaneState | None, applied_at: datetime) -> Outcome:
        """Do the write on top of `state`, the lane's committed state (locked by the caller)."""
        before = state or LaneState()
        refuse_gap(write, before.position)
        if self._target.event_log and before == LaneState():
            self._refuse_known(write)
        if before.position and not write.span.after(before.position):
            return Outcome(before, Counts(duplicate=write.folded.rows))
        frame = trimmed(write, before.position, EVENT_POSITION if self._target.event_log else POSITION)
        facts = write.folded.facts
        outcome = Outcome(
            advanced(before, write, self._target), Counts(duplicate=write.folded.frame.num_rows - frame.num_rows)
        )
        rows = frame if self._target.event_log else to_rows(frame, write.plan, applied_at)
        if facts.clear_below is not None and write.plan.truncates:
            self._pending.flush()
            self._cursor.execute(self._target.clear(facts.clear_below), prepare=False)
            outcome.counts += _truncated(frame.num_rows - rows.num_rows, facts.clear_below, before.floor)
        if rows.num_rows:
            self._write(self._fitting(rows, outcome), write, before, outcome)
        return outcome

    def _refuse_known(self, write: Write[pa.Table]) -> None:
        """Raise DataLoss when the log has records that the write stands for, or later ones."""
        query = f'SELECT 1 FROM {self._target.relation} WHERE topic = %s AND partition = %s AND "offset" >= %s LIMIT 1'
        for place, start in write.span.start.items():
            self._cursor.execute(query.encode(), (place.topic, place.partition, start))
            if self._cursor.fetchone():
                raise already_logged(write.lane.id, place.topic)

    def _fitting(self, rows: pa.Table, outcome: Outcome) -> pa.Table:
        """`rows` with the target's types; those that do not fit are rejected."""
        good, bad = conform(rows, self._target.arrow)
        _reject(outcome, bad)
        for name, inside, fault in self._faults(good):
            kept = inside(good[name])
            sentence = f"the value of column {name!r} {fault}"
            _reject(outcome, with_error(good.filter(pc.invert(kept)), str(Reject(RejectCode.OUT_OF_RANGE, sentence))))
            good = good.filter(kept)
        return good.append_column(ROW, pa.array(range(good.num_rows), pa.int32()))

    def _faults(self, rows: pa.Table) -> Iterator[tuple[str, Inside, str]]:
        """What the server would accept by cutting it, and, once it has refused something, what it does not name."""
        for name, fit in self._target.fits.items():
            if fit.length is not None:
                fault = f"is longer than the {fit.length} characters the target takes"
                yield name, partial(_within, fit.length), fault
            if self._careful and pa.types.is_string(rows[name].type):
                yield name, _without_nul, "holds a NUL character, which PostgreSQL does not keep"

    def _write(self, rows: pa.Table, write: Write[pa.Table], before: LaneState, outcome: Outcome) -> None:
        plan, target, facts = self._target.plan, self._target, write.folded.facts
        repairing = needs_repair(plan, facts, before)
        if not repairing and not self._careful and self._inlined(rows, facts, outcome):
            return
        self._pending.flush()
        target.make_temporary(self._cursor, self._generation, repaired=repairing)
        bulk = rows.num_rows >= BULK_ROWS or not target.indexed
        names = target.names(whole=repairing)
        rows = self._staged(rows, names, outcome)
        if bulk:
            self._cursor.execute(target.analyze(whole=repairing), prepare=False)
        with _planning(self._cursor, bulk):
            applying = self._repaired(rows, write, before, outcome) if repairing else rows
            if bulk and repairing:
                self._cursor.execute(target.analyze(whole=False, repaired=True), prepare=False)
            self._merged(applying, outcome, repairing, bulk)
            if plan.repair.ledger and facts.deletes:
                self._cursor.execute(target.remember(repaired=repairing))

    def _inlined(self, rows: pa.Table, facts: Facts, outcome: Outcome) -> bool:
        """Few rows are written by a statement that waits for the commit, to travel with it."""
        values = inline_json(rows, self._target.fits) if self._target.indexed else None
        if values is None:
            return False
        self._pending.add(self._target.merge_inline(), values)
        if self._target.plan.repair.ledger and facts.deletes:
            self._pending.add(self._target.remember_inline(), values)
        outcome.counts += Counts(applied=rows.num_rows)
        return True

    def _staged(self, rows: pa.Table, names: Sequence[str], outcome: Outcome) -> pa.Table:
        """Rows that are now in the staging table."""
        sent, statement, forms = rows.select(names), self._target.copy(names), self._target.forms(names)
        refused: list[Refused] = copy_bisecting(self._cursor, statement, sent, forms, careful=self._careful)
        return self._without(rows, refused, outcome)

    def _repaired(self, rows: pa.Table, write: Write[pa.Table], before: LaneState, outcome: Outcome) -> pa.Table:
        """Stages 2 and 3 in the server; returns the rows that apply."""
        facts, resent = write.folded.facts, resent_below(self._target.plan, before, write.span)
        remembered = before.ledger_high is not None and facts.lowest is not None and facts.lowest <= before.ledger_high
        ledger = self._target.ledger is not None and remembered
        self._cursor.execute(self._target.repair(ledger=ledger, floor=before.floor, resent=resent), prepare=False)
        query = sql.SQL("SELECT {}, {} FROM {} WHERE {} <> {} ORDER BY 1")
        verdict, row = sql.Identifier(VERDICT), sql.Identifier(ROW)
        self._cursor.execute(query.format(row, verdict, sql.Identifier(self._target.repaired), verdict, sql.Literal(APPLY)))
        verdicts: dict[int, str] = dict(self._cursor.fetchall())
        seen = list(verdicts.values())
        outcome.counts += Counts(superseded=seen.count(SUPERSEDED), duplicate=seen.count(DUPLICATE))
        incomplete = rows.filter(
            pc.is_in(rows[ROW], pa.array([r for r, v in verdicts.items() if v == INCOMPLETE], pa.int32()))
        )
        _reject(outcome, incomplete.append_column(ERROR, pa.array(_lacking(incomplete), pa.string())))
        return rows.filter(pc.invert(pc.is_in(rows[ROW], pa.array(list(verdicts), pa.int32()))))

    def _merged(self, rows: pa.Table, outcome: Outcome, repaired: bool, bulk: bool) -> None:
        if not self._careful:
            self._cursor.execute(self._target.merge(repaired=repaired), prepare=not bulk)
            outcome.counts += Counts(applied=rows.num_rows)
            return
        refused = merge_bisecting(self._cursor, self._target, rows[ROW].to_pylist(), repaired=repaired)
        applied = self._without(rows, refused, outcome)
        outcome.counts += Counts(applied=applied.num_rows)
        self._forget(refused, repaired)

    def _forget(self, refused: Sequence[Refused], repaired: bool) -> None:
        """A delete that the database refused is not remembered."""
        if refused:
            relation = sql.Identifier(self._target.repaired if repaired else self._target.stage)
            numbers = [number for number, _ in refused]
            self._cursor.execute(
                sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(relation, sql.Identifier(ROW)), (numbers,)
            )

    def _without(self, rows: pa.Table, refused: Sequence[Refused], outcome: Outcome) -> pa.Table:
        if not refused:
            return rows
        known = dict(refused)
        bad = rows.filter(pc.is_in(rows[ROW], pa.array(list(known), pa.int32())))
        sentences = [str(known[number]) for number in bad[ROW].to_pylist()]
        _reject(outcome, bad.append_column(ERROR, pa.array(sentences, pa.string())))
        return rows.filter(pc.invert(pc.is_in(rows[ROW], pa.array(list(known), pa.int32()))))


@contextmanager
def _planning(cursor: psycopg.Cursor, bulk: bool) -> Iterator[None]:
    """Large writes may scan the target; small ones look rows up by index, which is how the session is set."""
    for value in ("on", "off"):
        if bulk:
            cursor.execute(
                f"SET LOCAL enable_hashjoin = {value}; SET LOCAL enable_mergejoin = {value}".encode(), prepare=False
            )
        if value == "on":
            yield


def refuse_gap(write: Write[pa.Table], applied: Position) -> None:
    """Raise DataLoss when records between what was applied and this write are missing."""
    gaps = write.span.gaps(applied)
    if gaps:
        first = gaps[0]
        raise DataLoss(
            f"lane {write.lane.id} stands at offset {applied[first]} of {first}, and the next records begin at "
            f"{write.span.start[first]}",
            next_step=f"Reload the target with `replicator lanes resync {write.lane.id}`.",
        )


def trimmed(write: Write[pa.Table], applied: Position, names: tuple[str, str, str]) -> pa.Table:
    """The rows of the write at or above the applied position."""
    frame = write.folded.frame
    for partition, offset in applied.items():
        if write.span.start.get(partition, offset) < offset:
            frame = frame.filter(pc.invert(_below(frame, partition, offset, names)))
    return frame


def _below(frame: pa.Table, at: TopicPartition, offset: int, names: tuple[str, str, str]) -> pa.ChunkedArray:
    topic, partition, place = names
    same = pc.and_(pc.equal(frame[topic], at.topic), pc.equal(frame[partition], at.partition))
    return pc.and_(same, pc.less(frame[place], offset))


def advanced(before: LaneState, write: Write[pa.Table], target: Target) -> LaneState:
    """The lane's state after the write."""
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
    )


def with_error(rows: pa.Table, sentence: str) -> pa.Table:
    """`rows` as rejects, all for the same reason."""
    return rows.append_column(ERROR, pa.repeat(pa.scalar(sentence), rows.num_rows))


def _reject(outcome: Outcome, rows: pa.Table) -> None:
    if rows.num_rows:
        names = [n for n in rows.column_names if n != ROW]
        outcome.rejects.append(rows.select(names))
        outcome.counts += Counts(rejected=rows.num_rows)


def _truncated(count: int, sequence: Sequence[SequenceValue], floor: Sequence[SequenceValue] | None) -> Counts:
    """What became of the folded truncate: one that was known, or older than a known one, does nothing."""
    if floor is None or tuple(sequence) > tuple(floor):
        return Counts(applied=count)
    return Counts(duplicate=count) if tuple(sequence) == tuple(floor) else Counts(superseded=count)


def _within(length: int, column: pa.ChunkedArray) -> pa.ChunkedArray:
    text = column if pa.types.is_string(column.type) else column.cast(pa.string())
    return pc.fill_null(pc.less_equal(pc.utf8_length(text), length), True)


def _without_nul(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.invert(pc.match_substring(column, "\0")), True)


def _lacking(rows: pa.Table) -> list[str]:
    return [str(not_sent(names or ())) for names in rows["_unsent"].to_pylist()]
