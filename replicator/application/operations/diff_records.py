"""Records for a comparison: the changes between two positions of a stream, and archives of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.application.catalog import Catalog
from replicator.application.sink_features import get_reader
from replicator.domain.change import OFFSET, OLD_KEY, OP, PARTITION, RAW, RECORD_POSITION, TOPIC, Op
from replicator.domain.differences import to_key_texts
from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, RecordPosition, TopicPartition
from replicator.ports.components import Components
from replicator.ports.frames import Batch, Lane
from replicator.ports.reads import SourceSnapshot
from replicator.ports.source import BACKFILL_TOPICS, Source
from replicator.ports.stores import DeadLetter

from .backfill import find_halt
from .change_history import learn_schema
from .dead_letters import to_raw_frame

CHANGE_COLUMNS = [OP, OLD_KEY, TOPIC, PARTITION, OFFSET]
MANY_RECORDS = 50_000
"""From here on, records are decoded by processes of their own, which take a second to start."""


@dataclass(frozen=True)
class StoredRecords:
    """The raw frames in an archive file."""

    file: Path

    def __iter__(self) -> Iterator[pa.Table]:
        with pq.ParquetFile(self.file) as stored:
            for batch in stored.iter_batches():
                yield pa.Table.from_batches([batch])


@dataclass(frozen=True)
class ChangeTail:
    """The changes of a table between two positions.

    - `frames`: their records.
    - `keys`: the keys that they name, each once. `last`: per text of such a key, the position of its last change.
    - `is_truncated`: one of them deleted all rows.
    """

    frames: Iterable[pa.Table]
    keys: pa.Table
    last: Mapping[str, RecordPosition]
    is_truncated: bool

    def with_keys(self, more: pa.Table) -> ChangeTail:
        """The tail with other keys, too."""
        return replace(self, keys=merge_keys([self.keys, more]))


class TableRecords:
    """Decodes records of one table of a source."""

    def __init__(self, components: Components, lane: Lane) -> None:
        self._table = lane.table
        self._decoder, self._engine = components.build_decoder(lane.source), components.build_engine()
        self._catalog = Catalog(self._engine.frames, self._decoder, components.sources[lane.source].rules_for)
        self._components, self._source = components, lane.source
        self._has_own_records: dict[str, bool] = {}

    def only_own(self, source: Source[pa.Table], position: Position) -> Position:
        """The position in the topics of the table. The register names a topic once a pipeline has read a record of it.
        So the first records of other topics are read here."""
        registered = self._components.register.load(self._source).topics
        own = {*registered.get(self._table, ()), BACKFILL_TOPICS + self._table}
        known_topics = {topic for topics in registered.values() for topic in topics} | own
        for topic in {partition.topic for partition in position} - known_topics:
            if self._has_records(source, topic):
                own.add(topic)
        return position.only(partition for partition in position if partition.topic in own)

    def _has_records(self, source: Source[pa.Table], topic: str) -> bool:
        """True if the first records of a topic are of the table."""
        if topic not in self._has_own_records:
            first, end = source.beginning(), source.end()
            partitions = [p for p in end if p.topic == topic and first.get(p, 0) < end[p]]
            frames, stop = list[pa.Table](), Event()

            def read_batch(batch: Batch[pa.Table]) -> None:
                frames.append(batch.frame)
                if batch.records:
                    stop.set()

            for partition in partitions:
                source.read(first.only([partition]), end.only([partition]), read_batch, stop)
            slices = [slice_ for frame in frames for slice_ in self._engine.route(frame, self._decoder).slices]
            self._has_own_records[topic] = any(slice_.table == self._table for slice_ in slices)
        return self._has_own_records[topic]

    def read_tail(self, source: Source[pa.Table], start: Position, end: Position, file: Path) -> ChangeTail:
        """The changes in `source` from `start` to `end`. Their records go into the new `file`, as there may be many. A
        partition that `start` does not name is read from its beginning."""
        first = source.beginning()
        until = self.only_own(source, end)
        begin = Position({partition: start.get(partition, first.get(partition, 0)) for partition in until})
        until = until.only(partition for partition, offset in until.items() if begin[partition] < offset)
        changes: list[pa.Table] = []
        with pq.ParquetWriter(file, RAW) as writer:

            def read_batch(batch: Batch[pa.Table]) -> None:
                for frame, decoded in self._decode(batch.frame):
                    writer.write_table(frame.select(RAW.names).cast(RAW))
                    changes.append(decoded)

            if until:
                source.read(begin.only(until), until, read_batch, Event())
        truncated = any(pc.any(pc.equal(frame[OP], Op.TRUNCATE.value)).as_py() for frame in changes)
        last: dict[str, RecordPosition] = {}
        tables: list[pa.Table] = []
        for frame in changes:
            keys = frame.drop_columns(CHANGE_COLUMNS)
            texts = to_key_texts(keys.combine_chunks().columns, len(frame)).to_pylist()
            positions = zip(*(frame[name].to_pylist() for name in RECORD_POSITION), strict=True)
            last.update(zip(texts, positions, strict=True))
            tables.append(keys)
            old = frame.filter(pc.is_valid(frame[OLD_KEY]))[OLD_KEY]
            if len(old):
                former = {name: pc.struct_field(old, name) for name in keys.column_names}
                tables.append(pa.table(former, schema=keys.schema))
        return ChangeTail(StoredRecords(file), merge_keys(tables).drop_null(), last, truncated)

    def read_keys(self, letters: Sequence[DeadLetter]) -> Iterator[tuple[DeadLetter, dict[str, Any]]]:
        """Dead letters whose key can be read, with their key columns."""
        by_position = {letter.record_position: letter for letter in letters}
        for _, decoded in self._decode(to_raw_frame(letters)):
            names = [name for name in decoded.column_names if name not in CHANGE_COLUMNS]
            for row in decoded.to_pylist():
                key = {name: row[name] for name in names}
                if None not in key.values():
                    yield by_position[row[TOPIC], row[PARTITION], row[OFFSET]], key

    def _decode(self, raw: pa.Table) -> Iterable[tuple[pa.Table, pa.Table]]:
        """The records of the table, and their changes: key, old key, operation and position."""
        for slice_ in self._engine.route(raw, self._decoder).slices:
            if slice_.table == self._table:
                schema = learn_schema(self._catalog, slice_)
                changes, rejects = self._engine.decode(slice_, self._decoder, schema)
                names = [*schema.keys, *CHANGE_COLUMNS]
                yield slice_.frame, pa.concat_tables([changes.select(names), rejects.select(names)])


def merge_keys(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables, each once. Fatal if a column has lists or structs."""
    with_columns = [table for table in tables if table.num_columns]
    if not with_columns:
        return pa.table({})
    whole = pa.concat_tables(with_columns, promote_options="permissive").replace_schema_metadata(None)
    for column in whole.schema:
        if pa.types.is_nested(column.type):
            raise Fatal(
                f"Key column {column.name} has values of the type {column.type}, by which no rows are found.",
                next_step="Compare with the event log: `--against log`.",
            )
    return whole.group_by(whole.column_names).aggregate([])


