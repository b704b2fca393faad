"""Adapters of another package: an event log with its reader, dead letters, gold tables, an event store, and a format."""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from box_options import BoxFormatOptions, BoxLogOptions, BoxTableOptions
from pyarrow import feather

from adapters.apply.projections import foreign_table_error, group_column, other_columns_error, table_remark
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.event_log import to_raw
from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.events import AppendedEvent, NewEvent
from replicator.domain.patterns import TopicFilter
from replicator.domain.policy import EVENT_LOG_POLICY
from replicator.domain.policy.plan import ApplyPlan, Counts, LaneState, state_from_json, state_to_json
from replicator.domain.projection import InputVersion, Projection, RefreshRecord, RefreshWork
from replicator.ports.frames import ApplyOutcome, Lane, LaneOutcome, RejectRows, Write
from replicator.ports.projector import GoldTable, GoldTables, InputMissing, InputTable, InputTables, ReplaceResult
from replicator.ports.sink import SinkFeatures
from replicator.ports.stores import DeadLetter
from replicator.testing.fakes import FakeDeadLetters, FakeSource, list_positions, refuse_gap
from replicator.testing.stores_contract import FakeEventStore


class BoxLog:
    """`replicator.ports.sink.Sink` for event logs: an Arrow file of each write, and the state of each lane as JSON."""

    frame = pa.Table
    features = SinkFeatures(policies=frozenset({EVENT_LOG_POLICY}))

    def __init__(self, options: BoxLogOptions) -> None:
        self._folder = Path(options.path)

    def prepare(self, lane: Lane, plan: ApplyPlan) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def state(self, lane: Lane) -> LaneState | None:
        file = self._find_file(lane)
        return state_from_json(json.loads(file.read_text())) if file.exists() else None

    def apply(self, writes: Sequence[Write[pa.Table]], reject: RejectRows[pa.Table]) -> ApplyOutcome:
        applied = {}
        for write in writes:
            state = self.state(write.lane) or LaneState()
            refuse_gap(write, state.position)
            rows = write.folded.frame
            rows = rows.filter(
                pa.array([at >= state.position.get(place, 0) for place, at in list_positions(rows)], pa.bool_())
            )
            feather.write_feather(rows, str(self._folder / f"{len(list(self._folder.glob('*.arrow'))):06}.arrow"))
            done = replace(
                state, position=state.position.advanced_to(write.span.end), identity=tuple(write.identity.items())
            )
            self.skip(write.lane, done)
            applied[write.lane.id] = LaneOutcome(done.position, Counts(applied=rows.num_rows))
        return applied

    def skip(self, lane: Lane, state: LaneState) -> None:
        self._find_file(lane).write_text(json.dumps(state_to_json(state)))

    def reset(self, lane: Lane) -> None:
        self._find_file(lane).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is open."""

    def _find_file(self, lane: Lane) -> Path:
        return self._folder / f"{quote(lane.id, safe='')}.json"


def read_box(options: Mapping[str, Any]) -> FakeSource:
    """Reads the records of the selected topics from the log."""
    wanted, source = TopicFilter(options["topics"]), FakeSource()
    for file in sorted(Path(options["path"]).glob("*.arrow")):
        raw = to_raw(feather.read_table(file))
        source.add_records(raw.filter(pa.array([wanted(topic) for topic in raw["topic"].to_pylist()], pa.bool_())))
    return source


class BoxDecoder(DebeziumJsonDecoder):
    """`replicator.ports.decoder.Decoder`. Refuses a box whose label is down."""

    def __init__(self, options: BoxFormatOptions) -> None:
        if options.label == "down":
            raise ConfigProblem("the box stands on its head", next_step="Turn it.")
        super().__init__({"keys": options.keys, "schema": options.declared})


class BoxEventStore(FakeEventStore):
    """`replicator.ports.stores.EventStore` in a file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        if options.keys() != {"path"}:
            raise ValueError(f"the keys of a box are path, and not {', '.join(options)}")
        self._file = Path(options["path"])
        self.events += pickle.loads(self._file.read_bytes()) if self._file.exists() else []

    def append(self, events: Sequence[NewEvent]) -> Sequence[AppendedEvent]:
        done = super().append(events)
        self._file.write_bytes(pickle.dumps(self.events))
        return done


