"""The snapshots source: writes changes to its journal, and reads that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, ReplicatorError, Retryable
from replicator.domain.plain_values import format_count
from replicator.local_files import remove_drafts, write_whole
from replicator.ports.frames import Stop
from replicator.ports.runtime import Diagnosis

from ...decoders.common.row_files import CsvDialect
from ...postgres.names import read_dsn
from ...postgres.table_reader import SnapshotQuery, table_query
from ..journal import MASKS, JournalRows, MaskNotes, PacedPoller, RowJournal, StateFolder
from ..scan import open_scan
from .file_snapshots import (
    CsvFormat,
    JsonLinesFormat,
    ParquetFormat,
    SnapshotFolder,
    SnapshotFormat,
    find_snapshot_format,
    list_snapshots,
)
from .options import EVERY, SnapshotsSettings
from .snapshots import (
    ProcessedVersions,
    ReadSnapshot,
    SnapshotProvider,
    align_rows,
    diff_snapshots,
    refuse_unsupported,
    refuse_unusable,
    to_storable,
)


class SnapshotsSource(JournalRows):
    """A `Source` of snapshots in a folder, or of a query (see the package). Options of `SnapshotsSettings`, and those of the
    engine. Raises ConfigProblem if no key is configured."""

    def __init__(self, options: SnapshotsSettings | Mapping[str, Any]) -> None:
        own, scan = open_scan(options)
        read = SnapshotsSettings.read(own)
        if not read.keys:
            raise ConfigProblem(
                f"The key of {read.name} is unknown. It is needed to compare its snapshots.",
                next_step=f"Write a table with `match: {read.name}` and `keys`.",
            )
        super().__init__(read, scan, FolderPoller(read) if read.dsn is None else make_query_poller(read))


class FolderPoller:
    """`JournalPoller` of files in a folder."""

    def __init__(self, options: SnapshotsSettings) -> None:
        self._path = options.path or ""
        self._folder = SnapshotFolder(
            self._path, StateFolder(Path(options.state), options.name).restart_step, find_snapshot_format(options)
        )
        self._journal = SnapshotJournal(options, self._folder)

    def begin(self) -> None:
        """Raises Retryable while the first snapshot may still be written, EnvironmentProblem if there is none."""
        if not self._journal.has_rows and not self._journal.take_next() and not self._journal.has_rows:
            if self._folder.seconds_until_stable({}) > 0:
                raise Retryable(f"The snapshot in {self._path} is still being written.")
            raise EnvironmentProblem(
                f"There is no whole snapshot in {self._path} yet.",
                next_step="Start again when there is one: a file, or a folder of them with _SUCCESS in it.",
            )
        self._journal.check_rules()

    def poll(self) -> None:
        self._journal.take_next()

    def catch_up(self, stop: Stop) -> None:
        """See `JournalPoller.catch_up`: includes recently written snapshots, when they are complete."""
        while (wait := self._folder.seconds_until_stable(self._journal.known_versions())) > 0:
            if stop.wait(min(wait, 1.0)):
                return
        while not stop.is_set() and self._journal.take_next():
            pass

    def waited_for(self) -> None:
        """See `JournalPoller`: waiting for files happens in the stream."""

    def close(self) -> None:
        """See `JournalPoller`."""


def make_query_poller(options: SnapshotsSettings) -> PacedPoller:
    """The poller of query results, each of which is a snapshot."""
    query, pending = snapshot_query(options), f"The first snapshot of {options.name} is being read."
    journal = SnapshotJournal(options, QuerySnapshots(query, options.name))
    return PacedPoller(journal, journal.take_next, query.cancel, every=options.every or EVERY, pending=pending)


REMEDY = "Correct the query, or the rows in the database"


def snapshot_query(options: SnapshotsSettings) -> SnapshotQuery:
    """The query and its database."""
    if options.dsn is None or options.table is None:
        raise ConfigProblem("Snapshots of a database need 'dsn' and 'table'.")
    text = options.query or table_query(options.table)
    return SnapshotQuery(read_dsn(options.dsn), text, f"reading {options.table}")


class QuerySnapshots:
    """`SnapshotProvider` of a query. Versions are the times of reading by the server's clock, in microseconds since 1970,
    or one above the previous version if that clock is behind."""

    is_numbered_here = True

    def __init__(self, query: SnapshotQuery, table: str) -> None:
        self._query, self._table = query, table

    def has_news(self, versions: ProcessedVersions) -> bool:
        """See `SnapshotProvider.has_news`: unknown before the query runs."""
        del versions
        return True

    def read_next(self, versions: ProcessedVersions) -> ReadSnapshot:
        """Raises the errors of `SnapshotQuery.read_rows`."""
        micros, rows = self._query.read_rows()
        read_at = datetime.fromtimestamp(micros // 1_000_000, UTC).isoformat()
        version = max(micros, max(versions, default=-1) + 1)
        return ReadSnapshot(f"{self._table} as read at {read_at}", version, to_storable(rows), remedy=REMEDY)


# The journal of snapshots: their changes, and the last snapshot.


RULES = "keys.json"
VERSIONS = "taken.json"


class SnapshotJournal(RowJournal):
    """Processes snapshots, each once and in order, safe against kills at any time.

    A snapshot is first stored for the comparison with the next one (`<version>.parquet`), then its changes are committed,
    then its version is stored (`taken.json`). The newest commit decides: committed changes are never compared again.
    Before the first snapshot the keys and the masks of private columns are stored (`keys.json`), because rows are stored
    masked only.
    """

    _options: SnapshotsSettings

    def __init__(self, options: SnapshotsSettings, supply: SnapshotProvider) -> None:
        super().__init__(options, "replicator.snapshot", "names its snapshot")
        self._supply = supply
        self._known: ProcessedVersions = {}

    def known_versions(self) -> ProcessedVersions:
        """The processed versions that this object knows."""
        return self._known

    def check_rules(self) -> None:
        """See `RowJournal.check_rules`: the keys and the masks. State without stored keys (from an old program) counts as
        having the configured keys and no masks."""
        if not self.has_rows:
            return
        stored_keys, masks = self._read_rules()
        if stored_keys != set(self._options.keys):
            old, new = ", ".join(sorted(stored_keys)), ", ".join(self._options.keys)
            raise DataLoss(
                f"The snapshots of {self._options.name} were compared by the keys ({old}), but `keys` is now ({new}).",
                next_step=f"{self.state.restart_step} Or restore the earlier keys.",
            )
        self.refuse_other_masks(masks)

    def take_next(self) -> bool:
        """Process the next complete snapshot. Returns False if there is none, or another process does it."""
        if not self._supply.has_news(self._known) and self.has_rows:
            return False
        with self.state.lock() as is_mine, self.state.translate_errors():
            if not is_mine:
                return False
            self.check_rules()
            versions = self._read_versions()
            snapshot = self._supply.read_next(versions)
            if snapshot is not None:
                self._store_snapshot(snapshot, versions)
            return snapshot is not None

    def _store_snapshot(self, snapshot: ReadSnapshot, versions: dict[int, int | None]) -> None:
        refuse_unsupported(snapshot, self._options.name)
        refuse_unusable(snapshot, self._options.keys)
        rows = self.mask_rows(snapshot.rows)
        snapshot = replace(snapshot, rows=rows)
        # Most empty snapshots are failed exports, and this one would delete every row in every target.
        if not rows.num_rows and not self._options.allow_empty:
            raise DataLoss(
                f"{snapshot.name} has no rows, so it would delete every row of the table.",
                next_step=f"{snapshot.remedy}. Or set `allow_empty: true` in the source.",
            )
        before = self._read_previous(versions)
        if before is None:
            before = rows.slice(0, 0)
        changes = diff_snapshots(
            align_rows(before, snapshot, str(self.state.path)), rows, self._options.keys, snapshot.version
        )
        is_equal = self.has_rows and not changes.num_rows and before.schema.equals(rows.schema)
        if is_equal and self._supply.is_numbered_here:
            self._remove_others(max(versions))
            return
        if not self.has_rows or self._read_rules()[1] != self.mask_notes:
            self._write_rules(self.mask_notes)  # Masks of columns that are new may have been added.
        self._store_rows(snapshot.version, rows)
        if changes.num_rows or not self.has_rows:
            self.commit(changes, str(snapshot.version))
        self._write_versions(self._add_version(versions, snapshot.version, snapshot.size))

    def _read_versions(self) -> dict[int, int | None]:
        """The processed versions, with known sizes. Stores a version that was committed but not stored."""
        stored = self.state.read(VERSIONS, lambda record: {int(version): size for version, size in record["taken"].items()})
        versions: dict[int, int | None] = stored or {}
        if not self.has_rows:
            if versions:
                raise self.gone_error("the stored snapshots")
            return {}
        newest = int(self.read_newest_progress())
        if newest > max(versions, default=-1):
            versions = self._add_version(versions, newest, None)
            self._write_versions(versions)
        self._known = versions
        return versions

    def _add_version(self, versions: dict[int, int | None], version: int, size: int | None) -> dict[int, int | None]:
        """The versions to store after this one. If versions are assigned here, only the newest is needed."""
        return {**({} if self._supply.is_numbered_here else versions), version: size}

    def _write_versions(self, versions: dict[int, int | None]) -> None:
        self.state.write(VERSIONS, {"taken": versions})
        self._known = versions
        self._remove_others(max(versions))

    def _read_rules(self) -> tuple[set[str], MaskNotes]:
        rules = self.state.read(RULES, lambda record: ({str(key) for key in record["keys"]}, dict(record.get(MASKS, {}))))
        if rules is None:
            self._write_rules({})
            return set(self._options.keys), {}
        return rules

    def _write_rules(self, masks: MaskNotes) -> None:
        self.state.write(RULES, {"keys": list(self._options.keys), MASKS: masks})

    def _remove_others(self, version: int) -> None:
        for file in self.state.path.glob("*.parquet"):
            if file.stem != str(version):
                file.unlink()
        remove_drafts(self.state.path)

    def _read_previous(self, versions: dict[int, int | None]) -> pa.Table | None:
        """The rows of the newest processed snapshot."""
        if not versions:
            return None
        file = self.state.path / f"{max(versions)}.parquet"
        try:
            return pq.read_table(file)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise DataLoss(
                f"{file}, the snapshot to compare with, cannot be read.", next_step=self.state.restart_step
            ) from error

    def _store_rows(self, version: int, rows: pa.Table) -> None:
        with write_whole(self.state.path / f"{version}.parquet") as draft:
            pq.write_table(rows, draft)


# Check of snapshots for `doctor`: they exist, have versions in their names, and are readable; or the database accepts
# the query. Processes none.


LOCATION_KEYS = ("path", "files", "dsn", "table", "query")
OF_TEXT: Mapping[str, SnapshotFormat] = {"csv": CsvFormat({}, CsvDialect()), "jsonl": JsonLinesFormat({})}
"""Formats for file names only: the columns are not known here."""


class SnapshotsCheck:
    """`ports.runtime.Check`, with the source's options in `LOCATION_KEYS`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._place = {key: options[key] for key in LOCATION_KEYS if options.get(key) is not None}
        self._parquet = ParquetFormat(options["memory"]) if "memory" in options else ParquetFormat()

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            if "dsn" not in self._place:
                return [self._check_folder(str(self._place["path"]))]
            options = SnapshotsSettings.read({**self._place, "state": ".", "keys": ()})
            count = format_count(len(snapshot_query(options).read_columns()), "column")
            return [Diagnosis("ok", self._name, f"The database can be queried for {options.name}: {count}.")]
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]

    def _check_folder(self, path: str) -> Diagnosis:
        kind = self._place.get("files", "parquet")
        form: SnapshotFormat = self._parquet if kind == "parquet" else OF_TEXT[kind]
        snapshots = list_snapshots(path, form)
        if not snapshots:
            step = "The pipeline starts once there is one."
            return Diagnosis("warning", self._name, f"There is no snapshot in {path} yet.", step)
        count, version = format_count(len(snapshots), "snapshot"), snapshots[-1].version
        newest = f"{Path(path).name} has {count}; the newest is version {version}"
        if kind != "parquet":
            return Diagnosis("ok", self._name, f"{newest}.")
        rows = snapshots[-1].read_rows(form)
        if rows is None:
            step = "It is read when it is complete."
            return Diagnosis("warning", self._name, f"{newest}, which is not complete yet.", step)
        return Diagnosis("ok", self._name, f"{newest}, with {format_count(rows.num_rows, 'row')}.")
