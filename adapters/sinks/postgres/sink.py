"""The PostgreSQL sink: tables in a schema of a database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from replicator.domain.errors import Fatal
from replicator.domain.policy.plan import ApplyPlan, LaneState
from replicator.ports.frames import Lane
from replicator.ports.options import to_timedelta
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
from ...postgres.ddl import render_view
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
from ...postgres.table_reader import TableReader
from ...sql.dialect import DUCKDB, POSTGRES, Dialect
from .comparison import PostgresTargetSnapshot, open_postgres_comparison
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

    def swap(self, lane: Lane, rebuilt: Lane, judge: CutoverDecision) -> LaneState:
        """See `ports.sink.SinkFeatures.swap`. Readers wait during the commit."""
        number, other = self._acquire(lane), self._acquire(rebuilt)
        await_readers(self.session, rebuilt)
        (schema, table), (_, rebuilt_table) = self._find_table(lane), self._find_table(rebuilt)
        with self._exclusive_transaction(lane, "exchanging the table of", rebuilt) as cursor:
            rebuilt_state = read_state(cursor, rebuilt.pipeline, rebuilt.id)
            if rebuilt_state is None:
                raise Fatal(f"{rebuilt.id} is empty, so it cannot replace {lane.id}")
            refuse_unswappable(cursor, lane, schema, table)
            state = judge(read_state(cursor, lane.pipeline, lane.id), rebuilt_state)
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
