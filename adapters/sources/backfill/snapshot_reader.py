"""Snapshots of a table: read whole into the journal, or compared with a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import RAW
from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.ports.reads import KeyRange, Repair, TableSplit
from replicator.ports.runtime import ShowLine
from replicator.ports.source import BackfillSnapshot

from .database import BackfillTable, DebeziumEvents, Row, SnapshotPoint, SourceDatabase, TableSnapshot, refuse_names
from .journal import BackfillFolder, BackfillState

# Reads a table whole, and stores its rows in the journal.

PIECE_ROWS = 50_000
PIECE_BYTES = 32 << 20
SnapshotProgress = tuple[Sequence[str], SnapshotPoint]
"""The last key that was read, and the snapshot."""


class TableBackfill:
    """`ports.source.Backfill` of one table of a database. Options:

    - `table`; `keys`, if not those of its primary key.
    - `state`: the folder of the source's journal. `piece_rows`: the most rows of one file.
    - `plain_names`: the stream contains only names that Avro allows.
    - For a table with private columns: `private` masks its records, `masked` has the names of these columns, and `masks`
      is a text that changes with the masks.

    The journal contains no values of private columns. So if a key column is private, the position of an unfinished call
    is unknown, and the next call starts from the beginning.
    """

    def __init__(self, database: SourceDatabase[Any], options: Mapping[str, Any]) -> None:
        self._database = database
        self._name = str(options["table"])
        self._keys: Sequence[str] | None = options.get("keys") or None
        self._kept = BackfillFolder(Path(str(options["state"])), self._name, options.get("private"))
        self._masked = frozenset(options.get("masked", ()))
        self._masks = str(options.get("masks", ""))
        self._piece_rows = int(options.get("piece_rows", PIECE_ROWS))
        self._plain_names = bool(options.get("plain_names"))
        self._is_held = False

    def rows(self, report: ShowLine, *, from_scratch: bool = False) -> BackfillSnapshot:
        if not self._is_held:
            self._kept.lock()
            self._is_held = True
        table = self._database.describe_table(self._name, self._keys)
        if self._plain_names:
            refuse_names(table)
        this = self._database.identity()
        state = None if from_scratch else self._kept.read_state()
        # A run cannot be resumed if it read another database, or a table of another form.
        if state is not None and (state.stage == "done" or (state.system, state.form) != (this, self._describe_form(table))):
            state = None
        if state is not None and state.stage == "rows" and self._has_masked_key(table):
            state = None
        resumed = state is not None and bool(self._kept.list_run_files(state.run))
        if state is None or state.stage == "rows":
            state = self._read_rows(table, this, state, report)
        rows = sum(
            piece.end - piece.first for piece, notes in self._kept.list_run_files(state.run) if notes["stage"] == "rows"
        )
        return BackfillSnapshot(rows, resumed, state.below, table.keys, state.begun, self._find_end())

    def deletes(self, keys: pa.Table) -> tuple[int, Position]:
        state = self._read_state()
        table = self._database.describe_table(self._name, self._keys)
        table = table.to_masked(self._masked.intersection(table.keys))
        # The snapshots of this run, each with the last key that was read in it. The last applies to all keys above.
        by_place: dict[tuple[int, ...], SnapshotProgress] = {}
        for _, notes in self._kept.list_run_files(state.run):
            if notes["stage"] == "rows":
                point = SnapshotPoint(tuple(notes["place"]), notes["micros"])
                by_place[point.place] = notes["last"], point
        if not by_place:
            begun_micros = int(datetime.fromisoformat(state.begun).timestamp() * 1_000_000)
            by_place[state.below] = (), SnapshotPoint(state.below, begun_micros)
        points = list(by_place.values())
        last_keys = [last for last, _ in points[:-1]]
        rows = [(key, points[number][1]) for key, number in self._database.locate_rows(table, keys, last_keys)]
        events = DebeziumEvents(table, self._database.log)
        records = self._kept.build_records(
            [events.encode_key(k) for k, _ in rows], [events.encode_delete(k, m) for k, m in rows]
        )
        record_keys = records["key"].combine_chunks()
        is_stored = pa.array([False] * len(record_keys), pa.bool_())
        for piece, _ in self._kept.list_run_files(state.run):
            is_stored = pc.or_(is_stored, pc.is_in(record_keys, value_set=piece.read_keys().combine_chunks()))
        is_gone = pc.invert(is_stored)
        delete_records = records.filter(is_gone)
        if delete_records.num_rows:
            micros = max(point.micros for (_, point), one in zip(rows, is_gone.to_pylist(), strict=True) if one)
            self._kept.append(delete_records, {"run": state.run, "stage": "deletes", "micros": micros})
        return int(delete_records.num_rows), self._find_end()

    def finish(self) -> None:
        state = self._read_state()
        self._kept.write_state(replace(state, stage="done"))
        self._kept.remove_before(state.run)

    def close(self) -> None:
        self._kept.unlock()
        self._is_held = False

    def _find_end(self) -> Position:
        pieces = self._kept.list_files()
        return Position({self._kept.topic: pieces[-1].end} if pieces else {})

    def _read_state(self) -> BackfillState:
        state = self._kept.read_state()
        if state is None:
            raise Fatal(f"No rows of {self._name} were written down.", next_step="Repeat the command.")
        return state

    def _describe_form(self, table: BackfillTable[Any]) -> str:
        return table.form + self._masks

    def _has_masked_key(self, table: BackfillTable[Any]) -> bool:
        """True if a key column is private."""
        return not self._masked.isdisjoint(table.keys)

    def _read_rows(self, table: BackfillTable[Any], this: str, state: BackfillState | None, tell: ShowLine) -> BackfillState:
        with self._database.open_snapshot(table, tell) as snapshot:
            point = snapshot.point
            if state is None:
                begun_at = datetime.fromtimestamp(point.micros / 1_000_000, UTC).isoformat()
                state = self._kept.begin_run(point.place, begun_at, this, self._describe_form(table))
            read = [(piece, notes) for piece, notes in self._kept.list_run_files(state.run) if notes["stage"] == "rows"]
            count = sum(piece.end - piece.first for piece, _ in read)
            last_key: Sequence[str] | None = read[-1][1]["last"] if read else None
            total = snapshot.count()
            for keys, values, last in self._batch_rows(snapshot.rows(last_key), table, point):
                notes = {"run": state.run, "stage": "rows", "place": point.place, "micros": point.micros}
                notes |= {"last": [] if self._has_masked_key(table) else last}
                self._kept.append(self._kept.build_records(keys, values), notes)
                count += len(keys)
                # The total is an estimate.
                progress = f"({100 * count // total} %) of about {total:,} " if total and count <= total else ""
                tell(f"{self._name}: {count:,} {progress}rows read")
        return self._kept.write_state(replace(state, stage="deletes"))

    def _batch_rows(
        self, rows: Iterator[Row], table: BackfillTable[Any], point: SnapshotPoint
    ) -> Iterator[tuple[list[bytes], list[bytes], list[str]]]:
        """Keys and values of consecutive rows in key order, each time with the last key."""
        events = DebeziumEvents(table, self._database.log)
        keys: list[bytes] = []
        values: list[bytes] = []
        size, last = 0, list[str]()
        for key, row, texts in rows:
            keys.append(events.encode_key(key))
            values.append(events.encode_read(row, point))
            size, last = size + len(values[-1]), list(texts)
            if len(keys) >= self._piece_rows or size >= PIECE_BYTES:
                yield keys, values, last
                keys, values, size = [], [], 0
        if keys:
            yield keys, values, last


# Snapshots of a source's table for comparisons: its rows as read events, as a backfill would store them.

FRAME_ROWS = 50_000
REPAIR = "replicator.repair"
"""The connector's name in the records of a repair, and the form of its run in the journal."""


