"""Sources that write rows to a journal first: its rows and state, and the pollers."""

from __future__ import annotations

import hmac
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, write_deltalake

from replicator.domain.errors import DataLoss, EnvironmentProblem, Retryable
from replicator.domain.position import Position, TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, refuse_change, refuse_unknown_masks
from replicator.local_files import FileLock, FileLocked
from replicator.ports.adapter_options import ROWS
from replicator.ports.frames import ConsumeBatch, Stop
from replicator.ports.options import to_timedelta
from replicator.ports.source import SourceFeatures

from ..arrow.masks import mask_values
from ..delta.errors import translate_errors
from ..delta.folders import sync_commit, write_json
from ..delta.lake import encode_name, local_folder
from ..delta.tables import has_table
from .delta_options import CHANGE, VERSION, DeltaSourceSettings, JournalOptions
from .delta_table.source import TableRows
from .scan import Scan

# The journal of a source: it stores the rows that it read, and lanes read them from there. A commit or file is complete or
# absent, and on the disk when the call returns.


T = TypeVar("T")
MASKS = "masks"
"""The notes of the masks, in the file with the rules."""
MaskNotes = Mapping[str, Any]
"""A note of the mask of each column. Equal masks have equal notes; a note reveals neither key nor value."""


class RowJournal(ABC):
    """The rows of a source in a Delta table of its state folder, with the source's progress in each commit. So a kill
    neither loses nor duplicates rows. They are stored masked only.

    - `progress_key`: the key of the progress in the metadata of commits.
    - `progress_name`: the part of an error about commits without it, after "No commit of TABLE".

    The caller ensures that only one process writes, with `StateFolder.lock`.
    """

    def __init__(self, options: JournalOptions, progress_key: str, progress_name: str) -> None:
        self.state = StateFolder(Path(options.state), options.name)
        self.path = find_journal(options)
        self._options, self._progress_key, self._progress_name = options, progress_key, progress_name

    @abstractmethod
    def check_rules(self) -> None:
        """Raise DataLoss if stored rows were read under other rules than configured: reading could not continue."""

    @property
    def has_rows(self) -> bool:
        """True if the table was created, by the first commit."""
        return has_table(local_folder(str(self.path)))

    def commit(self, rows: pa.Table, progress: str) -> None:
        """Append rows, with the progress. The first commit creates the table; later ones may add columns."""
        properties = CommitProperties(custom_metadata={self._progress_key: progress})
        more: dict[str, Any]
        if self.has_rows:
            more = {"mode": "append", "schema_mode": "merge"}
        else:
            # Old commits stay: the newest one with progress may be followed by any number of compactions.
            more = {"mode": "error", "configuration": {"delta.enableExpiredLogCleanup": "false"}}
        with translate_errors(self._options.name):
            write_deltalake(str(self.path), rows, name=self._options.name, commit_properties=properties, **more)
            sync_commit(self.path, DeltaTable(str(self.path)).version())

    def read_newest_progress(self) -> str:
        """The progress in the newest commit with one. Compaction of the journal also makes commits."""
        with translate_errors(self._options.name):
            for commit in DeltaTable(str(self.path)).history():
                if self._progress_key in commit:
                    return str(commit[self._progress_key])
        raise DataLoss(f"No commit of {self.path} {self._progress_name}.", next_step=self.state.restart_step)

    def read_schema(self) -> pa.Schema:
        """The columns of the table, with those of the journal itself."""
        with translate_errors(self._options.name):
            return pa.schema(DeltaTable(str(self.path)).schema().to_arrow())

    def read_rows(self, condition: pc.Expression | None = None) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The rows that match the condition with their versions, in small tables."""
        with translate_errors(self._options.name):
            scanner = DeltaTable(str(self.path)).to_pyarrow_dataset().scanner(filter=condition, batch_size=32_768)
            for batch in scanner.to_batches():
                if batch.num_rows:
                    yield pa.table(batch).drop_columns([CHANGE, VERSION]), batch.column(VERSION)

    @property
    def mask_notes(self) -> MaskNotes:
        """The notes to store with the rows."""
        notes = {}
        for name, mask in sorted(self._options.private.items()):
            # An HMAC of the column name distinguishes keys.
            key = hmac.new(mask.key, name.encode(), "sha256").hexdigest() if mask.key else ""
            notes[name] = [mask.kind, mask.length, mask.text, key]
        return notes

    def mask_rows(self, rows: pa.Table) -> pa.Table:
        """The masked rows. Raises ConfigProblem for a mask that does not fit its column."""
        masks = self._options.private
        columns = tuple(Column(field.name, field.type) for field in rows.schema)
        table = TableSpec(self._options.name, columns, tuple(key for key in self._options.keys if key in rows.schema.names))
        refuse_unknown_masks(masks, table, self._options.columns)
        for name, mask in masks.items():
            if name in table.column_names:
                refuse_change(ColumnRule(mask=mask), table.column(name), table)
                rows = rows.set_column(table.column_names.index(name), name, mask_values(rows[name], mask))
        return rows

    def refuse_other_masks(self, noted: MaskNotes) -> None:
        """Raise DataLoss if stored rows (with `noted`) have other masks than configured. Their values would stay, and
        differ from new values."""
        now = self.mask_notes
        if noted == now:
            return
        others = ", ".join(sorted(repr(name) for name in self.read_schema().names if noted.get(name) != now.get(name)))
        if others:
            raise DataLoss(
                f"The stored rows of {self._options.name} have another mask of {others}, or none, than the configuration "
                "has now.",
                next_step=f"{self.state.restart_step} Event logs and dead letters stay as they are. Or restore the earlier "
                "masks.",
            )

    def gone_error(self, lost: str) -> DataLoss:
        """The error if the table was removed. `lost`: the lost part."""
        return DataLoss(f"{self.path} does not exist any more, so {lost} are lost.", next_step=self.state.restart_step)


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


def find_journal(options: JournalOptions) -> Path:
    """The folder of the journal."""
    return Path(options.state) / encode_name(options.name)


# The source over a journal, and the schedule of the polls that fill it.


FIRST_WITHIN = 15.0
"""Seconds that a caller waits for the first snapshot before it gets Retryable."""
TURN = 0.2


class JournalRows(TableRows):
    """A `Source` over a journal, which `poller` fills.

    Its one topic has the name of the table. Lanes without a position begin with the first rows in the journal. This
    process polls and writes the journal. The engine reads it, so Spark's executors need access to the state folder.
    """

    def __init__(self, options: JournalOptions, scan: Scan, poller: JournalPoller) -> None:
        self._poller = poller
        rows = DeltaSourceSettings(
            transport="delta",
            format=ROWS,
            path=str(find_journal(options)),
            operation_column=CHANGE,
            sequence_columns=[VERSION],
            masked=tuple(sorted(options.private)),
            batch_records=options.batch_records,
            batch_bytes=options.batch_bytes,
        )
        super().__init__(rows, str(rows.path), scan)

    @property
    def features(self) -> SourceFeatures:
        return replace(super().features, waited_for=self._poller.waited_for)

    def before_refresh(self) -> None:
        """Process the next snapshot, if there is one."""
        self._poller.poll()

    def run(self, start: Position, consume_batch: ConsumeBatch[Any], stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the newest snapshot at the start; for a database, up to one new snapshot."""
        self._poller.begin()
        if once:
            self._poller.catch_up(stop)
        try:
            super().run(start, consume_batch, stop, once=once)
        finally:
            if stop.is_set():
                self.close()

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        self._poller.begin()
        return super().losses(position, identity)

    def start(self) -> Position:
        """See the port: the first snapshot."""
        return self.beginning()

    def beginning(self) -> Position:
        self._poller.begin()
        return super().beginning()

    def end(self) -> Position:
        """See the port: the end of the processed snapshots."""
        self._poller.begin()
        return super().end()

    def close(self) -> None:
        self._poller.close()


