"""What is laid down of one lane: rows apart by their keys, and the records that they came from, in files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.application.durable import make_folder, sync_path
from replicator.domain.policy.plan import Counts
from replicator.domain.position import Position, Span

from .batch_records import RecordFrame

SPILL_PARTITIONS = 64
FORMAT = 1
"""Of what is written here; what has another one is laid down anew."""
IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
MANIFEST_FILE, ROWS_FILE, RECORDS_FILE = "laid.json", "rows.arrow", "records"


@dataclass(frozen=True)
class SpillSlice:
    """Rows that were laid down at once: how many, in how many record batches of each part, what their fold had counted, and
    the bytes of each frame of records."""

    number: int
    span: Span
    rows: int
    counts: Counts
    batches: tuple[int, ...]
    records: tuple[int, ...]
    unsent: bool
    deletes: bool

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        return {**asdict(self), "span": self.span.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SpillSlice:
        """What `data` gave."""
        made = cls(**{**data, "span": Span.from_json(data["span"]), "counts": Counts(**data["counts"])})
        return replace(made, batches=tuple(made.batches), records=tuple(made.records))


@dataclass
class SpillFiles:
    """The pieces in `folder`, each complete and on the disk before it is listed. `made_by`: what else reads them means
    something else by a part. `rule`: of the plan; `identity`: of the topics, by name."""

    folder: Path
    made_by: str
    rule: str = ""
    identity: dict[str, str] = field(default_factory=dict)
    slices: list[SpillSlice] = field(default_factory=list)

    @classmethod
    def open_folder(cls, folder: Path, made_by: str) -> SpillFiles:
        """What is there. The last piece with rows is left out, and what is behind it, for who goes on has to meet the lane's
        plan again. Nothing of what another program made."""
        try:
            told = json.loads((folder / MANIFEST_FILE).read_bytes())
        except FileNotFoundError:
            return cls(folder, made_by)
        if (told.get("format"), told.get("made_by")) != (FORMAT, made_by):
            return cls(folder, made_by)
        pieces = [SpillSlice.from_json(one) for one in told["pieces"]]
        last = max((number for number, piece in enumerate(pieces) if piece.rows), default=0)
        return cls(folder, made_by, told["rule"], told["identity"], pieces[:last])

    @property
    def span(self) -> Span:
        """What all pieces stand for."""
        return reduce(Span.then, (piece.span for piece in self.slices), Span(Position(), Position()))

    @property
    def rows(self) -> int:
        """The rows of all pieces."""
        return sum(piece.rows for piece in self.slices)

    @property
    def counts(self) -> Counts:
        """What the folds of the pieces had counted."""
        return sum((piece.counts for piece in self.slices), Counts())

    def add_slice(self, piece: SpillSlice, parts: Sequence[pa.Table], records: Sequence[RecordFrame[Any]]) -> None:
        """Lay down one more, whose batches and records are counted here; durable on return. OSError where it cannot be."""
        place = self._slice_folder(piece.number)
        shutil.rmtree(place, ignore_errors=True)
        make_folder(place)
        lengths = []
        with (place / RECORDS_FILE).open("wb") as file:
            for one in records:
                lengths.append(one.write(file))
            _sync_file(file)
        with (place / ROWS_FILE).open("wb") as file:
            batches = _write_partitions(file, parts)
            _sync_file(file)
        sync_path(place)
        self.slices.append(replace(piece, batches=batches, records=tuple(lengths)))
        self._write_manifest()

    def read_schema(self) -> pa.Schema | None:
        """Of the rows; None without any."""
        return self._open_slice(self.slices[0]).schema if self.slices else None

    def read_partition(self, number: int) -> list[pa.RecordBatch]:
        """The rows of one part, in the order in which they were laid down."""
        found = []
        for piece in self.slices:
            first = sum(piece.batches[:number])
            reader = self._open_slice(piece)
            found += [reader.get_batch(first + i) for i in range(piece.batches[number])]
        return found

    def read_records(self) -> Iterator[RecordFrame[Any]]:
        """The records that the rows came from, packed."""
        for piece in self.slices:
            at = 0
            with pa.memory_map(str(self._slice_folder(piece.number) / RECORDS_FILE)) as file:
                whole = file.read_buffer()
            for length in piece.records:
                yield RecordFrame.from_buffer(whole.slice(at, length))
                at += length

    def remove(self) -> None:
        """Leave nothing. OSError where that cannot be."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.slices.clear()

    def _slice_folder(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def _open_slice(self, piece: SpillSlice) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self._slice_folder(piece.number) / ROWS_FILE)))

    def _write_manifest(self) -> None:
        told = {"format": FORMAT, "made_by": self.made_by, "rule": self.rule, "identity": self.identity}
        new = self.folder / f"{MANIFEST_FILE}.new"
        with new.open("wb") as file:
            file.write(json.dumps({**told, "pieces": [piece.to_json() for piece in self.slices]}).encode())
            _sync_file(file)
        new.replace(self.folder / MANIFEST_FILE)
        sync_path(self.folder)


def _write_partitions(file: Any, parts: Sequence[pa.Table]) -> tuple[int, ...]:
    counts = []
    with pa.ipc.new_file(file, parts[0].schema, options=IPC_OPTIONS) as writer:
        for part in parts:
            batches = part.combine_chunks().to_batches()
            for batch in batches:
                writer.write_batch(batch)
            counts.append(len(batches))
    return tuple(counts)


def _sync_file(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
