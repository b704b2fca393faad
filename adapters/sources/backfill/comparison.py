"""Snapshots of a source's table for comparisons: its rows as read events, as a backfill would store them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.ports.comparison import ChecksumKind, KeyRange, Repair, TableSplit

from .database import BackfillTable, Row, SourceDatabase, TableSnapshot, Tell, refuse_names
from .debezium_events import DebeziumEvents
from .journal import BackfillFolder

FRAME_ROWS = 50_000
REPAIR = "replicator.repair"
"""The connector's name in the records of a repair, and the form of its run in the journal."""


class DatabaseComparison:
    """`ports.comparison.ComparableTable` of one table of a database. Options as of `TableBackfill`."""

    def __init__(self, database: SourceDatabase[Any], options: Mapping[str, Any]) -> None:
        self._database = database
        self._name = str(options["table"])
        self._keys: Sequence[str] | None = options.get("keys") or None
        self._kept = BackfillFolder(Path(str(options["state"])), self._name, options.get("private"))
        self._plain_names = bool(options.get("plain_names"))

    @contextmanager
    def open_snapshot(self, report: Tell) -> Iterator[DatabaseSnapshot]:
        """See `ports.comparison.ComparableTable.open_snapshot`."""
        table, unread = self._database.describe_comparable(self._name, self._keys)
        if self._plain_names:
            refuse_names(table)
        with self._database.open_snapshot(table, report) as snapshot:
            yield DatabaseSnapshot(table, snapshot, DebeziumEvents(table, self._database.log), self._kept, unread)

    def repair(self, keys: pa.Table, report: Tell) -> Repair:
        """See `ports.comparison.ComparableTable.repair`."""
        self._kept.lock()
        try:
            known = self._kept.read_state()
            if known is not None and known.stage != "done" and known.form != REPAIR:
                raise Fatal(
                    f"A backfill of {self._name} is not finished.",
                    next_step=f"Finish it: `replicator backfill {self._name}`.",
                )
            table = self._database.describe_table(self._name, self._keys)
            with self._database.open_snapshot(table, report) as snapshot:
                return self._store(table, snapshot, keys)
        finally:
            self._kept.unlock()

    def _store(self, table: BackfillTable[Any], snapshot: TableSnapshot, keys: pa.Table) -> Repair:
        events, point = DebeziumEvents(table, self._database.log, REPAIR), snapshot.point
        rows = list(snapshot.rows_with_keys(keys))
        present = {key for key, _, _ in rows}
        absent = [key for key, _ in self._database.locate_rows(table, keys, ()) if key not in present]
        written = self._kept.build_records(
            [events.encode_key(key) for key in [*(key for key, _, _ in rows), *absent]],
            [*(events.encode_read(row, point) for _, row, _ in rows), *(events.encode_delete(key, point) for key in absent)],
        )
        begun = datetime.fromtimestamp(point.micros / 1_000_000, UTC).isoformat()
        run = self._kept.begin_run(point.place, begun, self._database.identity(), REPAIR)
        self._kept.append(
            written, {"run": run.run, "stage": "rows", "place": point.place, "micros": point.micros, "last": []}
        )
        self._kept.write_state(replace(run, stage="done"))
        return Repair(len(rows), len(absent), Position({self._kept.topic: self._kept.list_files()[-1].end}))


class DatabaseSnapshot:
    """`ports.comparison.SourceSnapshot` of a `TableSnapshot`."""

    def __init__(
        self,
        table: BackfillTable[Any],
        snapshot: TableSnapshot,
        events: DebeziumEvents,
        kept: BackfillFolder,
        unread: Mapping[str, str],
    ) -> None:
        self._table, self._snapshot, self._events, self._kept = table, snapshot, events, kept
        self._offset = 0
        self.keys, self.unread = table.keys, unread

    @property
    def point(self) -> str:
        """See `ports.comparison.SourceSnapshot.point`."""
        return self._snapshot.describe_point()

    @property
    def kinds(self) -> dict[str, ChecksumKind | None]:
        """See `ports.comparison.SourceSnapshot.kinds`."""
        return self._snapshot.list_kinds()

    def count(self) -> int | None:
        """See `ports.comparison.SourceSnapshot.count`."""
        return self._snapshot.count()

    def list_ranges(self, rows: int) -> Sequence[KeyRange]:
        """See `ports.comparison.SourceSnapshot.list_ranges`."""
        return self._snapshot.list_ranges(rows)

    def sum(self, split: TableSplit) -> pa.Table:
        """See `ports.comparison.SourceSnapshot.sum`."""
        return self._snapshot.sum(split)

    def read(self, split: TableSplit, buckets: Sequence[int] | None) -> Iterator[pa.Table]:
        """See `ports.comparison.SourceSnapshot.read`."""
        yield from self._encode(self._snapshot.rows_in(split, buckets))

    def read_keys(self, keys: pa.Table) -> Iterator[pa.Table]:
        """See `ports.comparison.SourceSnapshot.read_keys`."""
        yield from self._encode(self._snapshot.rows_with_keys(keys))

    def is_delivered(self) -> bool | None:
        """See `ports.comparison.SourceSnapshot.is_delivered`."""
        return self._snapshot.is_delivered()

    def _encode(self, rows: Iterator[Row]) -> Iterator[pa.Table]:
        events, point = self._events, self._snapshot.point
        while some := list(islice(rows, FRAME_ROWS)):
            records = self._kept.build_records(
                [events.encode_key(key) for key, _, _ in some], [events.encode_read(row, point) for _, row, _ in some]
            )
            offsets = pa.array(range(self._offset, self._offset + len(some)), RAW.field("offset").type)
            self._offset += len(some)
            yield records.set_column(records.column_names.index("offset"), RAW.field("offset"), offsets)