def write_records(file: Path, frames: Iterable[pa.Table]) -> int:
    """Write raw frames as one archive, and return the number of records. Without frames there is no file."""
    count = 0
    writer: Any = None
    for frame in frames:
        writer = writer or pq.ParquetWriter(file, RAW)
        writer.write_table(frame.select(RAW.names).cast(RAW))
        count += frame.num_rows
    if writer is not None:
        writer.close()
    return count


def build_rows(
    components: Components,
    lane: Lane,
    folder: Path,
    frames: Iterable[pa.Table],
    then: Iterable[pa.Table] = (),
    *,
    where: str = "",
) -> tuple[pa.Table, Sequence[DeadLetter]]:
    """The current rows that the lane makes of records and of later ones, and the records that it rejects. `folder` is empty,
    and is filled with a temporary lake. `where`: a condition, in addition to the lane's own."""
    into = "expected"
    records = folder / "records"
    records.mkdir(parents=True)
    count = write_records(records / "0.parquet", frames) + write_records(records / "1.parquet", then)
    if not count:
        return pa.table({}), ()
    lake = components.use_records(lane, folder, into, where)
    lake.catch_up(in_batches=count > MANY_RECORDS)
    with closing(lake.open_dead_letters()) as letters:
        rejected = letters.read()
    with closing(lake.open_sink(lane.sink)) as sink:
        reader = get_reader(sink)
        return reader.read(into) if into in reader.tables() else pa.table({}), rejected


