"""The PostgreSQL sink: tables in a schema of a database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.errors import Fatal
from replicator.domain.expr import Expr
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.options import to_timedelta
from replicator.ports.reads import ComparedColumn, TableSplit
from replicator.ports.sink import (
    CutoverDecision,
    ErasureResult,
    KeyErasure,
    LaneArtifact,
    LaneRemoval,
    SinkFeatures,
    StoredLane,
)

from ...apply.explain import explain
from ...arrow.masks import make_text_mask
from ...postgres.checksums import SETTINGS, TableChecksums
from ...postgres.connection import PostgresSession
from ...postgres.ddl import Catalogue, render_view
from ...postgres.lane_state import (
    FORGET_LANE,
    SELECT_LANE,
    TOUCH_STATE,
    WRITE_STATE,
    read_state,
    state_to_json,
    withdraw_completeness,
    write_schema_versions,
)
from ...postgres.names import TableLocation, escape, has_relation, quote_name, read_dsn
from ...postgres.table_reader import AS_TEXT, BATCH, TableReader, read_type, select_expression, to_array
from ...postgres.types import AnyType
from ...sql.checksums import can_render_postgres
from ...sql.dialect import DUCKDB, POSTGRES, Dialect
from ...sql.render import current_rows_condition, render_expression
from .gold import PostgresTables, describe_inputs
from .lane_objects import (
    await_readers,
    copy_stored_rows,
    has_lanes,
    move_tombstones,
    read_remains,
    refuse_unswappable,
    remove_lane,
    swap_tables,
)
from .lanes import PostgresLanes, refuse_other_writer
from .options import PostgresSettings
from .shared_staging import drop_shared_tables
from .target import side_table_name


class PostgresSink(PostgresLanes):
    """`ports.sink.Sink` over `pyarrow.Table`, with one table per lane.

    Options: `dsn`, `schema` (default `public`), `query_timeout` (seconds, default 60) and `answer_timeout`
    (seconds, default 300).

    All writes of one `apply` commit together, with the positions of their lanes (see `PostgresLanes`). Each of the
    methods here is one transaction, too. A lane's table is named `into`, with any characters, in at most 63 bytes.
    Needs PostgreSQL 15.
    """

    one_writer = True
    frame = pa.Table

    def __init__(self, options: PostgresSettings | Mapping[str, Any]) -> None:
        settings = PostgresSettings.read(options)
        dsn, timeout = read_dsn(settings.dsn), to_timedelta(settings.answer_timeout).total_seconds()
        self._schema, self._dsn = settings.schema_name, dsn
        self._reader = TableReader(dsn, settings.schema_name, settings.query_timeout)
        self._gold = PostgresTables(dsn, settings.schema_name)
        super().__init__(dsn, lambda lane: (settings.schema_name, lane.into), "sink", timeout)

    @property
    def features(self) -> SinkFeatures:
        return replace(
            super().features,
            watermarks=True,
            retention=True,
            refuse_second_writer=self.refuse_second_writer,
            explain=self.explain,
            reader=self._reader,
            select=self._reader.select,
            open_comparison=self.open_comparison,
            projection_inputs=describe_inputs(TableLocation(self._dsn, self._schema, "")),
            gold_tables=self._gold.feature,
            removal=LaneRemoval(self.list_artifacts, self.drop),
            swap=self.swap,
            erasure=KeyErasure(self.erase, self.end_versions),
            restore_state=self.restore,
        )

    def open_comparison(self, lane: Lane) -> AbstractContextManager[PostgresTargetSnapshot | None]:
        return open_postgres_comparison(self._dsn, self._schema, lane)

    def explain(self, lane: Lane, plan: ApplyPlan, fold: Dialect = DUCKDB) -> Mapping[str, str]:
        """See `ports.sink.SinkFeatures.explain`. `fold`: the dialect of the engine."""
        view = render_view(plan, self._schema, lane.into)
        stages = explain(plan, POSTGRES, quote_name(self._schema, lane.into), fold=fold)
        return stages if view is None else {**stages, "view": view}

    def refuse_second_writer(self, lane: Lane) -> None:
        with self.session.cursor(f"checking the writer of the table of lane {lane.id}") as cursor:
            if has_lanes(cursor):
                refuse_other_writer(cursor, lane, quote_name(*self._find_table(lane)))

    def list_artifacts(self, lane: Lane) -> Sequence[LaneArtifact]:
        with self.session.cursor(f"looking for lane {lane.id}") as cursor:
            return read_remains(cursor, lane, *self._find_table(lane)).artifacts

    def drop(self, lane: Lane) -> None:
        """Drops all or nothing: a drop that is killed removes nothing.

        A table that another lane also writes stays unchanged. Raises Fatal, with their names, when other
        objects depend on the table.
        """
        if not self.list_artifacts(lane):
            return
        self._acquire(lane, removing=True)
        with self._exclusive_transaction(lane, "dropping") as cursor:
            remove_lane(cursor, lane, *self._find_table(lane))
        self._release(lane)

    def erase(self, lane: Lane, key: Mapping[str, str]) -> ErasureResult:
        """See `ports.sink.KeyErasure.erase`. The server's files contain the row until the table is vacuumed."""
        if not self.list_artifacts(lane):
            return ErasureResult()
        number, (schema, table) = self._acquire(lane, removing=True), self._find_table(lane)
        rules = lane.row_transforms.column_transforms
        wanted = {}  # The key as the target stores it.
        for name, text in key.items():
            rule = rules.get_rule(name)
            wanted[rules.get_new_name(name)] = text if rule.mask is None else make_text_mask(rule.mask)(text)
        with self._exclusive_transaction(lane, "removing a row of") as cursor:
            drop_shared_tables(cursor, number)
            cursor.execute(TOUCH_STATE, (lane.pipeline, lane.id))
            rows = _remove_key(cursor, quote_name(schema, table), wanted)
            return ErasureResult(rows, _remove_key(cursor, side_table_name(number), wanted))

    def _list_side_tables(self, lane: Lane) -> list[str]:
        with self.session.cursor(f"looking for lane {lane.id}") as cursor:
            row = cursor.execute(SELECT_LANE, (lane.pipeline, lane.id)).fetchone() if has_lanes(cursor) else None
        return [side_table_name(row[0])] if row else []

    def swap(self, lane: Lane, rebuilt: Lane, decide_cutover: CutoverDecision) -> LaneState:
        """See `ports.sink.SinkFeatures.swap`. Readers wait during the commit."""
        number, other = self._acquire(lane), self._acquire(rebuilt)
        await_readers(self.session, rebuilt)
        (schema, table), (_, rebuilt_table) = self._find_table(lane), self._find_table(rebuilt)
        with self._exclusive_transaction(lane, "exchanging the table of", rebuilt) as cursor:
            rebuilt_state = read_state(cursor, rebuilt.pipeline, rebuilt.id)
            if rebuilt_state is None:
                raise Fatal(f"{rebuilt.id} is empty, so it cannot replace {lane.id}")
            refuse_unswappable(cursor, lane, schema, table)
            state = decide_cutover(read_state(cursor, lane.pipeline, lane.id), rebuilt_state)
            withdraw_completeness(cursor, lane)
            for one in (number, other):
                drop_shared_tables(cursor, one)
            swap_tables(cursor, lane, (schema, table), rebuilt_table, number)
            move_tombstones(cursor, number, other)
            for own_table in ("schemas", "schema_versions"):
                cursor.execute(FORGET_LANE.format(sql.SQL(own_table)), (lane.pipeline, lane.id))
                move = sql.SQL("UPDATE _replicator.{} SET lane = %s WHERE pipeline = %s AND lane = %s")
                cursor.execute(move.format(sql.SQL(own_table)), (lane.id, rebuilt.pipeline, rebuilt.id))
            cursor.execute(WRITE_STATE, (state_to_json(state), lane.pipeline, lane.id))
            cursor.execute(FORGET_LANE.format(sql.SQL("positions")), (rebuilt.pipeline, rebuilt.id))
        self._targets.pop(lane.id, None)
        self._release(rebuilt)
        return state

    def restore(self, lane: Lane, plan: ApplyPlan, stored: StoredLane) -> None:
        """See `ports.sink.SinkFeatures.restore_state`."""
        target = self.prepare_target(lane, plan)
        with self._exclusive_transaction(lane, "filling the table of") as cursor:
            if read_state(cursor, lane.pipeline, lane.id) is not None:
                raise Fatal(f"lane {lane.id} already has a state, so a checkpoint cannot be restored into it")
            copy_stored_rows(cursor, target, stored)
            write_schema_versions(cursor, lane, stored.versions)
            cursor.execute(WRITE_STATE, (state_to_json(stored.state), lane.pipeline, lane.id))

    def close(self) -> None:
        self._reader.close()
        self._gold.close()
        super().close()


