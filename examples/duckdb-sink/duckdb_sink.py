"""A sink for Replicator: each target is a table of one DuckDB file.

Rows, tombstones and positions change in one transaction, so the file is exactly-once. The stages of a policy are those
of `adapters.apply`. This module adds what only DuckDB needs: tables, statements, and the translation of errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
from duckdb_options import DuckDbOptions

from adapters.apply.column_versions import COLUMN_VERSIONS
from adapters.apply.conform import REJECTED, conform_to_schema
from adapters.apply.explain import explain
from adapters.apply.stages import Wanted, apply_write, side_columns
from adapters.duckdb.session import to_duckdb_types
from adapters.sql.dialect import DUCKDB
from adapters.sql.reconcile import not_above_condition, render_truncate
from adapters.sql.render import render_merge
from replicator.domain.change import OP, UNCHANGED
from replicator.domain.errors import ConfigProblem, DataLoss, Fatal, Fenced, ReplicatorError, Retryable
from replicator.domain.policy.plan import (
    EVENT_ID,
    ApplyPlan,
    Counts,
    LaneState,
    Truncate,
    cdc_sequence_columns,
    state_from_json,
    state_to_json,
)
from replicator.domain.sequence import Sequence as SequenceKey
from replicator.domain.table import Column
from replicator.domain.transactions import CompletenessWatermark
from replicator.ports.frames import ApplyOutcome, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.sink import LaneArtifact, LaneRemoval, SinkFeatures

POLICIES = frozenset({"scd1", "append", "scd2"})
OWN_SCHEMA = "_replicator"
LANES, TRANSACTIONS = f"{OWN_SCHEMA}.lanes", f"{OWN_SCHEMA}.transactions"
INPUT = "_replicator_input"
"""The name under which a statement reads an Arrow table."""

OWN_TABLES = f"""
CREATE SCHEMA IF NOT EXISTS {OWN_SCHEMA};
CREATE TABLE IF NOT EXISTS {LANES} (
    pipeline VARCHAR, lane VARCHAR, target VARCHAR, epoch BIGINT, created BOOLEAN, state VARCHAR
);
CREATE TABLE IF NOT EXISTS {TRANSACTIONS} (
    pipeline VARCHAR, source VARCHAR, transaction VARCHAR, ended_at TIMESTAMPTZ, exact BOOLEAN, behind VARCHAR[]
);
"""
OWN = "pipeline = ? AND lane = ?"
quote = DUCKDB.quote_name


@dataclass(frozen=True)
class Target:
    """A prepared lane. `epoch`: the number of this instance among the writers of the lane."""

    plan: ApplyPlan
    epoch: int
    schema: pa.Schema


class DuckDbSink:
    """`replicator.ports.sink.Sink` over `pyarrow.Table`. All writes of one `apply` are one transaction.

    DuckDB locks the file for one process. Within a process, the last instance that prepares a lane may write it.
    """

    def __init__(self, options: DuckDbOptions | Mapping[str, Any]) -> None:
        self._path = DuckDbOptions.read(options).path
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._targets: dict[str, Target] = {}

    @property
    def features(self) -> SinkFeatures:
        return SinkFeatures(
            policies=POLICIES,
            atomic_across_lanes=True,
            watermarks=True,
            retention=True,
            refuse_second_writer=self.refuse_second_writer,
            explain=self.explain,
            removal=LaneRemoval(self.list_artifacts, self.drop),
        )

    # The methods of every sink.

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        if plan.policy not in POLICIES:
            raise ConfigProblem(
                f"the sink of lane {lane.id} does not apply policy {plan.policy!r}",
                next_step=f"Use one of {', '.join(sorted(POLICIES))}.",
            )
        target = self._targets.get(lane.id)
        if target is not None and target.plan == plan:
            return
        _refuse_similar_names(lane, plan)
        with self._transaction(f"preparing lane {lane.id}") as db:
            _refuse_other_lane(db, lane)
            created = _ensure_table(db, _relation(lane), plan.target)
            if side := side_columns(plan):
                _ensure_table(db, _side_relation(lane), side)
            epoch = target.epoch if target else _acquire_lane(db, lane, created=created)
            schema = db.sql(f"FROM {_relation(lane)} LIMIT 0").to_arrow_table().schema
        self._targets[lane.id] = Target(plan, epoch, schema)

    def state(self, lane: Lane) -> LaneState | None:
        with self._transaction(f"reading the state of lane {lane.id}") as db:
            return _read_state(db, lane)

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        applied: dict[str, LaneOutcome] = {}
        with self._transaction(f"applying {', '.join(write.lane.id for write in writes)}") as db:
            for write in writes:
                target = self._get_writable(db, write)
                session = DuckDbSession(db, write.lane, target)
                result = apply_write(session, write, _read_state(db, write.lane))
                if result.rejects.num_rows:
                    reject(write.lane, result.rejects)
                _write_state(db, write.lane, result.state)
                before = applied[write.lane.id].counts if write.lane.id in applied else Counts()
                applied[write.lane.id] = LaneOutcome(
                    result.state.position, before + result.counts, result.state.purged_up_to
                )
            for write in writes:
                if write.complete is not None:
                    _write_complete(db, write.lane, write.complete)
        return applied

    def skip(self, lane: Lane, state: LaneState) -> None:
        with self._transaction(f"skipping records of lane {lane.id}") as db:
            _withdraw_complete(db, lane)
            if _find_lane(db, lane) is None:
                _acquire_lane(db, lane, created=False)
            _write_state(db, lane, state)

    def reset(self, lane: Lane) -> None:
        with self._transaction(f"resetting lane {lane.id}") as db:
            if _find_lane(db, lane) is None:
                return
            _withdraw_complete(db, lane)
            _delete_rows(db, lane)
            db.execute(f"UPDATE {LANES} SET state = NULL WHERE {OWN}", _own(lane))

    def close(self) -> None:
        self._targets.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Features.

    def refuse_second_writer(self, lane: Lane) -> None:
        with self._transaction(f"looking at the table of lane {lane.id}") as db:
            _refuse_other_lane(db, lane)

    def explain(self, lane: Lane, plan: ApplyPlan) -> Mapping[str, str]:
        return explain(plan, DUCKDB, quote(lane.into))

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        with self._transaction(f"looking at lane {lane.id}") as db:
            lane_row = _find_lane(db, lane)
            if lane_row is None:
                return []
            artifacts = [LaneArtifact("state", f"{self._path}: {LANES}")]
            if _read_columns(db, _side_relation(lane)):
                artifacts.append(LaneArtifact("side table", f"{self._path}: {OWN_SCHEMA}.{_side_name(lane)}"))
            if _read_columns(db, _relation(lane)):
                stays = "" if lane_row["created"] else "this sink did not create it; only rows of the lane are removed"
                artifacts.append(LaneArtifact("table", f"{self._path}: {lane.into}", stays))
            return artifacts

    def drop(self, lane: Lane) -> None:
        """Another instance that prepared the lane is fenced at its commit."""
        self._targets.pop(lane.id, None)
        with self._transaction(f"dropping lane {lane.id}") as db:
            lane_row = _find_lane(db, lane)
            if lane_row is None:
                return
            _withdraw_complete(db, lane)
            _delete_rows(db, lane)
            db.execute(f"DROP TABLE IF EXISTS {_side_relation(lane)}")
            if lane_row["created"]:
                db.execute(f"DROP TABLE IF EXISTS {_relation(lane)}")
            db.execute(f"DELETE FROM {LANES} WHERE {OWN}", _own(lane))

    # The connection.

    def _get_writable(self, db: duckdb.DuckDBPyConnection, write: Write[Any]) -> Target:
        """The prepared target; `Fenced` if another instance has prepared the lane since."""
        target, lane_row = self._targets.get(write.lane.id), _find_lane(db, write.lane)
        if target is None or target.plan != write.plan:
            raise Fatal(f"lane {write.lane.id} was not prepared for this plan")
        if lane_row is None or lane_row["epoch"] != target.epoch:
            raise Fenced(f"another instance writes lane {write.lane.id}")
        return target

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of its own, in a transaction that is committed at the end, or rolled back after any error."""
        with _translate_errors(doing):
            if self._connection is None:
                self._connection = duckdb.connect(str(self._path))
                self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
                self._connection.execute(OWN_TABLES)
            db = self._connection.cursor()
            db.begin()
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            else:
                db.commit()
            finally:
                db.close()


