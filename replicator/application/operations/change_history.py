"""The changes of a table in an event log: all of them, and the history of one row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.application.catalog import Catalog, UnusableTable
from replicator.domain.change import OP, Op
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position
from replicator.domain.read_query import InvalidReadQuery, parse_value
from replicator.domain.table import TableSpec
from replicator.domain.timeline import AUDIT, HistoryEntry, build_audit, build_timeline, find_old_keys
from replicator.ports.components import RulesFor
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Batch, RecordSlice, Stop
from replicator.ports.runtime import ShowLine
from replicator.ports.source import Source

HandleChanges = Callable[[pa.Table, TableSpec, pa.Table], None]
"""Called with a changes frame, the table as its records describe it, and the raw frame that was decoded."""
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
            f"log retention has removed the records below offset {first} of {partition} from the event log"
            for partition, first in sorted(self.missing.items())
        ]


class ChangeLogReader:
    """Reads the event log of `source` with the decoder of the records' original source."""

    def __init__(self, source: Source[pa.Table], decoder: Decoder, engine: Engine[pa.Table], rules_for: RulesFor) -> None:
        self.decoder = decoder
        self._source, self._engine = source, engine
        self._catalog = Catalog(engine.frames, decoder, rules_for)

    def read_changes(
        self, table: str, handle: HandleChanges, show_line: ShowLine, stop: Stop | None = None
    ) -> ChangeLogResult:
        """Call `handle` with all changes of `table` that are in the log now, one changes frame at a time.

        The order is that of offsets per partition. Each frame has its own columns. Reading ends when `stop` is set.
        Fatal for a schema that cannot be replicated. Errors of the source pass through.
        """
        records = changes = rejected = 0
        topics: set[str] = set()

        def batch(one: Batch[pa.Table]) -> None:
            nonlocal records, changes, rejected
            for slice_ in self._engine.route(one.frame, self.decoder).slices:
                if slice_.table != table:
                    continue
                topics.update(slice_.frame["topic"].unique().to_pylist())
                schema = learn_schema(self._catalog, slice_)
                good, bad = self._engine.decode(slice_, self.decoder, schema)
                changes, rejected = changes + good.num_rows, rejected + bad.num_rows
                handle(good, schema, slice_.frame)
            if (records + one.records) // REPORT_EVERY > records // REPORT_EVERY:
                show_line(
                    f"{format_count(records + one.records, 'record')} read, {format_count(changes, 'change')} of {table}"
                )
            records += one.records

        self._source.read(self._source.beginning(), self._source.end(), batch, stop or threading.Event())
        find_removed = self._source.features.removed
        removed = Position() if find_removed is None else find_removed()
        missing = removed.only(partition for partition in removed if partition.topic in topics or not topics)
        return ChangeLogResult(records, changes, rejected, self._catalog.get_union(table), missing)


def learn_schema(catalog: Catalog[pa.Table], slice_: RecordSlice[pa.Table]) -> TableSpec:
    """See `Catalog.learn_schema`. Fatal for a schema that cannot be replicated."""
    try:
        return catalog.learn_schema(slice_)
    except UnusableTable as error:
        raise error.cause if isinstance(error.cause, Fatal) else Fatal(str(error.cause)) from error


def read_history(
    log: ChangeLogReader, table: str, key: Sequence[str], show_line: ShowLine, stop: Stop | None = None
) -> tuple[list[HistoryEntry], ChangeLogResult]:
    """The changes of one row of `table` (its source name), and the counts of the read. `key`: one text per key
    column.

    The log is read once, and again for earlier keys of the row, until `stop` is set. InvalidReadQuery for a key that
    does not fit the table.
    """
    wanted: list[tuple[Any, ...]] = []
    all_keys: set[tuple[Any, ...]] = set()
    frames: list[tuple[pa.Table, TableSpec]] = []

    def take(changes: pa.Table, schema: TableSpec, _: pa.Table) -> None:
        keys = wanted or [tuple(value.as_py() for value in parse_key(schema, key))]
        all_keys.update(keys)
        matching = changes.filter(_match_keys(changes, schema, keys))
        if matching.num_rows:
            frames.append((matching, schema))

    read = log.read_changes(table, take, show_line, stop)
    if not all_keys:
        raise Fatal(
            f"the event log has no changes of table {table}" + (", only rejected ones" if read.rejected else ""),
            next_step="Use the table's name at the source (`replicator plan` lists them), or see `replicator dlq list`.",
        )
    first_keys = frozenset(all_keys)  # Several if the type of the key has changed.
    while fresh := find_old_keys(frames) - all_keys:
        wanted[:] = fresh
        log.read_changes(table, take, show_line, stop)
    entries = [entry for one in first_keys for entry in build_timeline(frames, one)]
    return sorted(entries, key=lambda entry: (entry.sequence, entry.topic, entry.partition, entry.offset)), read


def read_audit(
    log: ChangeLogReader, table: str, show_line: ShowLine, by: str | None = None
) -> tuple[pa.Table, ChangeLogResult]:
    """The changes of `table` (its source name) as `domain.timeline.AUDIT`, ordered by time, topic, partition and
    offset.

    `by`: the column with the user who made the change. ConfigProblem for an unknown column.
    """
    frames = [AUDIT.empty_table()]

    def take(changes: pa.Table, schema: TableSpec, raw: pa.Table) -> None:
        frames.append(build_audit(changes, schema, log.decoder.envelope(raw), raw, by))

    read = log.read_changes(table, take, show_line)
    if by is not None and read.table is not None and by not in read.table.column_names:
        raise ConfigProblem(
            f"table {table} has no column {by!r}", next_step=f"Its columns are: {', '.join(read.table.column_names)}."
        )
    order = [(name, "ascending") for name in ("at", "topic", "partition", "offset")]
    return pa.concat_tables(frames).sort_by(order), read


def _match_keys(changes: pa.Table, table: TableSpec, keys: Iterable[tuple[Any, ...]]) -> pa.Array:
    """A mask of the changes of rows with these keys, and of truncates."""
    mask = pc.equal(changes[OP], Op.TRUNCATE.value)
    for key in keys:
        is_key: Any = True
        for name, value in zip(table.keys, key, strict=True):
            equal = pc.equal(changes[name], pa.scalar(value, table.column(name).type))
            is_key = pc.and_(is_key, pc.fill_null(equal, False))
        mask = pc.or_(mask, is_key)
    return mask


def parse_key(table: TableSpec, key: Sequence[str]) -> Iterator[pa.Scalar]:
    """The values of a key, from one text per column. InvalidReadQuery for a wrong number of texts, or a text of
    another type."""
    if not table.keys:
        raise InvalidReadQuery(
            f"table {table.name} has no key, so its rows cannot be identified",
            next_step="Set `keys` in its entry under `tables`.",
        )
    if len(key) != len(table.keys):
        raise InvalidReadQuery(
            f"the key of table {table.name} has {format_count(len(table.keys), 'column')} "
            f"({', '.join(table.keys)}), not {len(key)}",
            next_step="Pass a value for each column, in this order.",
        )
    for name, text in zip(table.keys, key, strict=True):
        kind = table.column(name).type
        try:
            yield parse_value(text, kind)
        except ValueError:
            raise InvalidReadQuery(
                f"{text!r} does not fit type {kind} of key column {name}", next_step="Write the value as `query` shows it."
            ) from None
