"""Spill files of one lane: rows partitioned by key hash, and the records behind them."""

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
"""Format of the files. Files of another format are ignored, and written again."""
IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
MANIFEST_FILE, ROWS_FILE, RECORDS_FILE = "laid.json", "rows.arrow", "records"


@dataclass(frozen=True)
class SpillSlice:
    """Rows that were spilled at once.

    - `counts`: the counts of their fold.
    - `batches`: the number of Arrow record batches in each partition.
    - `records`: the bytes of each frame of records.
    """

    number: int
    span: Span
    rows: int
    counts: Counts
    batches: tuple[int, ...]
    records: tuple[int, ...]
    unsent: bool
    deletes: bool

    def to_json(self) -> dict[str, Any]:
        """The slice as JSON."""
        return {**asdict(self), "span": self.span.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SpillSlice:
        """A slice from the result of `to_json`."""
        made = cls(**{**data, "span": Span.from_json(data["span"]), "counts": Counts(**data["counts"])})
        return replace(made, batches=tuple(made.batches), records=tuple(made.records))


@dataclass
class SpillFiles:
    """The slices in `folder`. Each is complete and durable before the manifest lists it.

    - `made_by`: the partitioner; another one divides keys differently.
    - `rule`: the rule of the plan.
    - `identity`: the topic identities, by name.
    """

    folder: Path
    made_by: str
    rule: str = ""
    identity: dict[str, str] = field(default_factory=dict)
    slices: list[SpillSlice] = field(default_factory=list)

    @classmethod
    def open_folder(cls, folder: Path, made_by: str) -> SpillFiles:
        """The slices in a folder; none if another partitioner or format wrote them.

        The last slice with rows, and all after it, are left out: the resuming lane has to read the table's plan
        again.
        """
        try:
            manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
        except FileNotFoundError:
            return cls(folder, made_by)
        if (manifest.get("format"), manifest.get("made_by")) != (FORMAT, made_by):
            return cls(folder, made_by)
        pieces = [SpillSlice.from_json(one) for one in manifest["pieces"]]
        last = max((number for number, piece in enumerate(pieces) if piece.rows), default=0)
        return cls(folder, made_by, manifest["rule"], manifest["identity"], pieces[:last])

    @property
    def span(self) -> Span:
        """The span of all slices."""
        return reduce(Span.then, (piece.span for piece in self.slices), Span(Position(), Position()))

    @property
    def rows(self) -> int:
        """The number of rows in all slices."""
        return sum(piece.rows for piece in self.slices)

    @property
    def counts(self) -> Counts:
        """The counts of all slices' folds."""
        return sum((piece.counts for piece in self.slices), Counts())

    def add_slice(self, piece: SpillSlice, parts: Sequence[pa.Table], records: Sequence[RecordFrame[Any]]) -> None:
        """Add a slice, durably. Fills in its `batches` and `records`. OSError if it cannot be written."""
        folder = self._slice_folder(piece.number)
        shutil.rmtree(folder, ignore_errors=True)
        make_folder(folder)
        lengths = []
        with (folder / RECORDS_FILE).open("wb") as file:
            for one in records:
                lengths.append(one.write(file))
            _sync_file(file)
        with (folder / ROWS_FILE).open("wb") as file:
            batches = _write_partitions(file, parts)
            _sync_file(file)
        sync_path(folder)
        self.slices.append(replace(piece, batches=batches, records=tuple(lengths)))
        self._write_manifest()

    def read_schema(self) -> pa.Schema | None:
        """The schema of the rows; None without any."""
        return self._open_slice(self.slices[0]).schema if self.slices else None

    def read_partition(self, number: int) -> list[pa.RecordBatch]:
        """The rows of one partition, in the order in which they were spilled."""
        found = []
        for piece in self.slices:
            first = sum(piece.batches[:number])
            reader = self._open_slice(piece)
            found += [reader.get_batch(first + i) for i in range(piece.batches[number])]
        return found

    def read_records(self) -> Iterator[RecordFrame[Any]]:
        """The records behind the rows, packed."""
        for piece in self.slices:
            at = 0
            with pa.memory_map(str(self._slice_folder(piece.number) / RECORDS_FILE)) as file:
                whole = file.read_buffer()
            for length in piece.records:
                yield RecordFrame.from_buffer(whole.slice(at, length))
                at += length

    def remove(self) -> None:
        """Delete all files. OSError if that fails."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.slices.clear()

    def _slice_folder(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def _open_slice(self, piece: SpillSlice) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self._slice_folder(piece.number) / ROWS_FILE)))

    def _write_manifest(self) -> None:
        manifest = {"format": FORMAT, "made_by": self.made_by, "rule": self.rule, "identity": self.identity}
        new = self.folder / f"{MANIFEST_FILE}.new"
        with new.open("wb") as file:
            file.write(json.dumps({**manifest, "pieces": [piece.to_json() for piece in self.slices]}).encode())
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