class DuckDbSession:
    """`adapters.apply.stages.TransactionSession`: the target of one lane in an open transaction."""

    dialect = DUCKDB

    def __init__(self, db: duckdb.DuckDBPyConnection, lane: Lane, target: Target) -> None:
        self.schema = target.schema
        self._db, self._lane, self._plan = db, lane, target.plan

    def conform_rows(self, rows: pa.Table, schema: pa.Schema) -> tuple[pa.Table, pa.Table]:
        return conform_to_schema(rows, schema)

    def split_storable_rows(self, rows: pa.Table, _plan: ApplyPlan, /) -> tuple[pa.Table, pa.Table]:
        return rows, REJECTED.empty_table()

    def read_rows(self, columns: Sequence[str], wanted: Wanted, condition: str = "") -> pa.Table:
        rows = self._select(_relation(self._lane), columns, wanted, condition)
        return rows.cast(pa.schema([self.schema.field(name) for name in columns]))

    def read_side_rows(self, rows: pa.Table | None) -> pa.Table:
        names = [column.name for column in side_columns(self._plan)]
        wanted = {} if rows is None else {key: rows[key] for key in self._plan.table.keys}
        return self._select(_side_relation(self._lane), names, wanted, "")

    def store_side_rows(self, rows: pa.Table) -> int | None:
        keys, relation = self._plan.table.keys, _side_relation(self._lane)
        names = [column.name for column in side_columns(self._plan)]
        with _registered(self._db, {INPUT: rows.select(names)}):
            if self._plan.history is None:
                same = " AND ".join(f"t.{quote(key)} = s.{quote(key)}" for key in keys)
                self._db.execute(f"DELETE FROM {relation} AS t USING {INPUT} AS s WHERE {same}")
            filter_sql = f" WHERE {quote(COLUMN_VERSIONS)} IS NOT NULL" if COLUMN_VERSIONS in names else ""
            self._db.execute(f"INSERT INTO {relation} BY NAME FROM {INPUT}{filter_sql}")
        return None

    def delete_side_rows(self, max_sequence: SequenceKey) -> None:
        old = not_above_condition(DUCKDB, "t", cdc_sequence_columns(self._plan.table.sequence), max_sequence)
        self._db.execute(f"DELETE FROM {_side_relation(self._lane)} AS t WHERE {old}")

    def delete_rows(self, condition: str) -> None:
        self._db.execute(f"DELETE FROM {_relation(self._lane)} AS t WHERE {condition}")

    def write_rows(self, plan: ApplyPlan, rows: pa.Table, truncates: Sequence[Truncate]) -> None:
        relation = _relation(self._lane)
        for truncate in truncates:
            self._db.execute(render_truncate(plan, DUCKDB, relation, truncate))
        if rows.num_rows:
            names = [OP, *(column.name for column in plan.target), *([UNCHANGED] if plan.has_column_versions else [])]
            with _registered(self._db, {INPUT: rows.select(names)}):
                self._db.execute(render_merge(plan, DUCKDB, relation, INPUT))

    def _select(self, relation: str, columns: Sequence[str], wanted: Wanted, condition: str) -> pa.Table:
        tables = {f"{INPUT}_{i}": pa.table({"value": values}) for i, values in enumerate(wanted.values())}
        among = [
            f"EXISTS (FROM {table} AS w WHERE w.value IS NOT DISTINCT FROM t.{quote(name)})"
            for table, name in zip(tables, wanted, strict=True)
        ]
        where = " AND ".join(filter(None, [condition, *among])) or "true"
        with _registered(self._db, tables):
            rows = self._db.sql(f"SELECT {', '.join(map(quote, columns))} FROM {relation} AS t WHERE {where}")
            return rows.to_arrow_table()


