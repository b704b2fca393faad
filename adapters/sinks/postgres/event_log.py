"""The event log as a table of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import psycopg
import pyarrow as pa

from replicator.domain.as_of import LogCut
from replicator.domain.erasures import ERASED_RECORD
from replicator.domain.errors import DataLoss
from replicator.domain.policy.policy_names import EVENT_LOG_POLICY
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.sink import SinkFeatures

from ...postgres.erasure import empty_records, read_topic_records
from ...postgres.event_log_reader import open_snapshot
from ...postgres.lane_state import TOUCH_STATE, read_state
from ...postgres.names import quote_name
from ...postgres.options import EventLogOptions, TableLocation
from ...sql.dialect import text_literal
from .lanes import PostgresLanes
from .log_cut import cut_at_positions, cut_at_time


class PostgresEventLog(PostgresLanes):
    """`ports.sink.Sink` for lanes whose plan is `domain.event_log.make_event_log_plan()`.

    Options: `dsn`, `schema` and `table` (default `cdc_raw.cdc_events`). All lanes append to this table, rows
    and position in one transaction. The table may already exist, with `headers` as jsonb and with additional
    columns.
    """

    policies = frozenset({EVENT_LOG_POLICY})
    frame = pa.Table

    def __init__(self, options: Mapping[str, object]) -> None:
        given = EventLogOptions.from_options(options)
        self._log = TableLocation(given.dsn.get_secret_value(), given.schema_name, given.table)
        super().__init__(given.dsn.get_secret_value(), lambda _: (given.schema_name, given.table), "event log")

    @property
    def features(self) -> SinkFeatures:
        return replace(super().features, record_erasure=self, find_cut=self.find_cut)

    def records(self, lane: Lane) -> Iterator[pa.Table]:
        state = self.state(lane)
        topics = sorted({p.topic for p in state.position}) if state else []
        if topics:
            with self.session.transaction(f"reading the records of lane {lane.id}") as cursor:
                cursor.execute("BEGIN")
                yield from read_topic_records(cursor, quote_name(*self._find_table(lane)), topics)

    def empty(self, lane: Lane, places: Sequence[tuple[str, int, int]]) -> str:
        """See `ports.sink.RecordErasure.empty`. It is one transaction."""
        if places:
            self._acquire(lane)
            with self._exclusive_transaction(lane, "emptying records of") as cursor:
                cursor.execute(TOUCH_STATE, (lane.pipeline, lane.id))
                ids = [f"{topic}-{partition}-{offset}" for topic, partition, offset in places]
                empty_records(cursor, quote_name(*self._find_table(lane)), ids, ERASED_RECORD)
        return ""

    def find_cut(self, topics: Collection[str], at: datetime | Position, covered: Position) -> LogCut | None:
        with open_snapshot(self.session, self._log) as cursor:
            if isinstance(at, datetime):
                return cut_at_time(cursor, self._log, topics, at, covered)
            return cut_at_positions(cursor, self._log, topics, at, covered)

    def clear(self, cursor: psycopg.Cursor, lane: Lane, relation: str) -> None:
        """Deletes the records of the topics that the lane has applied. Records of other lanes stay.

        Only the lane's state lists these topics. Raises DataLoss when the state cannot be read.
        """
        try:
            state = read_state(cursor, lane.pipeline, lane.id)
        except DataLoss as lost:
            raise _unreadable_state_error(lane, relation, lost) from lost
        topics = sorted({p.topic for p in state.position}) if state else []
        cursor.execute(
            f"DELETE FROM {relation} WHERE topic = ANY(%s)".replace("%", "%%").replace("%%s", "%s").encode(), (topics,)
        )


def _unreadable_state_error(lane: Lane, relation: str, lost: DataLoss) -> DataLoss:
    key = f"pipeline = {text_literal(lane.pipeline)} AND lane = {text_literal(lane.id)}"
    return DataLoss(
        f"{lost.sentence}, so it is unknown which records belong to lane {lane.id}",
        next_step=f"Restore it. Or stop the daemon, delete the records of its topics from {relation}, and run "
        f"`UPDATE _replicator.positions SET state = NULL WHERE {key}`: the lane then starts from scratch.",
    )
