"""An event log as a list of files, one list per version of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.position import Position

from ...delta.commits import LaneLog
from ...delta.errors import first_line, is_damage, translating
from ...delta.layout import HOME, Lake
from ...delta.names import decode
from ...delta.positions import Positions
from ...delta.tables import exists, schema_of

READABLE = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "appendOnly", "invariants"})
"""Features of a table that change nothing for who reads its Parquet files one by one."""
STATISTICS = ("min.offset", "max.offset", "min.partition", "max.partition")
PLAIN = "Rows of a plain Delta table are not yet read (`format: rows`): name the folder of an `event_log` sink in `path`."


@dataclass(frozen=True, slots=True)
class LogFile:
    """One data file, of one topic. `offsets` and `partitions`: the first and last in it, where the table has statistics."""

    path: str
    topic: str
    offsets: tuple[int, int] | None
    partitions: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one version of the table with the id `table`, of the topics that are wanted. `covered`: how far the lanes
    that write the log have read their stream, which may be past the last record (transaction markers)."""

    table: str
    version: int
    files: tuple[LogFile, ...]
    covered: Position


class EventLogTable:
    """The event log in the folder `path`; `wanted` says which topics matter. Not safe for use from several threads."""

    def __init__(self, path: str, wanted: Callable[[str], bool]) -> None:
        self.root = Lake.at(path).root
        self._wanted = wanted
        self._table: DeltaTable | None = None
        self._snapshot: Snapshot | None = None
        self._stamp: tuple[int, int] | None = None

    def newest(self) -> Snapshot:
        """The newest version; the same object as before when there is no newer one. Raises EnvironmentProblem when there is
        no table, ConfigProblem when it is none that this source reads."""
        with translating(self.root.name), _undamaged(self.root):
            table = self._current()
            if self._snapshot is None or self._snapshot.version != table.version():
                refuse_others(table, self.root)
                files = tuple(file for file in _files(table, self.root) if self._wanted(file.topic))
                self._snapshot = Snapshot(str(table.metadata().id), table.version(), files, self._covered(table))
                self._stamp = self._stamp_of(table.version())
            return self._snapshot

    def _current(self) -> DeltaTable:
        """The table at its newest version; opened anew when the last one known is another's, or was cleaned up."""
        table, stamp = self._table, self._stamp
        if table is None or stamp is None or self._stamp_of(table.version()) != stamp:
            self._table = self._snapshot = None
            self._table = table = self._open()
        elif self._entry(table.version() + 1).exists():
            table.update_incremental()
        return table

    def _stamp_of(self, version: int) -> tuple[int, int] | None:
        try:
            found = self._entry(version).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _open(self) -> DeltaTable:
        if not exists(self.root):
            raise EnvironmentProblem(
                f"There is no Delta table in {self.root}.",
                next_step="Start the pipeline that writes this event log first, or correct 'path' of the source.",
            )
        return DeltaTable(str(self.root))

    def _entry(self, version: int) -> Path:
        return self.root / "_delta_log" / f"{version:020}.json"

    def _covered(self, table: DeltaTable) -> Position:
        found = Position()
        for folder in sorted((self.root / HOME / "positions").glob("*/*")):
            pipeline, lane = decode(folder.parent.name), decode(folder.name)
            positions = Positions(folder, lane)
            log = LaneLog(self.root, pipeline, lane, positions)
            # A copy of the table may have been made without them.
            state = log.state(table) if positions.has(log.version(table)) else None
            if state is not None:
                found = found.advanced_to({p: o for p, o in state.position.items() if self._wanted(p.topic)})
        return found


@contextmanager
def _undamaged(root: Path) -> Iterator[None]:
    try:
        yield
    except DeltaError as error:
        if not is_damage(error):
            raise
        raise EnvironmentProblem(
            f"The log of the Delta table {root} is damaged: {first_line(error)}",
            next_step="Restore its folder _delta_log from a copy.",
        ) from error


def refuse_others(table: DeltaTable, root: Path) -> None:
    """Raise ConfigProblem for a table that is no event log, or has a feature because of which its files alone do not tell
    its rows."""
    missing = sorted(set(RAW.names) - set(schema_of(table).names))
    if missing:
        raise ConfigProblem(
            f"The table in {root} is not an event log: it lacks the column(s) {', '.join(missing)}.", next_step=PLAIN
        )
    if "topic" not in table.metadata().partition_columns:
        raise ConfigProblem(f"The table in {root} is not an event log: it is not partitioned by topic.", next_step=PLAIN)
    unknown = sorted(set(table.protocol().reader_features or ()) - READABLE)
    if unknown:
        raise ConfigProblem(
            f"The event log in {root} has the Delta feature(s) {', '.join(unknown)}, which this source does not read.",
            next_step="Drop the feature (ALTER TABLE ... DROP FEATURE ...), or read a copy of the table without it.",
        )


def _files(table: DeltaTable, root: Path) -> Iterator[LogFile]:
    actions = pa.table(table.get_add_actions(flatten=True))
    names = [n for n in ("path", "partition.topic", *STATISTICS) if n in actions.column_names]
    for row in actions.select(names).to_pylist():
        offsets, partitions = _range(row, "offset"), _range(row, "partition")
        yield LogFile(_on_disk(root, row["path"]), row["partition.topic"], offsets, partitions)


def _range(row: dict[str, Any], column: str) -> tuple[int, int] | None:
    first, last = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if first is None or last is None else (first, last)


def _on_disk(root: Path, path: str) -> str:
    """Paths are URLs, most often relative to the table."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else str(root / unquote(path))