class DatabaseComparison:
    """`ports.reads.ComparableTable` of one table of a database. Options as of `TableBackfill`."""

    def __init__(self, database: SourceDatabase[Any], options: Mapping[str, Any]) -> None:
        self._database = database
        self._name = str(options["table"])
        self._keys: Sequence[str] | None = options.get("keys") or None
        self._kept = BackfillFolder(Path(str(options["state"])), self._name, options.get("private"))
        self._plain_names = bool(options.get("plain_names"))

    @contextmanager
    def open_snapshot(self, report: ShowLine) -> Iterator[DatabaseSnapshot]:
        table, unread = self._database.describe_comparable(self._name, self._keys)
        if self._plain_names:
            refuse_names(table)
        with self._database.open_snapshot(table, report) as snapshot:
            yield DatabaseSnapshot(table, snapshot, DebeziumEvents(table, self._database.log), self._kept, unread)

    def repair(self, keys: pa.Table, report: ShowLine) -> Repair:
        self._kept.lock()
        try:
            state = self._kept.read_state()
            if state is not None and state.stage != "done" and state.form != REPAIR:
                raise Fatal(
                    f"A backfill of {self._name} is not finished.",
                    next_step=f"Finish it: `replicator backfill {self._name}`.",
                )
            table = self._database.describe_table(self._name, self._keys)
            with self._database.open_snapshot(table, report) as snapshot:
                events, point = DebeziumEvents(table, self._database.log, REPAIR), snapshot.point
                rows = list(snapshot.rows_with_keys(keys))
                present = {key for key, _, _ in rows}
                absent = [key for key, _ in self._database.locate_rows(table, keys, ()) if key not in present]
                reads = [events.encode_read(row, point) for _, row, _ in rows]
                deletes = [events.encode_delete(key, point) for key in absent]
                record_keys = [events.encode_key(key) for key in [*(key for key, _, _ in rows), *absent]]
                records = self._kept.build_records(record_keys, [*reads, *deletes])
                begun_at = datetime.fromtimestamp(point.micros / 1_000_000, UTC).isoformat()
                run = self._kept.begin_run(point.place, begun_at, self._database.identity(), REPAIR)
                notes = {"run": run.run, "stage": "rows", "place": point.place, "micros": point.micros, "last": []}
                self._kept.append(records, notes)
                self._kept.write_state(replace(run, stage="done"))
                return Repair(len(rows), len(absent), Position({self._kept.topic: self._kept.list_files()[-1].end}))
        finally:
            self._kept.unlock()


