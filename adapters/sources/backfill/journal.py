"""The journal of one table's backfills: files of records, named by their offsets, and the state of the run.

It is not the journal of `sources.journal`: its records have the form of the source's stream, and topics of their own.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.errors import EnvironmentProblem, Fenced, Retryable
from replicator.domain.plain_values import EPOCH
from replicator.domain.position import Position, Span, TopicPartition
from replicator.local_files import FileLock, FileLocked, make_folder, remove_drafts, replace_file, write_whole
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, ConsumeBatch, Stop
from replicator.ports.source import BACKFILL_TOPICS

from ...arrow.record_positions import payload_bytes
from ...event_log import build_raw, split_batches
from ..scan import open_scan

STATE = "run.json"
NAME = re.compile(r"(\d{20})-(\d{20})\.parquet\Z")

Stage = Literal["rows", "deletes", "done"]


def to_topic(table: str) -> TopicPartition:
    """The topic with the records of a table's backfills."""
    return TopicPartition(BACKFILL_TOPICS + table, 0)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One file with the records from offset `first` up to `end`."""

    path: Path
    first: int
    end: int

    def read_records(self) -> pa.Table:
        """The records as a raw frame."""
        return pq.read_table(self.path).select(RAW.names).cast(RAW)

    def read_keys(self) -> pa.ChunkedArray:
        """The keys of the records."""
        return pq.read_table(self.path, columns=["key"])["key"]

    def read_notes(self) -> Mapping[str, Any]:
        """The metadata that was stored with the file."""
        notes: Mapping[str, Any] = json.loads(pq.read_schema(self.path).metadata[b"replicator"])
        return notes


@dataclass(frozen=True, slots=True)
class BackfillState:
    """The state of a table's backfills. `run`: the number of the last run. `below`, `begun`: see
    `ports.source.BackfillSnapshot`. `system`, `form`: its database, and the form of the table's rows. `next`: an offset
    above all earlier runs."""

    run: int
    stage: Stage
    below: tuple[int, ...]
    begun: str
    system: str
    form: str
    next: int


class BackfillFolder:
    """The folder of one table. Files and state are written atomically and durably. `private`: the decoder that masks
    the records first."""

    def __init__(self, folder: Path, table: str, private: Decoder | None = None) -> None:
        self.folder = folder / quote(table, safe="")
        self.topic = to_topic(table)
        self._mask_records = None if private is None else private.features.mask_records
        self._lock = FileLock(self.folder / "lock")

    def lock(self) -> None:
        """Become the only writer. Raises Fenced if another process is."""
        try:
            make_folder(self.folder)
            self._lock.acquire()
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.folder} cannot be written ({error.strerror}).", next_step="Make the folder `state` writable."
            ) from error
        except FileLocked:
            raise Fenced(
                f"Another process backfills {self.topic.topic.removeprefix(BACKFILL_TOPICS)}.",
                next_step="Wait until it has ended.",
            ) from None

    def unlock(self) -> None:
        """Let others write; may be called twice."""
        self._lock.release()

    def read_state(self) -> BackfillState | None:
        """The state of the last run; None before the first one."""
        try:
            fields = json.loads((self.folder / STATE).read_bytes())
            return BackfillState(**{**fields, "below": tuple(fields["below"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise EnvironmentProblem(
                f"{self.folder / STATE} cannot be read ({type(error).__name__}).",
                next_step=f"Remove {self.folder} and backfill the table again.",
            ) from error

    def write_state(self, state: BackfillState) -> BackfillState:
        """Replace the state."""
        replace_file(self.folder / STATE, json.dumps(asdict(state)).encode())
        return state

    def begin_run(self, below: tuple[int, ...], begun_at: str, system: str, form: str) -> BackfillState:
        """Start another run. Its offsets are above all earlier ones; if the folder was lost, they continue from the
        clock."""
        state = self.read_state()
        run = 1 if state is None else state.run + 1
        return self.write_state(BackfillState(run, "rows", below, begun_at, system, form, self.next_offset(state)))

    def next_offset(self, state: BackfillState | None = None) -> int:
        """The next offset."""
        pieces, state = self.list_files(), state or self.read_state()
        at = max([piece.end for piece in pieces] + ([state.next] if state else []), default=None)
        return time.time_ns() // 1_000 if at is None else at

    def list_files(self) -> list[JournalFile]:
        """All files, in order."""
        return list(list_files(self.folder))

    def list_run_files(self, run: int) -> list[tuple[JournalFile, Mapping[str, Any]]]:
        """The files of a run, with their metadata."""
        files = [(piece, piece.read_notes()) for piece in self.list_files()]
        return [(piece, notes) for piece, notes in files if notes["run"] == run]

    def append(self, records: pa.Table, notes: Mapping[str, Any]) -> None:
        """Append records from `build_records` as one file."""
        first, count = self.next_offset(), records.num_rows
        offsets = pa.array(range(first, first + count), RAW.field("offset").type)
        table = records.set_column(records.column_names.index("offset"), RAW.field("offset"), offsets)
        path = self.folder / f"{first:020}-{first + count:020}.parquet"
        frame = table.replace_schema_metadata({"replicator": json.dumps(notes)})
        with write_whole(path) as draft:
            pq.write_table(frame, draft, compression="zstd", use_dictionary=["topic"])

    def build_records(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
        """Records in the form in which they may be stored. `append` sets their offsets."""
        now = time.time_ns() // 1_000_000
        records = pa.table(build_raw(self.topic, range(len(keys)), values, millis=now, keys=keys))
        return records if self._mask_records is None else self._mask_records(records)

    def remove_before(self, run: int) -> None:
        """Remove the files of earlier runs."""
        state = self.read_state()
        if state is not None:
            self.write_state(replace(state, next=self.next_offset(state)))
        for piece in self.list_files():
            if piece.read_notes()["run"] < run:
                piece.path.unlink()
        remove_drafts(self.folder)


def list_files(folder: Path) -> Iterator[JournalFile]:
    """The files in one table's folder, in the order of their offsets."""
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        match = NAME.match(path.name)
        if match:
            yield JournalFile(path, int(match[1]), int(match[2]))