class BoxDeadLetters(FakeDeadLetters):
    """`replicator.ports.stores.DeadLetters` in a file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._file = Path(options["path"]) / "letters"
        if self._file.exists():
            super().write(pickle.loads(self._file.read_bytes()))

    def write(self, letters: Sequence[DeadLetter]) -> None:
        super().write(letters)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(pickle.dumps(self.read()))


class BoxTables(BoxLog):
    """`replicator.ports.sink.Sink` for gold tables: an Arrow file each. The file's metadata hold the record of the
    refresh."""

    def __init__(self, options: BoxTableOptions | Mapping[str, Any]) -> None:
        self._folder = Path(BoxTableOptions.read(options).path)
        self._seen: dict[str, Mapping[bytes, bytes]] = {}
        self.features = SinkFeatures(
            policies=frozenset(),
            projection_inputs=InputTables(str(self._folder), self.locate, open_tables),
            gold_tables=GoldTables(self.find, self.replace),
        )

    def locate(self, table: str | None) -> Path:
        return self._folder / f"{table}.arrow"

    def find(self, projection: Projection) -> GoldTable:
        file = self.locate(projection.into)
        schema = read_schema(file)
        about = self._seen[projection.name] = schema.metadata or {}
        if file.exists() and about.get(b"remark") != table_remark(projection).encode():
            raise foreign_table_error(projection)
        last = RefreshRecord.from_json(json.loads(about[b"record"])) if b"record" in about else None
        has_groups = last is not None and projection.partition_by is not None
        return GoldTable(last, str(file), group_column(projection, schema).type if has_groups else None)

    def replace(
        self, projection: Projection, work: RefreshWork, record: RefreshRecord, rows: pa.Table | None
    ) -> ReplaceResult:
        file = self.locate(projection.into)
        about = read_schema(file).metadata or {}
        if about != self._seen.pop(projection.name):
            raise Retryable(f"another writer changed table {projection.label} first")
        number = int(about.get(b"number", 0)) + 1
        said = {"remark": table_remark(projection), "record": json.dumps(record.to_json()), "number": str(number)}
        write_table(file, rows if work.groups is None else self._replace_groups(projection, work, rows), said)
        return ReplaceResult(number, 0 if rows is None else rows.num_rows)

    def _replace_groups(self, projection: Projection, work: RefreshWork, rows: pa.Table | None) -> pa.Table:
        """All rows of the table, with `rows` as the rows of the groups."""
        before = feather.read_table(self.locate(projection.into)).replace_schema_metadata(None)
        if rows is None:
            return before
        if rows.schema != before.schema:
            raise other_columns_error(projection)
        groups = before[group_column(projection, before.schema).name].to_pylist()
        return pa.concat_tables([before.filter(pa.array([group not in work.groups for group in groups], pa.bool_())), rows])


def write_table(file: Path, rows: pa.Table, metadata: Mapping[str, str]) -> None:
    """Writes the file whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(rows.replace_schema_metadata(metadata), str(file.with_suffix(".new")))
    file.with_suffix(".new").replace(file)


def read_schema(file: Path) -> pa.Schema:
    """The schema with its metadata. Empty if there is no file."""
    return feather.read_table(file).schema if file.exists() else pa.schema([])


@contextmanager
def open_tables(files: Sequence[Path]) -> Iterator[Sequence[InputTable]]:
    """Opens a stable copy: later writes do not change it."""
    found = []
    for file in files:
        if not file.exists():
            raise InputMissing(file)
        rows = feather.read_table(file, memory_map=False)
        number = int((rows.schema.metadata or {}).get(b"number", 0))
        found.append(InputTable(InputVersion(str(file), number), str(file), partial(select_columns, rows)))
    yield found


def select_columns(rows: pa.Table, columns: Collection[str] | None) -> pa.Table:
    """Selects the columns that exist, at least one."""
    return rows.select([name for name in rows.column_names if columns is None or name.lower() in columns] or [0])
