"""The tables of schema `_replicator` in the database of the targets: one row per lane, written with the lane's rows."""

from __future__ import annotations

import json
from collections.abc import Sequence

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.dialects import postgresql as pg

from replicator.domain.errors import DataLoss
from replicator.domain.policy import plan
from replicator.domain.policy.plan import LaneState
from replicator.domain.schema_evolution import SchemaVersion, select_new
from replicator.domain.schema_evolution import from_json as version_from_json
from replicator.domain.schema_evolution import to_json as version_to_json
from replicator.ports.frames import Lane

from . import OWN_SCHEMA
from .names import has_relation

SCHEMA = OWN_SCHEMA
META = sa.MetaData(schema=SCHEMA)
POSITIONS = sa.Table(
    "positions",
    META,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
    sa.Column("pipeline", sa.Text, primary_key=True),
    sa.Column("lane", sa.Text, primary_key=True),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("writer", sa.Text, nullable=False),
    sa.Column("state", pg.JSONB),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)
"""`epoch` counts the writers of a lane; a writer with another number has lost the lane. `state` is NULL until
the first write. `id` is part of the name of the lane's tombstone table."""

SCHEMAS = sa.Table(
    "schemas",
    META,
    sa.Column("pipeline", sa.Text, primary_key=True),
    sa.Column("lane", sa.Text, primary_key=True),
    sa.Column("columns", pg.JSONB, nullable=False),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)
"""The columns of each lane's target at the last `prepare`, with their Arrow types, for people and tools."""

