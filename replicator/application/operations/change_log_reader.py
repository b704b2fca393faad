"""The changes of a table as an event log has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.application.stream.catalog import Catalog, UnusableTable
from replicator.application.table_rules import RulesFor
from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, RecordSlice, Stop
from replicator.ports.source import LogTruncated, Source

HandleChanges = Callable[[pa.Table, TableSpec, pa.Table], None]
"""Gets a changes frame, the table as its records describe it, and the raw frame that it was decoded from."""
Report = Callable[[str], None]
REPORT_EVERY = 1_000_000
"""Records between two words on how far it is."""


@dataclass(frozen=True, slots=True)
class ChangeLogResult:
    """What was read of a log: `records` of all tables; of the table asked for `changes`, and `rejected` ones, which are left
    out as the lanes left them out. `table`: its columns and key; None where the log has nothing of it. `missing`: of its
    partitions that lack their first records the first offset that is there."""

    records: int
    changes: int
    rejected: int
    table: TableSpec | None
    missing: Position = field(default_factory=Position)

    @property
    def missing_sentences(self) -> list[str]:
        """A sentence for each part of the log that is missing."""
        return [
            f"the event log has no records below offset {first} of {place} any more: its retention removed them"
            for place, first in sorted(self.missing.items())
        ]


class ChangeLogReader:
    """Reads the event log behind `source` with the decoder of the source whose records it keeps."""

    def __init__(self, source: Source[pa.Table], decoder: Decoder, engine: Engine[pa.Table], rules_for: RulesFor) -> None:
        self.decoder = decoder
        self._source, self._engine = source, engine
        self._catalog = Catalog(engine, decoder, rules_for)

    def read_changes(self, table: str, handle: HandleChanges, report: Report, stop: Stop | None = None) -> ChangeLogResult:
        """Hand over the changes of `table`, all that are in the log now, a changes frame at a time, per partition in the
        order of offsets, each with the columns that it has; no more of them once `stop` is set. Fatal for a schema that
        cannot be replicated; what the source raises passes through."""
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