def list_tables(folder: Path) -> list[str]:
    """The tables that have a folder."""
    try:
        return sorted(unquote(path.name) for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


# Records of backfills as a source for lanes.


class JournalSource:
    """`ports.source.BackfillJournal`. Options, besides those of the engine:

    - `state`: the folder with the folders of tables.
    - `batch_bytes`: the most bytes of keys and values in one batch.

    This process reads the files, which are on its machine. Spark's executors get the records of a batch in one partition.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        own, self._scan = open_scan(options)
        self._folder = Path(str(own["state"]))
        self._batch_bytes = int(str(own["batch_bytes"]))
        self._micros: dict[Path, int] = {}

    def span(self) -> Span:
        files = {to_topic(table): pieces for table, pieces in self._list_files()}
        start = Position({partition: pieces[0].first for partition, pieces in files.items()})
        return Span(start, Position({partition: pieces[-1].end for partition, pieces in files.items()}))

    def get_newest_time(self) -> datetime | None:
        """Reads each file's metadata once, because files never change."""
        earlier, self._micros = self._micros, {}
        for piece in (piece for _, files in self._list_files() for piece in files):
            self._micros[piece.path] = earlier.get(piece.path, 0)
            if piece.path not in earlier:
                with suppress(FileNotFoundError):  # Removed meanwhile, as a newer snapshot exists.
                    self._micros[piece.path] = int(piece.read_notes().get("micros", 0))
        newest = max(self._micros.values(), default=0)
        return EPOCH + timedelta(microseconds=newest) if newest else None

    def _list_files(self) -> Iterator[tuple[str, list[JournalFile]]]:
        for table in list_tables(self._folder):
            pieces = self._find_files(to_topic(table))
            if pieces:
                yield table, pieces

    def _find_files(self, partition: TopicPartition) -> list[JournalFile]:
        return list(list_files(self._folder / quote(partition.topic.removeprefix(BACKFILL_TOPICS), safe="")))

    def read(self, start: Position, until: Position, consume_batch: ConsumeBatch[Any], stop: Stop) -> None:
        for partition, end in until.items():
            at = start.get(partition, 0)
            for piece in self._find_files(partition):
                if piece.end > at and piece.first < end:
                    at = self._deliver(piece, partition, (at, min(end, piece.end)), consume_batch, stop)
                if stop.is_set():
                    return

    def _deliver(
        self,
        piece: JournalFile,
        partition: TopicPartition,
        within: tuple[int, int],
        consume_batch: ConsumeBatch[Any],
        stop: Stop,
    ) -> int:
        """Deliver the records `within`; the first span begins there. Returns the offset up to which it did."""
        at, end = within
        try:
            frame = piece.read_records()
        except FileNotFoundError:
            raise Retryable(f"{piece.path} was removed while it was read") from None
        frame = frame.filter(pc.and_(pc.greater_equal(frame["offset"], at), pc.less(frame["offset"], end)))
        for records in split_batches([frame], frame.num_rows, self._batch_bytes):
            last = records["offset"][-1].as_py() + 1
            span = Span(Position({partition: at}), Position({partition: last}))
            consume_batch(Batch(self._scan.to_frame(records), span, records.num_rows, payload_bytes(records)))
            at = last
            if stop.is_set():
                break
        return at if stop.is_set() else max(at, end)
