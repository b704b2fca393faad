"""The sink all PostgreSQL targets share: mirrors and the event log differ only in where a lane's rows go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from replicator.domain.errors import DataLoss, Fatal, RowsWait
from replicator.domain.plan import ApplyPlan, LaneState
from replicator.domain.schema_versions import SchemaVersion, new_versions
from replicator.domain.transactions import Complete
from replicator.ports.frames import Applied, Lane, LaneApplied, RejectRows, Write
from replicator.ports.sink import Vacuumed

from .made import made_for
from .pg_answers import ANSWER_SECONDS
from .pg_columns import ensure_beside
from .pg_connection import Session
from .pg_ddl import Catalogue, fits, indexed
from .pg_errors import refusal, refuses_row, translated, waits_for_rows
from .pg_history import ensure_marks, without_equality
from .pg_lanes import Lanes
from .pg_ledger import drop_ledger, ensure_ledger, ledger_name
from .pg_names import check_columns, check_table, quoted
from .pg_refused import Waiting
from .pg_reshaping import reshape_beside
from .pg_shared import clear_shared, new_shared
from .pg_state import (
    CREATE,
    CREATE_TRANSACTIONS,
    HAS_MOVED,
    LOCK_LANES,
    NOTE_RELATION,
    SCHEMA,
    WRITE_COMPLETE,
    WRITE_SCHEMA,
    WRITE_STATE,
    parsed,
    read_state,
    read_versions,
    take_back,
    to_json,
    write_version,
)
from .pg_supply import InMemory, Supply
from .pg_target import Target
from .pg_versions_here import keeps_as_is
from .pg_views import ensure_view
from .pg_write import Outcome, Pending, Writing, refuse_written

Place = Callable[[Lane], tuple[str, str]]
"""Schema and table of a lane."""


class PostgresLanes:
    """`ports.sink.Sink` on PostgreSQL without its options. One transaction per `apply` for all its writes."""

    has_places = True
    """True where rows that are inserted tell which records they are of."""
    one_writer = False
    """True where each table is of one lane; an event log is of many."""

    def __init__(self, dsn: str, place: Place, role: str, answer_timeout: float = ANSWER_SECONDS) -> None:
        self.session = Session(dsn, role, answer_timeout)
        self.catalogue = Catalogue(self.session, keeps_open=True)
        self._lanes = Lanes(self.session, role, one_writer=self.one_writer)
        self._place = place
        self._targets: dict[str, Target] = {}
        self._own_tables = self._publishes = False

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        """See `ports.sink.Sink.prepare`."""
        schema, table = self._place(lane)
        check_table(schema, "schema")
        check_table(table)
        check_columns((c.name for c in plan.target), plan.table.name)
        self._ensure_own_tables()
        owned = self._lanes.own(lane, quoted(schema, table))
        gone = _gone(lane, f"{schema}.{table}") if self.state(lane) else None
        with self.session.using(f"looking at the table of lane {lane.id}") as cursor:
            if (cursor.execute(HAS_MOVED, (lane.pipeline, lane.id)).fetchone() or (False,))[0]:
                self._refuse_emptied(cursor, lane)
        new = new_versions(plan.versions, self.schemas(lane)) if plan.versions else ()
        there = self.catalogue.ready(schema, table, plan, gone, remark=made_for(lane), versions=new)
        fitting = fits(f"{schema}.{table}", there, plan)
        found = not plan.merge_keys or indexed(there, plan)
        known = self._targets.get(lane.id)
        if known is not None and (known.plan, known.fits, known.indexed) == (plan, fitting, found):
            return
        with self.session.using(f"preparing lane {lane.id}") as cursor:
            relation = quoted(schema, table)
            clear_shared(cursor, owned.number)
            if new:
                cursor.execute(NOTE_RELATION, (lane.pipeline, lane.id))  # A column of another type has the rows rewritten.
            for version in new:
                reshape_beside(cursor, ledger_name(owned.number), version.reshaping)
            ledger, as_text, as_is = None, frozenset[str](), False
            if plan.repair.ledger:
                ledger = ensure_ledger(cursor, owned.number, plan, relation)
            elif plan.by_column:
                ledger = ensure_beside(cursor, owned.number, plan, relation)
            elif plan.history:
                ledger = ensure_marks(cursor, owned.number, plan, relation)
                as_text = without_equality(cursor, relation)
                as_is = keeps_as_is(cursor, relation, pa.schema([(name, fit.arrow) for name, fit in fitting.items()]))
            ensure_view(cursor, schema, table, plan)
            columns = json.dumps([[c.name, str(c.type)] for c in plan.target])
            cursor.execute(WRITE_SCHEMA, (lane.pipeline, lane.id, columns))
            for version in new:
                write_version(cursor, lane, version)
        self._targets[lane.id] = Target(lane, plan, schema, table, fitting, owned.number, found, ledger, as_text, as_is)

    def schemas(self, lane: Lane) -> Sequence[SchemaVersion]:
        """See `ports.sink.RemembersSchemas.schemas`."""
        with self.session.using(f"reading the schemas of lane {lane.id}") as cursor:
            return read_versions(cursor, lane)

    def remember(self, lane: Lane, version: SchemaVersion) -> None:
        """See `ports.sink.RemembersSchemas.remember`."""
        self._ensure_own_tables()
        with self.session.using(f"remembering a schema of lane {lane.id}") as cursor:
            write_version(cursor, lane, version)

    def end_versions(self, lane: Lane) -> str:
        """See `ports.sink.Erases.end_versions`: the space of removed rows is overwritten."""
        for relation in (quoted(*self._place(lane)), *self._beside(lane)):
            with self.session.using(f"vacuuming the table of lane {lane.id}") as cursor:
                (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (relation,)).fetchone() or (False,)
                if there:
                    cursor.execute(f"VACUUM (ANALYZE) {relation}".encode(), prepare=False)
        return ""

    def _beside(self, _: Lane, /) -> Sequence[str]:
        """What is kept beside the lane's table, and is of it alone."""
        return ()

    def vacuum(self, lane: Lane, _retain: timedelta | None, *, dry_run: bool) -> Vacuumed | None:
        """See `ports.sink.Vacuums.vacuum`. The server keeps no versions, and counts no files."""
        if self.state(lane) is None:
            return None
        if not dry_run:
            self.end_versions(lane)
        return Vacuumed(None)

    def prepared(self, lane: Lane, plan: ApplyPlan) -> Target:
        """The target of a lane, made ready if it is not."""
        if lane.id not in self._targets:
            self.prepare(lane, plan)
        return self._targets[lane.id]

    def _ensure_own_tables(self) -> None:
        if not self._own_tables:
            self.catalogue.run(f"creating schema {SCHEMA}", CREATE, SCHEMA)
            self._own_tables = True

    def _ensure_transactions(self, writes: Sequence[Write[Any]]) -> None:
        if any(write.complete for write in writes) and not self._publishes:
            self.catalogue.run("creating the table of transactions", [CREATE_TRANSACTIONS], SCHEMA)
            self._publishes = True

    def state(self, lane: Lane) -> LaneState | None:
        """See `ports.sink.Sink.state`."""
        with self.session.using(f"reading the state of lane {lane.id}") as cursor:
            return read_state(cursor, lane.pipeline, lane.id)

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> Applied:
        """See `ports.sink.Sink.apply`."""
        return self.apply_supplied([supplied(write, InMemory(write.folded.frame)) for write in writes], reject)

    def apply_supplied(self, writes: Sequence[Write[Supply]], reject: RejectRows[pa.Table]) -> Applied:
        """`apply`, of rows that need not be in this process. First without savepoints; when the database refuses some row,
        again with them."""
        if not writes:
            return {}
        self._ensure_transactions(writes)
        try:
            return self._or_undone(writes, reject, careful=False)
        except psycopg.Error as error:
            if not refuses_row(error):
                raise
        try:
            return self._or_undone(writes, reject, careful=True)
        except psycopg.Error as error:
            raise translated(error, f"applying {_names(writes)}") from error

    def _or_undone(self, writes: Sequence[Write[Supply]], reject: RejectRows[pa.Table], *, careful: bool) -> Applied:
        """An attempt that, when it is rolled back, takes with it the temporary tables it may have made."""
        try:
            return self._attempt(writes, reject, careful=careful)
        except BaseException:
            for write in writes:
                if write.lane.id in self._targets:
                    self._targets[write.lane.id].staged.clear()
            raise

    def _attempt(self, writes: Sequence[Write[Supply]], reject: RejectRows[pa.Table], *, careful: bool) -> Applied:
        doing = f"applying {_names(writes)}"
        with self.session.transaction(doing) as cursor:
            self._lanes.hold(write.lane for write in writes)
            stored, moved = self._locked_states(cursor, [w.lane for w in writes], careful)
            states = {w.lane.id: parsed(stored[w.lane.id], w.lane.pipeline, w.lane.id) for w in writes}
            for write in writes:
                self.target(write).filled = False
                if moved[write.lane.id]:
                    self._refuse_emptied(cursor, write.lane)
            pending = Pending(cursor)
            apply = partial(self._apply_one, pending, states, datetime.now(UTC))
            outcomes = [(w.lane, apply(w)) for w in writes] if not careful else list(self._in_turns(cursor, apply, writes))
            for lane, outcome in outcomes:
                for rows in outcome.rejects:
                    reject(lane, rows)
            for write in writes:
                write.folded.frame.forget(cursor)
            self._commit(pending, outcomes, completes_of(writes))
        return applied_by(outcomes)

    def _apply_one(
        self,
        pending: Pending,
        states: dict[str, LaneState | None],
        applied_at: datetime,
        write: Write[Supply],
        *,
        careful: bool = False,
        patient: bool = False,
    ) -> Outcome:
        writing = Writing(pending, self.target(write), self.session.generation, careful=careful, patient=patient)
        outcome = writing.apply(write, states[write.lane.id], applied_at)
        states[write.lane.id] = outcome.state
        return outcome

    def _in_turns(
        self, cursor: psycopg.Cursor, apply: Callable[..., Outcome], writes: Sequence[Write[Supply]]
    ) -> Iterator[tuple[Lane, Outcome]]:
        """The writes with care. One whose rows wait for other rows is undone, and done again after the others. When only
        such writes are left, the first that may not wait loses these rows; RowsWait when all of them may."""
        left = list(writes)
        while left:
            waiting: dict[str, str] = {}
            behind = []
            for write in left:
                patient = len(left) > 1 or write.may_wait
                try:
                    if write.lane.id in waiting:
                        raise Waiting(waiting[write.lane.id])  # Writes of a lane keep their order.
                    with cursor.connection.transaction():
                        outcome = apply(write, careful=True, patient=patient)
                    yield write.lane, outcome
                except (Waiting, psycopg.Error) as error:
                    if isinstance(error, psycopg.Error) and not (patient and waits_for_rows(error)):
                        raise
                    self.target(write).staged.clear()
                    waiting[write.lane.id] = refusal(error, ()).sentence if isinstance(error, psycopg.Error) else str(error)
                    behind.append(write)
            if len(behind) == len(left):
                given_up = next((write for write in behind if not write.may_wait), None)
                if given_up is None:
                    lane, why = next(iter(waiting.items()))
                    raise RowsWait(f"Rows of lane {lane} wait: {why}.", tuple(waiting))
                yield given_up.lane, apply(given_up, careful=True)
                behind.remove(given_up)
            left = behind

    def target(self, write: Write[Any]) -> Target:
        """What the lane of the write was prepared for; Fatal when that is another plan."""
        target = self._targets.get(write.lane.id)
        if target is None or target.plan != write.plan:
            raise Fatal(f"lane {write.lane.id} was given rows of a plan that it was not prepared for")
        return target

    def begin_shared(self, lanes: Sequence[Lane]) -> None:
        """Before rows are copied by others: Fenced unless this instance still writes the lanes. Removes what was left."""
        self._lanes.hold(lanes)
        with self.session.using("removing what an earlier batch left") as cursor:
            for lane in lanes:
                clear_shared(cursor, self._targets[lane.id].number)

    def new_shared(self, target: Target) -> str:
        """A staging table that every session sees, for one write; see `pg_shared`."""
        with self.session.using(f"creating a staging table for lane {target.lane.id}") as cursor:
            return new_shared(cursor, target)

    def _locked_states(
        self, cursor: psycopg.Cursor, lanes: Sequence[Lane], careful: bool
    ) -> tuple[dict[str, str | None], dict[str, bool]]:
        """Begin, lock the lanes' rows in one order, and see that they are still this instance's; their states unread, and
        whether their tables have other files than at their last commit."""
        ids = sorted({lane.id for lane in lanes})
        with cursor.connection.pipeline():
            cursor.execute("BEGIN")
            cursor.execute(f"SET CONSTRAINTS ALL {'IMMEDIATE' if careful else 'DEFERRED'}".encode())
            cursor.execute(LOCK_LANES, (lanes[0].pipeline, ids))
            rows = {row[0]: row[1:] for row in cursor.fetchall()}
        states: dict[str, str | None] = {}
        moved: dict[str, bool] = {}
        for lane in lanes:
            epoch, writer, state, other = rows.get(lane.id, (-1, "its row was removed", None, None))
            self._lanes.check(lane, epoch, writer)
            states[lane.id], moved[lane.id] = state, bool(other)
        return states, moved

    def _refuse_emptied(self, cursor: psycopg.Cursor, lane: Lane) -> None:
        """Raise DataLoss for a table that was truncated, or made anew, by somebody else. One with rows was rewritten only,
        or restored with them."""
        relation = quoted(*self._place(lane))
        (filled,) = cursor.execute(f"SELECT EXISTS (SELECT FROM {relation})".encode(), prepare=False).fetchone() or (True,)
        if not filled:
            raise _emptied(lane, ".".join(self._place(lane)))

    def _commit(
        self, pending: Pending, outcomes: Sequence[tuple[Lane, Outcome]], complete: Mapping[tuple[str, str], Complete]
    ) -> None:
        """What still waits, the positions, what is published and the COMMIT, in one round trip."""
        cursor = pending.cursor
        with cursor.connection.pipeline():
            pending.send()
            for lane, outcome in outcomes:
                cursor.execute(WRITE_STATE, (to_json(outcome.state), lane.pipeline, lane.id))
            for (pipeline, source), now in complete.items():
                told = (now.transaction, now.ended_at, now.exact, list(now.behind))
                cursor.execute(WRITE_COMPLETE, (pipeline, source, *told))
            cursor.execute("COMMIT")

    def skip(self, lane: Lane, state: LaneState) -> None:
        """See `ports.sink.Sink.skip`. DataLoss for a lane that inserts, and would begin before what is in its table."""
        self._own(lane)
        known = self.state(lane) or LaneState()
        with self._alone(lane, "skipping in") as cursor:
            relation = quoted(*self._place(lane))
            (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (relation,)).fetchone() or (False,)
            if there and self.has_places:
                refuse_written(cursor, lane, relation, state.position, known.position)
            take_back(cursor, lane)
            cursor.execute(WRITE_STATE, (to_json(state), lane.pipeline, lane.id))

    def reset(self, lane: Lane) -> None:
        """See `ports.sink.Sink.reset`. The table stays, with its columns, indexes and grants."""
        number = self._own(lane)
        with self._alone(lane, "resetting") as cursor:
            take_back(cursor, lane)
            clear_shared(cursor, number)
            relation = quoted(*self._place(lane))
            (there,) = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (relation,)).fetchone() or (False,)
            if there:
                self.clear(cursor, lane, relation)
            drop_ledger(cursor, number)
            cursor.execute(WRITE_STATE, (None, lane.pipeline, lane.id))
        self._targets.pop(lane.id, None)

    def _own(self, lane: Lane, *, removing: bool = False) -> int:
        self._ensure_own_tables()
        return self._lanes.own(lane, quoted(*self._place(lane)), removing=removing).number

    def _let_go(self, lane: Lane) -> None:
        """After the lane's row was removed: another `prepare` is needed to write it."""
        self._targets.pop(lane.id, None)
        self._lanes.let_go(lane)

    @contextmanager
    def _alone(self, lane: Lane, doing: str, *others: Lane) -> Iterator[psycopg.Cursor]:
        """A transaction of this instance's lane (and of others), committed when the block ends."""
        doing = f"{doing} lane {lane.id}"
        try:
            with self.session.transaction(doing) as cursor:
                self._locked_states(cursor, [lane, *others], careful=False)
                yield cursor
                cursor.execute("COMMIT")
        except psycopg.Error as error:
            raise translated(error, doing) from error

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:  # noqa: ARG002  (the event log asks)
        """Remove the lane's rows, in the caller's transaction: all of its table."""
        cursor.execute(f"DELETE FROM {relation}".encode(), prepare=False)

    def hurry(self) -> None:
        """See `ports.sink.Hurries.hurry`."""
        self.session.hurry()

    def close(self) -> None:
        """See `ports.sink.Sink.close`."""
        self._lanes.forget()
        self._targets.clear()
        self.catalogue.close()
        self.session.close()


