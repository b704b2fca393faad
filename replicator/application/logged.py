"""The changes of a table as an event log has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.domain.table import TableSpec
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, Run, Stop
from replicator.ports.source import Shortened, Source

from .catalog import Catalog, Unusable
from .rules import RulesFor

Take = Callable[[pa.Table, TableSpec, pa.Table], None]
"""Gets a changes frame, the table as its records describe it, and the raw frame that it was decoded from."""
Tell = Callable[[str], None]
TELL_EVERY = 1_000_000
"""Records between two words on how far it is."""


@dataclass(frozen=True, slots=True)
class Read:
    """What was read of a log: `records` of all tables; of the table asked for `changes`, and `rejected` ones, which are left
    out as the lanes left them out. `table`: its columns and key; None where the log has nothing of it. `missing`: of its
    partitions that lack their first records the first offset that is there."""

    records: int
    changes: int
    rejected: int
    table: TableSpec | None
    missing: Position = field(default_factory=Position)

    @property
    def gone(self) -> list[str]:
        """A sentence for each part of the log that is missing."""
        return [
            f"the event log has no records below offset {first} of {place} any more: its retention removed them"
            for place, first in sorted(self.missing.items())
        ]


class Logged:
    """Reads the event log behind `source` with the decoder of the source whose records it keeps."""

    def __init__(self, source: Source[pa.Table], decoder: Decoder, engine: Engine[pa.Table], rules_for: RulesFor) -> None:
        self.decoder = decoder
        self._source, self._engine = source, engine
        self._catalog = Catalog(engine, decoder, rules_for)

    def changes(self, table: str, take: Take, tell: Tell, stop: Stop | None = None) -> Read:
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
                    schema = self._schema(run)
                    good, bad = self._engine.decode(run, self.decoder, schema)
                    changes, rejected = changes + good.num_rows, rejected + bad.num_rows
                    take(good, schema, run.frame)
            if (records + one.records) // TELL_EVERY > records // TELL_EVERY:
                tell(f"{records + one.records:,} records read, {changes:,} changes of {table}")
            records += one.records

        self._source.read(self._source.beginning(), self._source.end(), batch, stop or threading.Event())
        removed = self._source.removed() if isinstance(self._source, Shortened) else Position()
        mine = removed.only(place for place in removed if place.topic in topics or not topics)
        return Read(records, changes, rejected, self._catalog.table(table), mine)

    def _schema(self, run: Run[pa.Table]) -> TableSpec:
        try:
            return self._catalog.schema(run)
        except Unusable as error:
            raise error.cause if isinstance(error.cause, Fatal) else Fatal(str(error.cause)) from error