def _remove_key(cursor: psycopg.Cursor, relation: str, key: Mapping[str, str]) -> int:
    """Deletes the rows of a table with that key, in the caller's transaction; returns their number.

    The number is 0 if the table does not exist, or if a text is not a value of its column.
    """
    if not has_relation(cursor, relation):
        return 0
    columns = cursor.execute(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
        "AND NOT attisdropped",
        (relation,),
    )
    kinds: dict[str, str] = dict(columns.fetchall())
    missing_name = next((name for name in key if name not in kinds), None)
    if missing_name is not None:
        raise Fatal(
            f"table {relation} has no column {missing_name!r}, which is needed to find the rows of a key",
            next_step="Load it again with `replicator lanes resync`, or remove it with `replicator drop`.",
        )
    values = {name: f"\\x{text}" if kinds[name] == "bytea" else text for name, text in key.items()}
    same = " AND ".join(f"t.{name} = k.{name}" for name in (escape(quote_name(name)) for name in key))
    rows = f"json_populate_record(NULL::{escape(relation)}, %s::json)"
    statement = f"DELETE FROM {escape(relation)} AS t USING {rows} AS k WHERE {same}"
    try:
        cursor.execute("SAVEPOINT erasing")
        return cursor.execute(statement.encode(), (json.dumps(values),), prepare=False).rowcount
    except psycopg.DataError:
        cursor.execute("ROLLBACK TO SAVEPOINT erasing")
        return 0