# Waits until the connector and a lane have passed the point of a snapshot.

ASK_EVERY = 0.2
REPORT_EVERY = 2.0


@dataclass(frozen=True)
class DiffWait:
    """Waits at most `patience` seconds for each."""

    components: Components
    source: Source[pa.Table]
    patience: float
    show_line: Callable[[str], None]

    def await_delivery(self, snapshot: SourceSnapshot) -> bool:
        """Return when the log contains every change that the snapshot contains. False if nothing shows it."""
        deadline = time.monotonic() + self.patience
        while (delivered := snapshot.is_delivered()) is False:
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    f"The connector has not confirmed {snapshot.point} within {self.patience:.0f} s.",
                    next_step="See if it runs (`replicator doctor`). A connector without changes confirms its position only "
                    "with `heartbeat.interval.ms`. `--timeout` waits longer.",
                )
            time.sleep(ASK_EVERY)
        return bool(delivered)

    def await_lane(self, lane: Lane, end: Position, snapshot: SourceSnapshot, records: TableRecords) -> Fatal | None:
        """Return when the lane has applied the log up to `end`. For a lane that has stopped before: why."""
        started, has_daemon = time.monotonic(), self.components.ask_daemon() is not None
        reported = started
        while behind := self._count_behind(lane, end, records):
            if time.monotonic() > reported + REPORT_EVERY:
                reported = time.monotonic()
                self.show_line(f"{lane.id}: {format_count(sum(behind.values()), 'record')} behind")
            status = self.components.ask_daemon()
            if status is not None and (halt := find_halt(one for one in status["lanes"] if one["id"] == lane.id)):
                return halt
            if not has_daemon:
                self.show_line(f"{lane.id}: it is behind, and no daemon runs: start it meanwhile")
                has_daemon = True
            if time.monotonic() > started + self.patience:
                raise EnvironmentProblem(
                    f"Lane {lane.id} has not passed {snapshot.point} within {self.patience:.0f} s. It is behind in "
                    f"{', '.join(sorted(map(str, behind)))}.",
                    next_step="Start the daemon if it does not run, or wait longer with `--timeout`.",
                )
            time.sleep(ASK_EVERY)
        return None

    def _count_behind(self, lane: Lane, end: Position, records: TableRecords) -> Mapping[TopicPartition, int]:
        """Per partition the records up to `end` that the daemon has not read, or that the lane has not applied."""
        status = self.components.ask_daemon()
        for one in status["sources"] if status is not None else ():
            if one["name"] == lane.source:
                read = Position.from_json(one["position"])
                if unread := subtract(end, read):
                    return unread
        end_position = records.only_own(self.source, end)
        with closing(self.components.open_sink(lane.sink)) as sink:
            state = sink.state(lane)
        return subtract(end_position, state.position if state is not None else Position())


def subtract(end: Position, position: Position) -> dict[TopicPartition, int]:
    """Per partition the offsets from `position` to `end`, where it is behind."""
    return {p: offset - position.get(p, 0) for p, offset in end.items() if position.get(p, 0) < offset}