# Tables.


def _relation(lane: Lane) -> str:
    return f'"main".{quote(lane.into)}'


def _side_name(lane: Lane) -> str:
    return f"side {lane.into}"


def _side_relation(lane: Lane) -> str:
    return f"{quote(OWN_SCHEMA)}.{quote(_side_name(lane))}"


@contextmanager
def _registered(db: duckdb.DuckDBPyConnection, tables: Mapping[str, pa.Table]) -> Iterator[None]:
    """Statements can read the Arrow tables by their names."""
    for name, table in tables.items():
        db.register(name, table)
    try:
        yield
    finally:
        for name in tables:
            db.unregister(name)


def _read_columns(db: duckdb.DuckDBPyConnection, relation: str) -> list[str]:
    """The columns of a table; empty when there is no table."""
    query = """SELECT column_name FROM duckdb_columns()
        WHERE lower('"' || schema_name || '"."' || replace(table_name, '"', '""') || '"') = lower(?)"""
    return [column for (column,) in db.execute(query, [relation]).fetchall()]


def _ensure_table(db: duckdb.DuckDBPyConnection, relation: str, columns: Sequence[Column]) -> bool:
    """Creates the table, or adds the columns that it lacks; true if it was created.

    DuckDB chooses its type for each Arrow type. Decimals of more than 38 digits become text.
    """
    existing_columns = {name.lower() for name in _read_columns(db, relation)}
    empty = to_duckdb_types(pa.schema([(column.name, column.type) for column in columns]).empty_table())
    with _registered(db, {INPUT: empty}):
        described = db.execute(f"DESCRIBE FROM {INPUT}").fetchall()
    definitions = {column: f"{quote(column)} {kind}" for column, kind, *_ in described}
    if not existing_columns:
        db.execute(f"CREATE TABLE {relation} ({', '.join(definitions.values())})")
        return True
    for column, definition in definitions.items():
        if column.lower() not in existing_columns:
            db.execute(f"ALTER TABLE {relation} ADD COLUMN {definition}")
    return False