# Comparisons: the target at one commit of its lane.

FORMATS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
IDENTITY = "SELECT pg_current_snapshot()::text, to_regclass(%s)::oid::text"
BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0; "
    f"SET LOCAL row_security = off; {SETTINGS}"
)
"""The transaction is idle while rows are compared. With row security, a user may not see all rows."""


@contextmanager
def open_postgres_comparison(dsn: str, schema: str, lane: Lane) -> Iterator[PostgresTargetSnapshot | None]:
    """See `ports.sink.SinkFeatures.open_comparison`. One transaction reads the lane's state and its rows."""
    session = PostgresSession(dsn, "diff")
    try:
        columns = Catalogue(session).read_columns(schema, lane.into)
        if columns is None:
            yield None
            return
        with session.transaction(f"reading the target {schema}.{lane.into}") as cursor:
            cursor.execute(BEGIN, prepare=False)
            state = read_state(cursor, lane.pipeline, lane.id)
            if state is None:
                yield None
                return
            name = quote_name(schema, lane.into)
            [(number, identity)] = cursor.execute(IDENTITY, (name,)).fetchall()
            formats = dict(cursor.execute(FORMATS, (name,)).fetchall())
            yield PostgresTargetSnapshot(
                lane, schema, columns, formats, state.position, f"snapshot {number}", identity, cursor
            )
    finally:
        session.close()


@dataclass
class PostgresTargetSnapshot:
    """`ports.reads.TargetSnapshot` of a transaction."""

    lane: Lane
    schema: str
    types: dict[str, AnyType]
    formats: dict[str, str]
    position: Position
    commit: str
    identity: str
    cursor: psycopg.Cursor
    columns: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        self.columns = pa.schema([pa.field(name, read_type(sql_type)[0]) for name, sql_type in self.types.items()])

    def can_sum(self, columns: Sequence[ComparedColumn]) -> bool:
        return all(can_render_postgres(column.kind, self.formats[column.target]) for column in columns)

    def sum(self, split: TableSplit) -> pa.Table:
        columns = [(column.target, column) for column in split.columns]
        return self._checksums.sum_rows(
            self.cursor, columns, split.keys, within=split.within, without=split.without, condition=self._current
        )

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> pa.Table:
        columns = [(column.target, column) for column in split.columns]
        wanted = self._checksums.render_buckets(columns, split.keys, split.within, buckets)
        return self._query(f"{self._current} AND {wanted} AND {_render_where(split.where)}", ())

    def read_keys(self, keys: pa.Table, where: Expr | None) -> pa.Table:
        wanted, parameters = self._checksums.render_key_condition(keys)
        return self._query(f"{self._current} AND {wanted} AND {_render_where(where)}", parameters)

    def read_all(self) -> pa.Table:
        return self._query("true", ())

    def convert(self, name: str, values: pa.Array) -> pa.Array:
        """See `ports.reads.TargetSnapshot.convert`: the database reads the texts as values of the column's type."""
        kind, how = read_type(self.types[name])
        is_text = pa.types.is_string(values.type) and (pa.types.is_string(kind) or pa.types.is_time(kind))
        if not is_text or (values.type == kind and how != AS_TEXT):
            return values
        converted = how.replace("{0}", f"v.x::{escape(self.formats[name])}")
        query = f"SELECT {converted} FROM unnest(%s::text[]) WITH ORDINALITY AS v(x, n) ORDER BY v.n"
        self.cursor.execute(query.encode(), [values.to_pylist()], binary=True)
        return to_array([value for (value,) in self.cursor.fetchall()], kind)

    @property
    def _current(self) -> str:
        return escape(current_rows_condition(POSTGRES, self.lane, self.types))

    @property
    def _checksums(self) -> TableChecksums:
        return TableChecksums(quote_name(self.schema, self.lane.into), self.formats)

    def _query(self, condition: str, parameters: Sequence[object]) -> pa.Table:
        """The rows that match a condition, in which percent signs are doubled."""
        schema = self.columns
        select_list = ", ".join(select_expression(name, read_type(sql_type)[1]) for name, sql_type in self.types.items())
        query = f"SELECT {escape(select_list)} FROM {self._checksums.relation} AS t WHERE {condition}"
        self.cursor.execute(query.encode(), parameters, binary=True)
        batches = []
        while rows := self.cursor.fetchmany(BATCH):
            arrays = [to_array(values, f.type) for values, f in zip(zip(*rows, strict=True), schema, strict=True)]
            batches.append(pa.record_batch(arrays, schema=schema))
        return pa.Table.from_batches(batches, schema)


def _render_where(where: Expr | None) -> str:
    return "true" if where is None else escape(render_expression(where, POSTGRES, "t"))