class DatabaseSnapshot:
    """`ports.reads.SourceSnapshot` of a `TableSnapshot`."""

    def __init__(
        self,
        table: BackfillTable[Any],
        snapshot: TableSnapshot,
        events: DebeziumEvents,
        folder: BackfillFolder,
        unread: Mapping[str, str],
    ) -> None:
        self._table, self._snapshot, self._events, self._kept = table, snapshot, events, folder
        self._offset = 0
        self.point, self.keys = snapshot.describe_point(), table.keys
        self.kinds, self.unread = snapshot.list_kinds(), unread

    def list_ranges(self, rows: int) -> tuple[Sequence[KeyRange], int | None]:
        return self._snapshot.list_ranges(rows), self._snapshot.count()

    def sum(self, split: TableSplit) -> pa.Table:
        return self._snapshot.sum(split)

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[pa.Table]:
        yield from self._encode(self._snapshot.rows_in(split, buckets))

    def read_keys(self, keys: pa.Table) -> Iterator[pa.Table]:
        yield from self._encode(self._snapshot.rows_with_keys(keys))

    def is_delivered(self) -> bool | None:
        return self._snapshot.is_delivered()

    def _encode(self, rows: Iterator[Row]) -> Iterator[pa.Table]:
        events, point = self._events, self._snapshot.point
        while group := list(islice(rows, FRAME_ROWS)):
            records = self._kept.build_records(
                [events.encode_key(key) for key, _, _ in group], [events.encode_read(row, point) for _, row, _ in group]
            )
            offsets = pa.array(range(self._offset, self._offset + len(group)), RAW.field("offset").type)
            self._offset += len(group)
            yield records.set_column(records.column_names.index("offset"), RAW.field("offset"), offsets)
