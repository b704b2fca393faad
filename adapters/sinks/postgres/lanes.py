"""The sink that all PostgreSQL targets share. Mirrors and the event log differ only in the table of a lane."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, Fenced, RowsWait
from replicator.domain.policy import POLICY_NAMES
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.schema_evolution import SchemaVersion, select_new
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import ApplyOutcome, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import SchemaStore, SinkFeatures, VacuumResult

from ...apply.projections import ownership_remark
from ...postgres.connection import ANSWER_SECONDS, PostgresSession, application_name
from ...postgres.ddl import Catalogue, ensure_view, find_conversions, is_indexed, reshape_side_table
from ...postgres.errors import describe_refusal, is_row_refusal, is_waiting_for_rows, translate_error
from ...postgres.lane_state import (
    CREATE,
    CREATE_TRANSACTIONS,
    FIND_MOVED,
    LOCK_LANES,
    NOTE_RELATION,
    OTHER_WRITER,
    OWN_LANE,
    SCHEMA,
    WRITE_COMPLETE,
    WRITE_SCHEMA,
    WRITE_STATE,
    parse_state,
    read_schema_versions,
    read_state,
    state_to_json,
    withdraw_completeness,
    write_schema_version,
)
from ...postgres.names import check_columns, check_table, has_relation, quote_name
from ...sql.dialect import text_literal
from .refused_rows import RowsWaiting
from .row_provider import ArrowRowProvider, RowProvider
from .scd2 import find_columns_without_equality, has_lossless_columns
from .shared_staging import create_shared_table, drop_shared_tables
from .target import PostgresTarget, drop_side_table, ensure_side_table, side_table_name
from .writer import PendingStatements, PostgresWriter, WriteOutcome, refuse_existing_rows

FindTable = Callable[[Lane], tuple[str, str]]
"""Returns schema and table of a lane."""


class PostgresLanes:
    """`ports.sink.Sink` on PostgreSQL, without options. Each `apply` is one transaction for all its writes."""

    has_record_positions = True
    """True when inserted rows show the record that they are from."""
    one_writer = False
    """True when each table belongs to one lane. An event log belongs to many."""
    policies: frozenset[str] = frozenset(POLICY_NAMES)

    def __init__(self, dsn: str, find_table: FindTable, role: str, answer_timeout: float = ANSWER_SECONDS) -> None:
        self.session = PostgresSession(dsn, role, answer_timeout)
        self.catalogue = Catalogue(self.session, keeps_open=True)
        self._lanes = LaneOwnership(self.session, role, one_writer=self.one_writer)
        self._find_table = find_table
        self._targets: dict[str, PostgresTarget] = {}
        self._own_tables = self._publishes = False

    @property
    def features(self) -> SinkFeatures:
        return SinkFeatures(
            policies=self.policies,
            atomic_across_lanes=True,
            schemas=SchemaStore(self.schemas, self.remember),
            hurry=self.hurry,
            vacuum=self.vacuum,
        )

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        schema, table = self._find_table(lane)
        check_table(schema, "schema")
        check_table(table)
        check_columns((c.name for c in plan.target), plan.table.name)
        self._ensure_own_tables()
        owned = self._lanes.acquire(lane, quote_name(schema, table))
        error = missing_table_error(lane, f"{schema}.{table}") if self.state(lane) else None
        with self.session.cursor(f"looking at the table of lane {lane.id}") as cursor:
            if cursor.execute(FIND_MOVED, (lane.pipeline, [lane.id])).fetchone():
                self._refuse_emptied(cursor, lane)
        new = select_new(plan.versions, self.schemas(lane)) if plan.versions else ()
        layout = self.catalogue.prepare_table(schema, table, plan, error, remark=ownership_remark(lane), versions=new)
        conversions = find_conversions(f"{schema}.{table}", layout, plan)
        has_index = not plan.merge_keys or is_indexed(layout, plan)
        target = self._targets.get(lane.id)
        properties = (plan, conversions, has_index, layout.is_table)
        if target is not None and (target.plan, target.conversions, target.indexed, target.is_table) == properties:
            return
        with self.session.cursor(f"preparing lane {lane.id}") as cursor:
            relation = quote_name(schema, table)
            drop_shared_tables(cursor, owned.number)
            if new:
                cursor.execute(NOTE_RELATION, (lane.pipeline, lane.id))  # A type change rewrites the table's files.
            for version in new:
                reshape_side_table(cursor, side_table_name(owned.number), version.reshaping)
            side_table = ensure_side_table(cursor, owned.number, plan, relation)
            as_text, as_is = frozenset[str](), False
            if plan.history:
                as_text = find_columns_without_equality(cursor, relation)
                as_is = has_lossless_columns(
                    cursor, relation, pa.schema([(name, conversion.arrow) for name, conversion in conversions.items()])
                )
            ensure_view(cursor, schema, table, plan)
            columns = json.dumps([[c.name, str(c.type)] for c in plan.target])
            cursor.execute(WRITE_SCHEMA, (lane.pipeline, lane.id, columns))
            for version in new:
                write_schema_version(cursor, lane, version)
        self._targets[lane.id] = PostgresTarget(
            lane, plan, schema, table, conversions, owned.number, has_index, layout.is_table, side_table, as_text, as_is
        )

    def schemas(self, lane: Lane) -> Sequence[SchemaVersion]:
        with self.session.cursor(f"reading the schemas of lane {lane.id}") as cursor:
            return read_schema_versions(cursor, lane)

    def remember(self, lane: Lane, version: SchemaVersion) -> None:
        self._ensure_own_tables()
        with self.session.cursor(f"storing a schema of lane {lane.id}") as cursor:
            write_schema_version(cursor, lane, version)

    def end_versions(self, lane: Lane) -> str:
        """See `ports.sink.KeyErasure.end_versions`. VACUUM releases the space of deleted rows."""
        for relation in (quote_name(*self._find_table(lane)), *self._list_side_tables(lane)):
            with self.session.cursor(f"vacuuming the table of lane {lane.id}") as cursor:
                if has_relation(cursor, relation):
                    cursor.execute(f"VACUUM (ANALYZE) {relation}".encode(), prepare=False)
        return ""

    def _list_side_tables(self, _: Lane, /) -> Sequence[str]:
        """The side tables of the lane's table that only this lane uses."""
        return ()

    def vacuum(self, lane: Lane, _retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        """The server stores no old versions, and does not count files."""
        if self.state(lane) is None:
            return None
        if not dry_run:
            self.end_versions(lane)
        return VacuumResult(None)

    def prepare_target(self, lane: Lane, plan: ApplyPlan) -> PostgresTarget:
        """The target of a lane; prepares it if necessary."""
        if lane.id not in self._targets:
            self.prepare(lane, plan)
        return self._targets[lane.id]

    def _ensure_own_tables(self) -> None:
        if not self._own_tables:
            self.catalogue.create_own_tables(f"creating schema {SCHEMA}", CREATE, SCHEMA)
            self._own_tables = True

    def _ensure_transactions(self, writes: Sequence[Write[Any]]) -> None:
        if any(write.complete for write in writes) and not self._publishes:
            self.catalogue.create_own_tables("creating the table of transactions", [CREATE_TRANSACTIONS], SCHEMA)
            self._publishes = True

    def state(self, lane: Lane) -> LaneState | None:
        with self.session.cursor(f"reading the state of lane {lane.id}") as cursor:
            return read_state(cursor, lane.pipeline, lane.id)

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        return self.apply_writes(
            [with_row_provider(write, ArrowRowProvider(write.folded.frame)) for write in writes], reject
        )

    def apply_writes(self, writes: Sequence[Write[RowProvider]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        """`apply` for rows that may be outside this process.

        The first attempt has no savepoints. If the database refuses a row, the second attempt has them.
        """
        if not writes:
            return {}
        self._ensure_transactions(writes)
        try:
            return self._attempt_or_undo(writes, reject, isolate=False)
        except psycopg.Error as error:
            if not is_row_refusal(error):
                raise
        try:
            return self._attempt_or_undo(writes, reject, isolate=True)
        except psycopg.Error as error:
            raise translate_error(error, f"applying {_lane_names(writes)}") from error

    def _attempt_or_undo(
        self, writes: Sequence[Write[RowProvider]], reject: RejectRows[pa.Table], *, isolate: bool
    ) -> ApplyOutcome:
        """An attempt. A rollback also removes its temporary tables, so `staged` is cleared."""
        try:
            return self._attempt(writes, reject, isolate=isolate)
        except BaseException:
            for write in writes:
                if write.lane.id in self._targets:
                    self._targets[write.lane.id].staged.clear()
            raise

    def _attempt(self, writes: Sequence[Write[RowProvider]], reject: RejectRows[pa.Table], *, isolate: bool) -> ApplyOutcome:
        doing = f"applying {_lane_names(writes)}"
        with self.session.transaction(doing) as cursor:
            self._lanes.reacquire(write.lane for write in writes)
            targets = [self.get_target(write) for write in writes]
            texts, moved_lanes = self._lock_states(cursor, [w.lane for w in writes], isolate, targets)
            states = {w.lane.id: parse_state(texts[w.lane.id], w.lane.pipeline, w.lane.id) for w in writes}
            for target in targets:
                target.filled = False
                if target.lane.id in moved_lanes:
                    self._refuse_emptied(cursor, target.lane)
            pending, applied_at = PendingStatements(cursor), datetime.now(UTC)

            def write_one(write: Write[RowProvider], *, isolate: bool = False, may_wait: bool = False) -> WriteOutcome:
                target, generation = self.get_target(write), self.session.generation
                writing = PostgresWriter(pending, target, generation, isolate=isolate, may_wait=may_wait)
                outcome = writing.apply(write, states[write.lane.id], applied_at)
                states[write.lane.id] = outcome.state
                return outcome

            turns = self._apply_in_turns(cursor, write_one, writes)
            outcomes = list(turns) if isolate else [(w.lane, write_one(w)) for w in writes]
            for lane, outcome in outcomes:
                for rows in outcome.rejects:
                    reject(lane, rows)
            for write in writes:
                write.folded.frame.discard(cursor)
            self._commit(pending, outcomes, collect_completes(writes))
        return to_applied(outcomes)

    def _apply_in_turns(
        self, cursor: psycopg.Cursor, write_one: Callable[..., WriteOutcome], writes: Sequence[Write[RowProvider]]
    ) -> Iterator[tuple[Lane, WriteOutcome]]:
        """The writes, with savepoints. A write whose rows wait for other rows is undone, and repeated after the
        others.

        When only such writes are left, the first one without `may_wait` rejects its waiting rows. Raises
        RowsWait when all of them may wait.
        """
        remaining_writes = list(writes)
        while remaining_writes:
            waiting: dict[str, str] = {}
            waiting_writes = []
            for write in remaining_writes:
                may_wait = len(remaining_writes) > 1 or write.may_wait
                try:
                    if write.lane.id in waiting:
                        raise RowsWaiting(waiting[write.lane.id])  # Writes of a lane keep their order.
                    with cursor.connection.transaction():
                        outcome = write_one(write, isolate=True, may_wait=may_wait)
                    yield write.lane, outcome
                except (RowsWaiting, psycopg.Error) as error:
                    if isinstance(error, psycopg.Error) and not (may_wait and is_waiting_for_rows(error)):
                        raise
                    self.get_target(write).staged.clear()
                    waiting[write.lane.id] = (
                        describe_refusal(error, ()).sentence if isinstance(error, psycopg.Error) else str(error)
                    )
                    waiting_writes.append(write)
            if len(waiting_writes) == len(remaining_writes):
                rejecting_write = next((write for write in waiting_writes if not write.may_wait), None)
                if rejecting_write is None:
                    lane, why = next(iter(waiting.items()))
                    raise RowsWait(f"Rows of lane {lane} wait: {why}.", tuple(waiting))
                yield rejecting_write.lane, write_one(rejecting_write, isolate=True)
                waiting_writes.remove(rejecting_write)
            remaining_writes = waiting_writes

    def get_target(self, write: Write[Any]) -> PostgresTarget:
        """The prepared target of the write. Raises Fatal when it was prepared for another plan."""
        target = self._targets.get(write.lane.id)
        if target is None or target.plan != write.plan:
            raise Fatal(f"lane {write.lane.id} was given rows of a plan that it was not prepared for")
        return target

    def begin_shared_copy(self, lanes: Sequence[Lane]) -> None:
        """Removes old staging tables before other processes copy rows. Raises Fenced unless this instance still
        writes the lanes."""
        self._lanes.reacquire(lanes)
        with self.session.cursor("removing what an earlier batch left") as cursor:
            for lane in lanes:
                drop_shared_tables(cursor, self._targets[lane.id].number)

    def create_shared_table(self, target: PostgresTarget) -> str:
        """Creates a staging table for one write that every session sees; see `shared_staging`."""
        with self.session.cursor(f"creating a staging table for lane {target.lane.id}") as cursor:
            return create_shared_table(cursor, target)

    def _lock_states(
        self, cursor: psycopg.Cursor, lanes: Sequence[Lane], isolate: bool, targets: Sequence[PostgresTarget] = ()
    ) -> tuple[dict[str, str | None], set[str]]:
        """Begins the transaction, locks the lanes' rows in a fixed order and then the tables of `targets`, and checks
        the epochs.

        Returns the stored states as text, and the lanes whose table's files changed since their last commit. With
        the lock on its table, no other program can empty it until the transaction ends.
        """
        keys = (lanes[0].pipeline, sorted({lane.id for lane in lanes}))
        tables = sorted({f"ONLY {target.relation}" for target in targets if target.is_table})
        with cursor.connection.cursor() as moved:
            with cursor.connection.pipeline():
                cursor.execute("BEGIN")
                cursor.execute(f"SET CONSTRAINTS ALL {'IMMEDIATE' if isolate else 'DEFERRED'}".encode())
                cursor.execute(LOCK_LANES, keys)
                if tables:
                    moved.execute(f"LOCK TABLE {', '.join(tables)} IN ROW EXCLUSIVE MODE".encode(), prepare=False)
                moved.execute(FIND_MOVED, keys)
            # Results are read after the end of the pipeline, which waits for all of them: one round trip.
            rows = {row[0]: row[1:] for row in cursor.fetchall()}
            moved_lanes = {lane for (lane,) in moved.fetchall()}
        states: dict[str, str | None] = {}
        for lane in lanes:
            epoch, writer, states[lane.id] = rows.get(lane.id, (-1, "its row was removed", None))
            self._lanes.check_epoch(lane, epoch, writer)
        return states, moved_lanes

    def _refuse_emptied(self, cursor: psycopg.Cursor, lane: Lane) -> None:
        """Raises DataLoss for a table that another program truncated or recreated.

        A table with rows was only rewritten, or restored with its rows.
        """
        relation = quote_name(*self._find_table(lane))
        (filled,) = cursor.execute(f"SELECT EXISTS (SELECT FROM {relation})".encode(), prepare=False).fetchone() or (True,)
        if not filled:
            name = ".".join(self._find_table(lane))
            raise DataLoss(
                f"table {name} was truncated, or dropped and created again, so the rows of lane {lane.id} are lost",
                next_step=f"Load it again with `replicator lanes resync {lane.id}`.",
            )

    def _commit(
        self,
        pending: PendingStatements,
        outcomes: Sequence[tuple[Lane, WriteOutcome]],
        complete: Mapping[tuple[str, str], CompletenessWatermark],
    ) -> None:
        """Sends pending statements, positions, completeness watermarks and COMMIT in one round trip."""
        cursor = pending.cursor
        with cursor.connection.pipeline():
            pending.send()
            for lane, outcome in outcomes:
                cursor.execute(WRITE_STATE, (state_to_json(outcome.state), lane.pipeline, lane.id))
            for (pipeline, source), now in complete.items():
                watermark = (now.transaction, now.ended_at, now.exact, list(now.behind))
                cursor.execute(WRITE_COMPLETE, (pipeline, source, *watermark))
            cursor.execute("COMMIT")

    def skip(self, lane: Lane, state: LaneState) -> None:
        """Raises DataLoss for a lane that inserts and would start before rows that are already in its table."""
        self._acquire(lane)
        stored_state = self.state(lane) or LaneState()
        with self._exclusive_transaction(lane, "skipping in") as cursor:
            relation = quote_name(*self._find_table(lane))
            if has_relation(cursor, relation) and self.has_record_positions:
                refuse_existing_rows(cursor, lane, relation, state.position, stored_state.position)
            withdraw_completeness(cursor, lane)
            cursor.execute(WRITE_STATE, (state_to_json(state), lane.pipeline, lane.id))

    def reset(self, lane: Lane) -> None:
        """The table stays, with its columns, indexes and grants."""
        number = self._acquire(lane)
        with self._exclusive_transaction(lane, "resetting") as cursor:
            withdraw_completeness(cursor, lane)
            drop_shared_tables(cursor, number)
            relation = quote_name(*self._find_table(lane))
            if has_relation(cursor, relation):
                self.clear(cursor, lane, relation)
            drop_side_table(cursor, number)
            cursor.execute(WRITE_STATE, (None, lane.pipeline, lane.id))
        self._targets.pop(lane.id, None)

    def _acquire(self, lane: Lane, *, removing: bool = False) -> int:
        self._ensure_own_tables()
        return self._lanes.acquire(lane, quote_name(*self._find_table(lane)), removing=removing).number

    def _release(self, lane: Lane) -> None:
        """For a lane whose row was removed: it must be prepared again before a write."""
        self._targets.pop(lane.id, None)
        self._lanes.release(lane)

    @contextmanager
    def _exclusive_transaction(self, lane: Lane, doing: str, *others: Lane) -> Iterator[psycopg.Cursor]:
        """A transaction over this instance's lane (and `others`). It commits at the end of the block."""
        doing = f"{doing} lane {lane.id}"
        try:
            with self.session.transaction(doing) as cursor:
                self._lock_states(cursor, [lane, *others], isolate=False)
                yield cursor
                cursor.execute("COMMIT")
        except psycopg.Error as error:
            raise translate_error(error, doing) from error

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:  # noqa: ARG002  (the event log uses it)
        """Deletes all rows of the lane's table, in the caller's transaction."""
        cursor.execute(f"DELETE FROM {relation}".encode(), prepare=False)

    def hurry(self) -> None:
        self.session.hurry()

    def close(self) -> None:
        self._lanes.discard()
        self._targets.clear()
        self.catalogue.close()
        self.session.close()


def with_row_provider(write: Write[Any], provider: RowProvider) -> Write[RowProvider]:
    """The same write with the rows of `provider`."""
    return replace(write, folded=replace(write.folded, frame=provider))


def collect_completes(writes: Sequence[Write[Any]]) -> dict[tuple[str, str], CompletenessWatermark]:
    """The completeness watermarks of the writes, by pipeline and source. The last one counts."""
    return {(w.lane.pipeline, w.complete.source): w.complete for w in writes if w.complete}


def to_applied(outcomes: Sequence[tuple[Lane, WriteOutcome]]) -> ApplyOutcome:
    """The last position per lane, and the counts of all its writes."""
    out: dict[str, LaneOutcome] = {}
    for lane, outcome in outcomes:
        counts = out[lane.id].counts + outcome.counts if lane.id in out else outcome.counts
        out[lane.id] = LaneOutcome(outcome.state.position, counts, outcome.state.purged_up_to)
    return out


def missing_table_error(lane: Lane, name: str) -> DataLoss:
    """The error for a lane with a position whose table is gone."""
    return DataLoss(
        f"table {name} does not exist any more, so the rows of lane {lane.id} are lost",
        next_step=f"Load it again with `replicator lanes resync {lane.id}`.",
    )


def _lane_names(writes: Sequence[Write[RowProvider]]) -> str:
    return "lane " + ", ".join(dict.fromkeys(w.lane.id for w in writes))


# Fencing: a session's advisory lock per lane, and an epoch in the lane's row that every commit checks.
#
# The lock keeps a second instance out while the first one lives. The epoch stops an instance that lost its
# connection, and with it the lock, without noticing.

WAIT = "2s"
"""How long to wait for the lock of a killed writer: its server process notices the end of the client late."""

HOLDER = sql.SQL(
    "SELECT a.pid, a.application_name, coalesce(a.client_addr::text, 'local') "
    "FROM pg_locks l JOIN pg_stat_activity a USING (pid) JOIN pg_database d ON d.oid = l.database "
    "WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database() "
    "AND ((l.classid::bigint << 32) | l.objid::bigint) = %s AND l.objsubid = 1"
)


@dataclass
class OwnedLane:
    """A lane that this instance writes. `number` is the lane's `positions.id`. The lock belongs to one
    connection."""

    lane: Lane
    number: int
    epoch: int
    generation: int


class LaneOwnership:
    """The lanes of one sink instance. `one_writer`: two lanes must not write the same table."""

    def __init__(self, session: PostgresSession, role: str, *, one_writer: bool) -> None:
        self._session = session
        self._one_writer = one_writer
        self._writer = application_name(role)
        self._owned: dict[str, OwnedLane] = {}

    def acquire(self, lane: Lane, target: str, *, removing: bool = False) -> OwnedLane:
        """Makes this instance the lane's writer. A second call for the same lane changes nothing.

        Raises Fenced when another instance writes the lane. Raises ConfigProblem when another lane writes the
        table, unless this call is only for `removing` the lane's own data.
        """
        owned = self._owned.get(lane.id)
        if owned is not None:
            self.reacquire([lane])
            return owned
        with self._session.cursor(f"locking lane {lane.id}") as cursor:
            self._lock(cursor, lane)
            with cursor.connection.transaction():
                if self._one_writer and not removing:
                    cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (target,))
                    refuse_other_writer(cursor, lane, target)
                row = cursor.execute(OWN_LANE, (lane.pipeline, lane.id, target, self._writer)).fetchone()
        if row is None:
            raise Fenced(f"the row of lane {lane.id} in _replicator.positions was removed while it was taken")
        self._owned[lane.id] = OwnedLane(lane, row[0], row[1], self._session.generation)
        return self._owned[lane.id]

    def reacquire(self, lanes: Iterable[Lane]) -> None:
        """Locks the lanes again after a broken connection.

        The epoch stays: comparing it shows whether another instance wrote in between.
        """
        self._session.ensure_connection()
        for lane in lanes:
            owned = self._owned.get(lane.id)
            if owned is None:
                raise Fenced(f"lane {lane.id} was not prepared by this instance", next_step="Start the daemon again.")
            if owned.generation != self._session.generation:
                with self._session.cursor(f"locking lane {lane.id} again") as cursor:
                    self._lock(cursor, lane)
                owned.generation = self._session.generation

    def check_epoch(self, lane: Lane, epoch: int, writer: str) -> None:
        """Raises Fenced when the lane's row, locked by the caller, names another writer."""
        if self._owned[lane.id].epoch != epoch:
            raise Fenced(
                f"lane {lane.id} was taken over by another instance ({writer})",
                next_step="Run one instance per pipeline; this one stops without finishing what it began.",
            )

    def release(self, lane: Lane) -> None:
        """Releases a lane whose row was removed."""
        owned = self._owned.pop(lane.id, None)
        if owned is not None and owned.generation == self._session.generation:
            with self._session.cursor(f"releasing lane {lane.id}") as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", (lock_key(lane),))

    def discard(self) -> None:
        """Drops all lanes when the connection, and with it the locks, is closed."""
        self._owned.clear()

    def _lock(self, cursor: psycopg.Cursor, lane: Lane) -> None:
        key = lock_key(lane)
        (free,) = cursor.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone() or (False,)
        if free:
            return
        try:
            cursor.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(WAIT)))
            cursor.execute("SELECT pg_advisory_lock(%s)", (key,))
        except psycopg.errors.LockNotAvailable:
            holder = cursor.execute(HOLDER, (key,)).fetchone()
            if holder is None:
                sentence = f"lane {lane.id} was held by another instance until just now"
                raise Fenced(sentence, next_step="Start again.") from None
            pid, name, address = holder
            raise Fenced(
                f"lane {lane.id} is written by another instance: server process {pid}, {name!r}, from {address}",
                next_step=f"Stop that instance. If its machine is gone: SELECT pg_terminate_backend({pid}).",
            ) from None
        finally:
            if not cursor.connection.closed:
                cursor.execute("RESET lock_timeout")


def refuse_other_writer(cursor: psycopg.Cursor, lane: Lane, target: str) -> None:
    """Raises ConfigProblem when another lane writes the table, because both would write every row."""
    row = cursor.execute(OTHER_WRITER, (target, lane.pipeline, lane.id)).fetchone()
    if row is not None:
        raise ConfigProblem(
            f"table {lane.into} is written by lane {row[1]} of pipeline {row[0]}", next_step=describe_conflict(lane, *row)
        )


def describe_conflict(lane: Lane, pipeline: str, other: str) -> str:
    """The next step for a table of `lane` that the lane `other` of `pipeline` also writes."""
    condition = f"pipeline = {text_literal(pipeline)} AND lane = {text_literal(other)}"
    return (
        "Name another table with `into`, or another schema or database. If that lane does not exist any more, run DELETE "
        f"FROM _replicator.positions WHERE {condition}; and load the table again with `replicator lanes resync {lane.id}`."
    )


def lock_key(lane: Lane) -> int:
    """The key of a lane's advisory lock: 64 bits of a hash, signed."""
    digest = hashlib.sha256(f"replicator\0{lane.pipeline}\0{lane.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