def _refuse_similar_names(lane: Lane, plan: ApplyPlan) -> None:
    """DuckDB ignores the case of names."""
    spellings: dict[str, str] = {}
    for name in (column.name for column in plan.target):
        if spellings.setdefault(name.lower(), name) != name:
            raise ConfigProblem(
                f"table {plan.table.name} has columns that differ only in case, which DuckDB ignores: {name!r}",
                next_step=f"Rename or leave out one of them for lane {lane.id}.",
            )


def _delete_rows(db: duckdb.DuckDBPyConnection, lane: Lane) -> None:
    """Deletes the rows that the lane wrote, and its side rows."""
    if EVENT_ID in _read_columns(db, _relation(lane)):
        db.execute(f"DELETE FROM {_relation(lane)} WHERE {quote(EVENT_ID)} IS NOT NULL")
    if _read_columns(db, _side_relation(lane)):
        db.execute(f"DELETE FROM {_side_relation(lane)}")


# The states of lanes.


def _own(lane: Lane) -> list[object]:
    return [lane.pipeline, lane.id]


def _find_lane(db: duckdb.DuckDBPyConnection, lane: Lane) -> dict[str, Any] | None:
    """The row of a lane in the table of lanes, if there is one."""
    rows = db.execute(f"SELECT epoch, created, state FROM {LANES} WHERE {OWN}", _own(lane)).fetchall()
    return dict(zip(("epoch", "created", "state"), rows[0], strict=True)) if rows else None


