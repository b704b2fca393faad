"""The journal of a source: it stores the rows that it read, and lanes read them from there. A commit or file is complete or
absent, and on the disk when the call returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.errors import DataLoss, EnvironmentProblem
from replicator.local_files import FileLock, FileLocked

from ...delta.errors import translate_errors
from ...delta.folders import sync_commit, write_json
from ...delta.lake import local_folder
from ...delta.tables import has_table
from .access import Noted, find_journal, make_row_masker
from .options import CHANGE, VERSION, JournalOptions

T = TypeVar("T")
MASKS = "masks"
"""The notes of the masks, in the file with the rules."""


class RowJournal:
    """The rows of a source in a Delta table of its state folder, with the source's progress in each commit. So a kill
    neither loses nor duplicates rows.

    - `progress_key`: the key of the progress in the metadata of commits.
    - `progress_name`: the part of an error about commits without it, after "No commit of TABLE".

    The caller ensures that only one process writes, with `StateFolder.lock`.
    """

    def __init__(self, options: JournalOptions, progress_key: str, progress_name: str) -> None:
        self.state = StateFolder(Path(options.state), options.name)
        self.path = find_journal(options)
        self._name, self._progress_key, self._progress_name = options.name, progress_key, progress_name
        self.privacy = make_row_masker(options)

    @property
    def has_rows(self) -> bool:
        """True if the table was created, by the first commit."""
        return has_table(local_folder(str(self.path)))

    def commit(self, rows: pa.Table, progress: str) -> None:
        """Append rows, with the progress. The first commit creates the table; later ones may add columns."""
        said = CommitProperties(custom_metadata={self._progress_key: progress})
        more: dict[str, Any]
        if self.has_rows:
            more = {"mode": "append", "schema_mode": "merge"}
        else:
            # Old commits stay: the newest one with progress may be followed by any number of compactions.
            more = {"mode": "error", "configuration": {"delta.enableExpiredLogCleanup": "false"}}
        with translate_errors(self._name):
            write_deltalake(str(self.path), rows, name=self._name, commit_properties=said, **more)
            sync_commit(self.path, DeltaTable(str(self.path)).version())

    def read_newest_progress(self) -> str:
        """The progress in the newest commit with one. Compaction of the journal also makes commits."""
        with translate_errors(self._name):
            for commit in DeltaTable(str(self.path)).history():
                if self._progress_key in commit:
                    return str(commit[self._progress_key])
        raise DataLoss(f"No commit of {self.path} {self._progress_name}.", next_step=self.state.restart_step)

    def read_schema(self) -> pa.Schema:
        """The columns of the table, with those of the journal itself."""
        with translate_errors(self._name):
            return pa.schema(DeltaTable(str(self.path)).schema().to_arrow())

    def read_rows(self, condition: pc.Expression | None = None) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The rows that match the condition with their versions, in small tables."""
        with translate_errors(self._name):
            found = DeltaTable(str(self.path)).to_pyarrow_dataset().scanner(filter=condition, batch_size=32_768)
            for batch in found.to_batches():
                if batch.num_rows:
                    yield pa.table(batch).drop_columns([CHANGE, VERSION]), batch.column(VERSION)

    def refuse_other_masks(self, noted: Noted) -> None:
        """Raise DataLoss if stored rows have other masks than configured. `noted`: the masks of stored rows."""
        if noted != self.privacy.mask_notes:
            self.privacy.refuse_others(noted, self.read_schema().names, self.state.restart_step)

    def gone_error(self, what: str) -> DataLoss:
        """The error if the table was removed. `what`: the lost part."""
        return DataLoss(f"{self.path} does not exist any more, so {what} are lost.", next_step=self.state.restart_step)


class StateFolder:
    """The folder with the state of the source `name`."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self._name = path, name

    @property
    def restart_step(self) -> str:
        """The next step if the folder is unusable."""
        return f"Remove the folder {self.path} and load the table again with `replicator lanes resync LANE`."

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Be the only writer. False if another process is."""
        lock = FileLock(self.path / "lock")
        try:
            with self.translate_errors():
                self.path.mkdir(parents=True, exist_ok=True)
                lock.acquire()
        except FileLocked:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def read(self, file: str, parse: Callable[[Any], T]) -> T | None:
        """The parsed JSON of a file; None if it does not exist. Raises DataLoss if it is damaged."""
        path = self.path / file
        if not path.exists():
            return None
        try:
            return parse(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError) as damage:
            raise DataLoss(f"{path} is damaged.", next_step=self.restart_step) from damage

    def write(self, file: str, record: Mapping[str, object]) -> None:
        """Replace a file."""
        with self.translate_errors():
            write_json(self.path / file, record)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raises EnvironmentProblem if the folder is not writable."""
        try:
            yield
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.path} cannot be written: {error.strerror or error}.",
                next_step="Make the folder named by `state` writable, with room on its disk. Nothing is lost meanwhile.",
            ) from error
