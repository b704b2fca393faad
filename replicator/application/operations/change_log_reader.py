"""Reads the changes of a table from an event log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.application.catalog import Catalog, UnusableTable
from replicator.application.table_rules import RulesFor
from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, RecordSlice, Stop
from replicator.ports.source import LogTruncated, Source

HandleChanges = Callable[[pa.Table, TableSpec, pa.Table], None]
"""Called with a changes frame, the table as its records describe it, and the raw frame that was decoded."""
Report = Callable[[str], None]
REPORT_EVERY = 1_000_000
"""Records between two progress reports."""


@dataclass(frozen=True, slots=True)
class ChangeLogResult:
    """The counts of one read of a log.

    - `records`: records of all tables. `changes`, `rejected`: those of the requested table. Rejected records are
      left out, as the lanes left them out.
    - `table`: its columns and key. None if the log has nothing of it.
    - `missing`: for each of its partitions that lacks its first records, the first offset that exists.
    """

    records: int
    changes: int
    rejected: int
    table: TableSpec | None
    missing: Position = field(default_factory=Position)

    @property
    def missing_sentences(self) -> list[str]:
        """A sentence for each partition with missing records."""
        return [
            f"the event log has no records below offset {first} of {place} any more: its retention removed them"
            for place, first in sorted(self.missing.items())
        ]


class ChangeLogReader:
    """Reads the event log of `source` with the decoder of the records' original source."""

    def __init__(self, source: Source[pa.Table], decoder: Decoder, engine: Engine[pa.Table], rules_for: RulesFor) -> None:
        self.decoder = decoder
        self._source, self._engine = source, engine
        self._catalog = Catalog(engine, decoder, rules_for)

    def read_changes(self, table: str, handle: HandleChanges, report: Report, stop: Stop | None = None) -> ChangeLogResult:
        """Call `handle` with all changes of `table` that are in the log now, one changes frame at a time.

        The order is that of offsets per partition. Each frame has its own columns. Reading ends when `stop` is set.
        Fatal for a schema that cannot be replicated. Errors of the source pass through.
        """
        records = changes = rejected = 0
        topics: set[str] = set()

        def batch(one: Batch[pa.Table]) -> None:
            nonlocal records, changes, rejected
            for run in self._engine.route(one.frame, self.decoder).runs:
                if run.table == table:
                    topics.update(run.frame["topic"].unique().to_pylist())
                    schema = self._find_schema(run)
                    good, bad = self._engine.decode(run, self.decoder, schema)
                    changes, rejected = changes + good.num_rows, rejected + bad.num_rows
                    handle(good, schema, run.frame)
            if (records + one.records) // REPORT_EVERY > records // REPORT_EVERY:
                report(f"{records + one.records:,} records read, {changes:,} changes of {table}")
            records += one.records

        self._source.read(self._source.beginning(), self._source.end(), batch, stop or threading.Event())
        removed = self._source.removed() if isinstance(self._source, LogTruncated) else Position()
        mine = removed.only(place for place in removed if place.topic in topics or not topics)
        return ChangeLogResult(records, changes, rejected, self._catalog.get_union(table), mine)

    def _find_schema(self, run: RecordSlice[pa.Table]) -> TableSpec:
        try:
            return self._catalog.find_schema(run)
        except UnusableTable as error:
            raise error.cause if isinstance(error.cause, Fatal) else Fatal(str(error.cause)) from error