def _acquire_lane(db: duckdb.DuckDBPyConnection, lane: Lane, *, created: bool) -> int:
    """Makes this instance the writer of the lane; returns its epoch."""
    lane_row = _find_lane(db, lane)
    if lane_row is None:
        values = [*_own(lane), lane.into, 1, created, None]
        db.execute(f"INSERT INTO {LANES} VALUES (?, ?, ?, ?, ?, ?)", values)
        return 1
    epoch, created = lane_row["epoch"] + 1, created or lane_row["created"]
    db.execute(f"UPDATE {LANES} SET epoch = ?, created = ? WHERE {OWN}", [epoch, created, *_own(lane)])
    return int(epoch)


def _refuse_other_lane(db: duckdb.DuckDBPyConnection, lane: Lane) -> None:
    """Raises ConfigProblem when another lane writes the table: both would write every row."""
    query = f"SELECT pipeline, lane FROM {LANES} WHERE lower(target) = lower(?) AND NOT ({OWN}) LIMIT 1"
    for pipeline, other in db.execute(query, [lane.into, *_own(lane)]).fetchall():
        raise ConfigProblem(
            f"lane {other} of pipeline {pipeline} writes table {lane.into} already",
            next_step="Give one of the two another table with `into`.",
        )


def _read_state(db: duckdb.DuckDBPyConnection, lane: Lane) -> LaneState | None:
    lane_row = _find_lane(db, lane)
    if lane_row is None or lane_row["state"] is None:
        return None
    try:
        return state_from_json(json.loads(lane_row["state"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLoss(
            f"the state of lane {lane.id} in {LANES} is damaged",
            next_step=f"Load the lane again with `replicator lanes resync {lane.id}`.",
        ) from error


def _write_state(db: duckdb.DuckDBPyConnection, lane: Lane, state: LaneState) -> None:
    text = json.dumps(state_to_json(state))
    db.execute(f"UPDATE {LANES} SET state = ? WHERE {OWN}", [text, *_own(lane)])


def _write_complete(db: duckdb.DuckDBPyConnection, lane: Lane, complete: CompletenessWatermark) -> None:
    """Publishes for readers up to which transaction the tables of a source are complete."""
    where, source = "pipeline = ? AND source = ?", [lane.pipeline, complete.source]
    row = (complete.transaction, complete.ended_at)
    if complete.transaction is None:
        stored_rows = db.execute(f"SELECT transaction, ended_at FROM {TRANSACTIONS} WHERE {where}", source).fetchall()
        row = stored_rows[0] if stored_rows else row
    db.execute(f"DELETE FROM {TRANSACTIONS} WHERE {where}", source)
    db.execute(
        f"INSERT INTO {TRANSACTIONS} VALUES (?, ?, ?, ?, ?, ?)", [*source, *row, complete.exact, list(complete.behind)]
    )


def _withdraw_complete(db: duckdb.DuckDBPyConnection, lane: Lane) -> None:
    """The lane lacks rows from now on."""
    db.execute(
        f"UPDATE {TRANSACTIONS} SET transaction = NULL, ended_at = NULL, exact = false, "
        "behind = list_sort(list_distinct(list_append(behind, ?))) WHERE pipeline = ? AND source = ?",
        [lane.id, lane.pipeline, lane.source],
    )


@contextmanager
def _translate_errors(doing: str) -> Iterator[None]:
    """Errors of DuckDB as errors of Replicator. Their texts may contain values of rows, so they are left out."""
    try:
        yield
    except ReplicatorError:
        raise
    except duckdb.IOException as error:
        if "lock" in str(error):
            raise Fenced(f"{doing}: another process has opened the DuckDB file") from error
        raise Retryable(f"{doing}: DuckDB cannot read or write its file") from error
    except duckdb.TransactionException as error:
        raise Retryable(f"{doing}: another transaction of this DuckDB file was faster") from error
    except duckdb.Error as error:
        raise Fatal(f"{doing}: DuckDB refused a statement ({type(error).__name__})") from error
