"""Fencing: a session's advisory lock per lane, and an epoch in the lane's row that every commit checks.

The lock keeps a second instance out while the first one lives. The epoch stops an instance that lost its
connection, and with it the lock, without noticing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg import sql

from replicator.domain.errors import ConfigProblem, Fenced
from replicator.ports.frames import Lane

from ...postgres.connection import PostgresSession, application_name
from ...postgres.lane_state import OTHER_WRITER, OWN_LANE
from ...sql.dialect import text_literal

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
        with self._session.cursor(f"taking lane {lane.id}") as cursor:
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
                with self._session.cursor(f"taking lane {lane.id} again") as cursor:
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
            with self._session.cursor(f"letting lane {lane.id} go") as cursor:
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
            raise _fenced_error(cursor, lane, key) from None
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
    place = f"pipeline = {text_literal(pipeline)} AND lane = {text_literal(other)}"
    return (
        "Name another table with `into`, or another schema or database. If that lane does not exist any more, run DELETE "
        f"FROM _replicator.positions WHERE {place}; and load the table again with `replicator lanes resync {lane.id}`."
    )


def lock_key(lane: Lane) -> int:
    """The key of a lane's advisory lock: 64 bits of a hash, signed."""
    digest = hashlib.sha256(f"replicator\0{lane.pipeline}\0{lane.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _fenced_error(cursor: psycopg.Cursor, lane: Lane, key: int) -> Fenced:
    holder = cursor.execute(HOLDER, (key,)).fetchone()
    if holder is None:
        return Fenced(f"lane {lane.id} was held by another instance until just now", next_step="Start again.")
    pid, name, address = holder
    return Fenced(
        f"lane {lane.id} is written by another instance: server process {pid}, {name!r}, from {address}",
        next_step=f"Stop that instance. If its machine is gone: SELECT pg_terminate_backend({pid}).",
    )
