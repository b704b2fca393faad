"""What a backfill wrote down of one table: files of records, named by their offsets, and how far it got."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.errors import EnvironmentProblem, Fenced
from replicator.domain.position import TopicPartition
from replicator.ports.backfill import TOPICS
from replicator.ports.decoder import MasksRecords

from ...delta.durable_files import make_folder, sync

STATE = "run.json"
NAME = re.compile(r"(\d{20})-(\d{20})\.parquet\Z")

Stage = Literal["rows", "deletes", "done"]


def to_topic(table: str) -> TopicPartition:
    """Where the records of a table's backfills are."""
    return TopicPartition(TOPICS + table, 0)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """One file: records from offset `first` up to `end`."""

    path: Path
    first: int
    end: int

    def read_records(self) -> pa.Table:
        """A raw frame."""
        return pq.read_table(self.path).select(RAW.names).cast(RAW)

    def read_keys(self) -> pa.ChunkedArray:
        """The keys alone."""
        return pq.read_table(self.path, columns=["key"])["key"]

    def read_notes(self) -> Mapping[str, Any]:
        """What was noted with it."""
        found: Mapping[str, Any] = json.loads(pq.read_schema(self.path).metadata[b"replicator"])
        return found


@dataclass(frozen=True, slots=True)
class BackfillState:
    """How far the backfills of a table got. `run`: the number of the last; `below`, `begun`: see
    `ports.backfill.BackfillSnapshot`; `system`, `form`: the database it was of, and the table's columns; `next`: an offset
    above all of the runs before."""

    run: int
    stage: Stage
    below: tuple[int, ...]
    begun: str
    system: str
    form: str
    next: int


class BackfillFolder:
    """The folder of one table. Pieces and state appear whole or not at all, and are safe from a crash then. `private`: what
    makes of records those that may be stored."""

    def __init__(self, folder: Path, table: str, private: MasksRecords | None = None) -> None:
        self.folder = folder / quote(table, safe="")
        self.topic = to_topic(table)
        self._private = private
        self._lock: int | None = None

    def lock(self) -> None:
        """Be the only one that writes. Fenced while another process does."""
        try:
            make_folder(self.folder)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise EnvironmentProblem(
                f"{self.folder} cannot be written ({error.strerror}).", next_step="Make the folder `state` writable."
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Fenced(
                f"Another process backfills {self.topic.topic.removeprefix(TOPICS)}.", next_step="Wait until it has ended."
            ) from None
        self._lock = handle

    def unlock(self) -> None:
        """Let others write; may be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read_state(self) -> BackfillState | None:
        """How far it got; None before the first run."""
        try:
            return _to_state(json.loads((self.folder / STATE).read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise EnvironmentProblem(
                f"{self.folder / STATE} cannot be read ({type(error).__name__}).",
                next_step=f"Remove {self.folder} and backfill the table anew.",
            ) from error

    def write_state(self, state: BackfillState) -> BackfillState:
        """Replace the state."""
        new = self.folder / f"{STATE}.new"
        new.write_text(json.dumps(asdict(state)), encoding="utf-8")
        _make_durable(new, self.folder / STATE)
        return state

    def begin_run(self, below: tuple[int, ...], begun: str, system: str, form: str) -> BackfillState:
        """Another run. Offsets lie above all that were ever given, also where this folder was lost meanwhile: then they go
        on from the clock."""
        known = self.read_state()
        run = 1 if known is None else known.run + 1
        return self.write_state(BackfillState(run, "rows", below, begun, system, form, self.next_offset(known)))

    def next_offset(self, known: BackfillState | None = None) -> int:
        """The offset that comes next."""
        pieces, known = self.list_files(), known or self.read_state()
        at = max([piece.end for piece in pieces] + ([known.next] if known else []), default=None)
        return time.time_ns() // 1_000 if at is None else at

    def list_files(self) -> list[JournalFile]:
        """The files there are, in order."""
        return list(list_files(self.folder))

    def list_run_files(self, run: int) -> list[tuple[JournalFile, Mapping[str, Any]]]:
        """The files of a run, with what was noted."""
        found = [(piece, piece.read_notes()) for piece in self.list_files()]
        return [(piece, said) for piece, said in found if said["run"] == run]

    def append(self, records: pa.Table, said: Mapping[str, Any]) -> None:
        """What `build_records` made, in one piece, at the end."""
        first, count = self.next_offset(), records.num_rows
        offsets = pa.array(range(first, first + count), RAW.field("offset").type)
        table = records.set_column(records.column_names.index("offset"), RAW.field("offset"), offsets)
        path = self.folder / f"{first:020}-{first + count:020}.parquet"
        new = path.with_suffix(".new")
        noted = table.replace_schema_metadata({"replicator": json.dumps(said)})
        pq.write_table(noted, new, compression="zstd", use_dictionary=["topic"])
        _make_durable(new, path)

    def build_records(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
        """Records as they may be stored; their offsets are given where they are."""
        count, now = len(keys), time.time_ns() // 1_000_000
        columns = {
            "topic": pa.array([self.topic.topic] * count, pa.string()),
            "partition": pa.array([self.topic.partition] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([now] * count, pa.int64()).cast(RAW.field("timestamp").type),
            "headers": pa.nulls(count, RAW.field("headers").type),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
        records = pa.table(columns, schema=RAW)
        return records if self._private is None else self._private.mask_records(records)

    def remove_before(self, run: int) -> None:
        """Remove what earlier runs wrote down."""
        state = self.read_state()
        if state is not None:
            self.write_state(replace(state, next=self.next_offset(state)))
        for piece in self.list_files():
            if piece.read_notes()["run"] < run:
                piece.path.unlink()


def _to_state(said: Mapping[str, Any]) -> BackfillState:
    return BackfillState(**{**said, "below": tuple(said["below"])})


def list_files(folder: Path) -> Iterator[JournalFile]:
    """The files of one table's folder, in the order of their offsets."""
    try:
        paths = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        found = NAME.match(path.name)
        if found:
            yield JournalFile(path, int(found[1]), int(found[2]))


def list_tables(folder: Path) -> list[str]:
    """The tables of which anything was written down."""
    try:
        return sorted(unquote(path.name) for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _make_durable(new: Path, path: Path) -> None:
    sync(new)
    new.replace(path)
    sync(path.parent)