def supplied(write: Write[Any], supply: Supply) -> Write[Supply]:
    """The same write of the rows that `supply` gives."""
    return replace(write, folded=replace(write.folded, frame=supply))


def completes_of(writes: Sequence[Write[Any]]) -> dict[tuple[str, str], Complete]:
    """What the writes publish, by pipeline and source: the last of each counts."""
    return {(w.lane.pipeline, w.complete.source): w.complete for w in writes if w.complete}


def applied_by(outcomes: Sequence[tuple[Lane, Outcome]]) -> Applied:
    """The last position per lane, and the counts of all its writes."""
    out: dict[str, LaneApplied] = {}
    for lane, outcome in outcomes:
        counts = out[lane.id].counts + outcome.counts if lane.id in out else outcome.counts
        out[lane.id] = LaneApplied(outcome.state.position, counts, outcome.state.forgotten)
    return out


def _gone(lane: Lane, name: str) -> DataLoss:
    return DataLoss(
        f"table {name} is gone, and with it what lane {lane.id} had applied",
        next_step=f"Load it anew with `replicator lanes resync {lane.id}`.",
    )


def _emptied(lane: Lane, name: str) -> DataLoss:
    return DataLoss(
        f"table {name} was truncated, or dropped and made anew, and with it what lane {lane.id} had applied is gone",
        next_step=f"Load it anew with `replicator lanes resync {lane.id}`.",
    )


def _names(writes: Sequence[Write[Supply]]) -> str:
    return "lane " + ", ".join(dict.fromkeys(w.lane.id for w in writes))
