"""The dead letters as a Delta table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableMerger

from replicator.domain.change import TIMESTAMP
from replicator.domain.errors import ConfigProblem, Retryable
from replicator.domain.table import Column
from replicator.ports.sink import CompactionResult, VacuumResult
from replicator.ports.stores import (
    ALL_DEAD_LETTERS,
    OPEN,
    DeadLetter,
    DeadLetterFeatures,
    DeadLetterFilter,
    DeadLetterGroup,
    OlderVersions,
)

from ...delta.commits import WRITER
from ...delta.errors import is_gone, translate_errors
from ...delta.folders import sync_commit
from ...delta.lake import local_folder
from ...delta.table_writer import (
    EVERY_COMMITS,
    TableMaintenance,
    TableWriter,
    compact_table,
    describe_old_versions,
    end_versions,
    vacuum_table,
)
from ...delta.tables import STATISTICS, LatestTable, create_table, has_table, read_schema
from ...stores import DeadLetterSettings

FIRST_COLUMNS = (
    *(Column(name, pa.string()) for name in ("event_id", "lane", "stage", "code", "sentence", "table", "key_hash")),
    Column("record", pa.binary()),
    Column("first_seen", TIMESTAMP),
    Column("last_seen", TIMESTAMP),
    Column("attempts", pa.int64()),
    Column("state", pa.string()),
)
LATER_COLUMNS = (
    Column("source", pa.string()),
    Column("topic", pa.string()),
    Column("partition", pa.int32()),
    Column("offset", pa.int64()),
    Column("timestamp", TIMESTAMP),
    Column("headers", pa.string()),
    Column("key", pa.binary()),
)
"""Columns that older tables lack; the next write adds them."""
COLUMNS = (*FIRST_COLUMNS, *LATER_COLUMNS)
UNKNOWN = {"source": "", "topic": "", "partition": -1, "offset": -1}
"""The values of an older dead letter in the later columns."""
SCHEMA = pa.schema([(c.name, c.type) for c in COLUMNS])
NAME = "dead_letters"
GROUP = ("source", "table", "lane")
SAME = 't."event_id" = s."event_id" AND t."lane" = s."lane"'
AS_READ = f'{SAME} AND t."attempts" = s."attempts"'
MERGED = {"event_id", "lane", "first_seen", "last_seen", "attempts"}
SEEN_AGAIN = {
    **{f'"{c.name}"': f's."{c.name}"' for c in COLUMNS if c.name not in MERGED},
    '"last_seen"': 'greatest(t."last_seen", s."last_seen")',
    '"attempts"': 't."attempts" + s."attempts"',
}
FIRST_SEEN = {f'"{c.name}"': f's."{c.name}"' for c in COLUMNS}
ATTEMPTS = 20

Clauses = Callable[[TableMerger], TableMerger]


class DeltaDeadLetters:
    """`ports.stores.DeadLetters`; options: see `DeadLetterSettings`, with `path`, the table's folder.

    Each pipeline needs its own folder, because dead letters do not name their pipeline.
    """

    def __init__(self, options: DeadLetterSettings | Mapping[str, Any]) -> None:
        settings = DeadLetterSettings.read(options)
        if settings.path is None:
            raise settings.refuse("path is missing")
        self._path = local_folder(settings.path)
        self._upkeep = TableMaintenance(EVERY_COMMITS)
        self._latest = LatestTable(self._path, self.open_table)
        self._turn = threading.RLock()

    @property
    def features(self) -> DeadLetterFeatures:
        versions = OlderVersions(self.describe_versions, self.end_versions)
        return DeadLetterFeatures(versions=versions, compact=self.compact, vacuum=self.vacuum)

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """The dead letters are durable on return: on the disk, not only in the system's memory."""
        distinct: dict[tuple[str, str], DeadLetter] = {}
        for letter in letters:
            earlier_letter = distinct.get((letter.event_id, letter.lane))
            if earlier_letter is not None:
                attempts = earlier_letter.attempts + letter.attempts
                letter = replace(letter, first_seen=earlier_letter.first_seen, attempts=attempts)  # noqa: PLW2901
            distinct[letter.event_id, letter.lane] = letter
        self._merge_letters(
            [*distinct.values()], SAME, lambda m: m.when_matched_update(SEEN_AGAIN).when_not_matched_insert(FIRST_SEEN)
        )

    def read(self, which: DeadLetterFilter = ALL_DEAD_LETTERS, *, limit: int | None = None) -> Sequence[DeadLetter]:
        with translate_errors(NAME):
            if not has_table(self._path):
                return []
            table = self._check_table(DeltaTable(str(self._path)))
            names = [name for name in SCHEMA.names if name in read_schema(table).names]
            rows = pa.RecordBatchReader.from_stream(table.scan(columns=names)).read_all()
        order = [("last_seen", "descending"), ("event_id", "ascending"), ("lane", "ascending")]
        newest = rows.cast(pa.schema([SCHEMA.field(name) for name in names])).sort_by(order)
        matches: list[DeadLetter] = []
        stored_rows = (row for batch in newest.to_batches(max_chunksize=1_000) for row in batch.to_pylist())
        for row in stored_rows:
            if limit is not None and len(matches) >= limit:
                break
            fields = {name: value for name, value in row.items() if value is not None or name not in UNKNOWN}
            letter = DeadLetter(**fields)
            if which.is_match(letter):
                matches.append(letter)
        return matches

    def count_open(self) -> Mapping[DeadLetterGroup, int]:
        with translate_errors(NAME):
            if not has_table(self._path):
                return {}
            table = self._check_table(DeltaTable(str(self._path)))
            names = [name for name in (*GROUP, "state") if name in read_schema(table).names]
            rows = pa.RecordBatchReader.from_stream(table.scan(columns=names)).read_all()
        rows = rows.cast(pa.schema([SCHEMA.field(name) for name in names]))
        groups = rows.filter(pc.equal(rows["state"], OPEN)).group_by(names[:-1]).aggregate([([], "count_all")]).to_pylist()
        return {DeadLetterGroup(*(row.get(name) or "" for name in GROUP)): row["count_all"] for row in groups}

    def mark(self, letters: Sequence[DeadLetter], state: str) -> None:
        marked = [replace(letter, state=state) for letter in letters]
        self._merge_letters(marked, AS_READ, lambda m: m.when_matched_update({'"state"': 's."state"'}))

    def remove(self, letters: Sequence[DeadLetter]) -> None:
        """Files of older versions of the table may still contain them."""
        self._merge_letters(letters, AS_READ, lambda m: m.when_matched_delete())

    def describe_versions(self) -> str:
        with translate_errors(NAME):
            return describe_old_versions(self._path, DeltaTable(str(self._path))) if has_table(self._path) else ""

    def end_versions(self) -> str:
        with self._turn, translate_errors(NAME):
            self._latest.release()
            return end_versions(self._path, DeltaTable(str(self._path))) if has_table(self._path) else ""

    def compact(self) -> CompactionResult | None:
        """Rewrites small files as few large ones; None when there is no table."""
        return compact_table(self._path, NAME)

    def vacuum(self, retain: timedelta | None, *, dry_run: bool) -> VacuumResult | None:
        """Deletes files that the newest version does not need, see `ports.sink.SinkFeatures.vacuum`."""
        return vacuum_table(self._path, NAME, retain, dry_run=dry_run)

    def close(self) -> None:
        with self._turn:
            self._latest.release()

    def _merge_letters(self, letters: Sequence[DeadLetter], on: str, clauses: Clauses) -> None:
        """Changes the newest version: a merge without a match commits nothing, so no conflict would show an old one."""
        if not letters:
            return
        rows = pa.Table.from_pylist([asdict(letter) for letter in letters], SCHEMA)
        with self._turn, translate_errors(NAME):
            for attempt in range(ATTEMPTS):
                try:
                    table = self._latest.newest()
                    self._latest.release()  # A failure makes it invalid.
                    merger = table.merge(
                        rows.cast(pa.schema([read_schema(table).field(name) for name in SCHEMA.names])),
                        on,
                        source_alias="s",
                        target_alias="t",
                        streamed_exec=False,
                        writer_properties=WRITER,
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
                    clauses(merger).execute()
                except CommitFailedError:
                    continue
                except DeltaError as error:
                    # Since the last write, another process may have compacted the table and deleted its old files.
                    if attempt or not is_gone(error):
                        raise
                    continue
                sync_commit(self._path, table.version())
                self._upkeep.after_commit(table, table.version())
                self._latest.set_current(table)
                return
        raise Retryable("other writers keep committing to the dead letters")

    def open_table(self) -> DeltaTable:
        """The table, which is created if it does not exist, with all columns."""
        if not has_table(self._path):
            create_table(self._path, NAME, COLUMNS, settings={STATISTICS: "event_id,last_seen"}, partition_by=[])
        table = self._check_table(DeltaTable(str(self._path)))
        stored_names = read_schema(table).names
        missing = [c for c in COLUMNS if c.name not in stored_names]
        if missing:
            TableWriter().add_columns(table, pa.schema([(c.name, c.type) for c in missing]))
            table = DeltaTable(str(self._path))
        return table

    def _check_table(self, table: DeltaTable) -> DeltaTable:
        if not {c.name for c in FIRST_COLUMNS} <= set(read_schema(table).names):
            raise ConfigProblem(
                f"the folder of the dead letters, {self._path}, holds another table",
                next_step="Name a folder of their own under `dead_letters`.",
            )
        return table