VERSIONS = sa.Table(
    "schema_versions",
    META,
    sa.Column("pipeline", sa.Text, primary_key=True),
    sa.Column("lane", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("position", pg.JSONB, nullable=False),
    sa.Column("changes", pg.JSONB, nullable=False),
    sa.Column("record", pg.JSONB, nullable=False),
)
"""The schema versions of each lane. `record` is in the format of `domain.schema_evolution`; the other columns
are for people."""

TRANSACTIONS = sa.Table(
    "transactions",
    META,
    sa.Column("pipeline", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("transaction", sa.Text),
    sa.Column("ended_at", sa.DateTime(timezone=True)),
    sa.Column("exact", sa.Boolean, nullable=False),
    sa.Column("behind", pg.ARRAY(sa.Text), nullable=False),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)
"""For readers: the completeness watermark of each source (`domain.transactions.CompletenessWatermark`)."""

CREATE_TRANSACTIONS = sa.schema.CreateTable(TRANSACTIONS, if_not_exists=True)
WRITE_COMPLETE = sql.SQL(
    "INSERT INTO _replicator.transactions AS t (pipeline, source, transaction, ended_at, exact, behind) "
    "VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (pipeline, source) DO UPDATE SET "
    "transaction = coalesce(excluded.transaction, t.transaction), ended_at = "
    "CASE WHEN excluded.transaction IS NULL THEN t.ended_at ELSE excluded.ended_at END, "
    "exact = excluded.exact, behind = excluded.behind, updated_at = now()"
)

TAKE_BACK = sql.SQL(
    "UPDATE _replicator.transactions SET transaction = NULL, ended_at = NULL, exact = false, "
    "behind = ARRAY(SELECT DISTINCT unnest(behind || %s::text) ORDER BY 1), updated_at = now() "
    "WHERE pipeline = %s AND source = %s"
)

CREATE = tuple(sa.schema.CreateTable(table, if_not_exists=True) for table in (POSITIONS, SCHEMAS, VERSIONS))

SELECT_STATE = sql.SQL("SELECT state::text FROM _replicator.positions WHERE pipeline = %s AND lane = %s")
RELATION = "format('%%s/%%s', to_regclass(target)::oid, pg_relation_filenode(to_regclass(target)))"
"""The id of a lane's table and of its file.

A recreated table has another id. After TRUNCATE, VACUUM FULL or a change of a column's type the rows are in
another file.
"""
MOVED = f"to_regclass(target) IS NOT NULL AND state->>'relation' <> {RELATION}"
FIND_MOVED = sql.SQL(f"SELECT lane FROM _replicator.positions WHERE pipeline = %s AND lane = ANY(%s) AND {MOVED}")
NOTE_RELATION = sql.SQL(
    f"UPDATE _replicator.positions SET state = state || jsonb_build_object('relation', {RELATION}) "
    "WHERE pipeline = %s AND lane = %s"
)
LOCK_LANES = sql.SQL(
    "SELECT lane, epoch, writer, state::text FROM _replicator.positions "
    "WHERE pipeline = %s AND lane = ANY(%s) ORDER BY lane FOR UPDATE"
)
WRITE_STATE = sql.SQL(
    f"UPDATE _replicator.positions SET state = %s::jsonb || jsonb_build_object('relation', {RELATION}), updated_at = now() "
    "WHERE pipeline = %s AND lane = %s"
)
TOUCH_STATE = sql.SQL("UPDATE _replicator.positions SET updated_at = now() WHERE pipeline = %s AND lane = %s")
"""Run after a change of rows without a record, so that projections of these rows notice it."""
OWN_LANE = sql.SQL(
    "INSERT INTO _replicator.positions AS p (pipeline, lane, target, epoch, writer) VALUES (%s, %s, %s, 1, %s) "
    "ON CONFLICT (pipeline, lane) DO UPDATE SET target = excluded.target, epoch = p.epoch + 1, writer = excluded.writer "
    "RETURNING id, epoch"
)
OTHER_WRITER = sql.SQL(
    "SELECT pipeline, lane FROM _replicator.positions WHERE target = %s AND (pipeline, lane) <> (%s, %s) "
    "ORDER BY 1, 2 LIMIT 1"
)
SELECT_LANE = sql.SQL("SELECT id FROM _replicator.positions WHERE pipeline = %s AND lane = %s")
FORGET_LANE = sql.SQL("DELETE FROM _replicator.{} WHERE pipeline = %s AND lane = %s")
WRITE_SCHEMA = sql.SQL(
    "INSERT INTO _replicator.schemas (pipeline, lane, columns) VALUES (%s, %s, %s::jsonb) ON CONFLICT (pipeline, lane) "
    "DO UPDATE SET columns = excluded.columns, updated_at = now() WHERE schemas.columns IS DISTINCT FROM excluded.columns"
)

READ_VERSIONS = sql.SQL(
    "SELECT record::text FROM _replicator.schema_versions WHERE pipeline = %s AND lane = %s ORDER BY number"
)
WRITE_VERSION = sql.SQL(
    "INSERT INTO _replicator.schema_versions (pipeline, lane, number, state, at, position, changes, record) "
    "VALUES (%s, %s, %s, %s, %s, %s::jsonb, %s::jsonb, %s::jsonb) ON CONFLICT (pipeline, lane, number) DO UPDATE SET "
    "state = excluded.state, at = excluded.at, position = excluded.position, changes = excluded.changes, "
    "record = excluded.record"
)


def read_schema_versions(cursor: psycopg.Cursor, lane: Lane) -> list[SchemaVersion]:
    """The schema versions of a lane, by number. Raises DataLoss when they are damaged."""
    has_versions = has_relation(cursor, "_replicator.schema_versions")
    rows = cursor.execute(READ_VERSIONS, (lane.pipeline, lane.id)).fetchall() if has_versions else []
    try:
        return [version_from_json(json.loads(text)) for (text,) in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLoss(
            f"the schemas of lane {lane.id} in _replicator.schema_versions are damaged",
            next_step="Restore the rows, or remove them: the next schema that the lane reads then becomes its first.",
        ) from error


def write_schema_version(cursor: psycopg.Cursor, lane: Lane, version: SchemaVersion) -> None:
    """Writes or overwrites a schema version of the lane."""
    record = version_to_json(version)
    position, changes = json.dumps(record["position"]), json.dumps(record["changes"])
    columns = (version.number, version.state, version.at, position, changes, json.dumps(record))
    cursor.execute(WRITE_VERSION, (lane.pipeline, lane.id, *columns))


def write_schema_versions(cursor: psycopg.Cursor, lane: Lane, versions: Sequence[SchemaVersion]) -> None:
    """Writes the versions that are new or different."""
    for version in select_new(versions, read_schema_versions(cursor, lane)) if versions else ():
        write_schema_version(cursor, lane, version)


def read_state(cursor: psycopg.Cursor, pipeline: str, lane: str) -> LaneState | None:
    """The state of a lane; None when it has none, or the database has no lanes. Raises DataLoss as `parse_state`."""
    has_lanes = has_relation(cursor, "_replicator.positions")
    row = cursor.execute(SELECT_STATE, (pipeline, lane)).fetchone() if has_lanes else None
    return parse_state(row[0] if row else None, pipeline, lane)


def withdraw_completeness(cursor: psycopg.Cursor, lane: Lane) -> None:
    """Withdraws the completeness watermark of the lane's source, because the lane lacks rows from now on.

    Does nothing for an event log, which is not a table of the source.
    """
    if has_relation(cursor, "_replicator.transactions") and lane.table:
        cursor.execute(TAKE_BACK, (lane.id, lane.pipeline, lane.source))


def parse_state(text: str | None, pipeline: str, lane: str) -> LaneState | None:
    """The state in a lane's row; None for none. Raises DataLoss when it is damaged."""
    try:
        return None if text is None else plan.state_from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(
            f"the state of lane {lane} of pipeline {pipeline} in _replicator.positions is damaged",
            next_step=f"Restore it, or load the lane again with `replicator lanes resync {lane}`.",
        ) from error


def state_to_json(state: LaneState) -> str:
    """The state as JSON text, for `parse_state` and for people. It never has side tables of a lake."""
    data = {key: value for key, value in plan.state_to_json(state).items() if key not in ("beside", "took")}
    return json.dumps({**data, "identity": [list(pair) for pair in state.identity]})