class JournalPoller(Protocol):
    """Fills a journal, on a schedule. A snapshot is what one poll reads."""

    def begin(self) -> None:
        """Process the first snapshot, unless there was one before. Raises the reason if there is none, and if it was
        compared by other keys."""

    def poll(self) -> None:
        """Process available snapshots. Called about every second while a stream runs."""

    def catch_up(self, stop: Stop) -> None:
        """Process all snapshots that exist now; none is processed after that."""

    def waited_for(self) -> tuple[str, float] | None:
        """See `ports.source.SourceFeatures`."""

    def close(self) -> None:
        """End running work."""


class PacedPoller:
    """`JournalPoller` of a database: `read` runs at once, then every `every`, in the background of the stream. After
    `catch_up`, in which it runs once, it never runs again.

    - `read`: returns False if another process is reading.
    - `cancel`: ends all reads, now or later.
    - `pending`: a sentence for the time before the first rows.
    """

    def __init__(
        self, journal: RowJournal, read: Callable[[], bool], cancel: Callable[[], None], *, every: str, pending: str
    ) -> None:
        self._journal, self._read, self._cancel, self._pending = journal, read, cancel, pending
        self._every = to_timedelta(every).total_seconds()
        self._due = time.monotonic()
        self._once = self._was_read = False
        self._running: Future[bool] | None = None
        self._since: float | None = None

    def begin(self) -> None:
        """See `JournalPoller.begin`. Raises Retryable until there are rows, which another process may read."""
        ends = time.monotonic() + FIRST_WITHIN
        while not self._journal.has_rows and time.monotonic() < ends:
            self._wait(TURN)
        if not self._journal.has_rows:
            raise Retryable(
                self._pending,
                next_step="The program waits for it. If another command printed this, start `replicator run` first.",
            )
        self._journal.check_rules()

    def close(self) -> None:
        self._cancel()

    def waited_for(self) -> tuple[str, float] | None:
        since = self._since
        return None if since is None else ("asking its database", time.monotonic() - since)

    def poll(self) -> None:
        """See `JournalPoller.poll`: get a finished result, and start a read if it is time."""
        self._wait(0)

    def catch_up(self, stop: Stop) -> None:
        self._once = True
        while not self._was_read and not stop.is_set():
            self._wait(TURN)

    def _wait(self, seconds: float) -> None:
        """Start a read if it is time, in a thread of its own, and wait up to `seconds` for its end. Raises its error."""
        is_due = not self._was_read if self._once else time.monotonic() >= self._due
        if self._running is None:
            if not is_due:
                time.sleep(seconds)
                return
            self._running = Future()
            Thread(target=self._run, args=(self._running,), name="snapshot", daemon=True).start()
        if not wait([self._running], seconds).done:
            return
        ended, self._running = self._running, None
        ended.result()
        self._due = time.monotonic() + self._every
        self._was_read = True

    def _run(self, future: Future[bool]) -> None:
        self._since = time.monotonic()
        try:
            future.set_result(self._read())
        except BaseException as problem:  # Raised in `_wait`.
            future.set_exception(problem)
        finally:
            self._since = None
