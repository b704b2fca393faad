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

from replicator.domain.plan import Counts
from replicator.domain.position import Position, Span

from .durably import folder_made, synced
from .records import Records

PARTS = 64
FORMAT = 1
"""Of what is written here; what has another one is laid down anew."""
WRITTEN = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
SAID, ROWS, RECORDS = "laid.json", "rows.arrow", "records"


@dataclass(frozen=True)
class Piece:
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

    def told(self) -> dict[str, Any]:
        """The same as JSON."""
        return {**asdict(self), "span": self.span.to_json()}

    @classmethod
    def of(cls, told: dict[str, Any]) -> Piece:
        """What `told` gave."""
        made = cls(**{**told, "span": Span.from_json(told["span"]), "counts": Counts(**told["counts"])})
        return replace(made, batches=tuple(made.batches), records=tuple(made.records))


@dataclass
class Laid:
    """The pieces in `folder`, each complete and on the disk before it is listed. `made_by`: what else reads them means
    something else by a part. `rule`: of the plan; `identity`: of the topics, by name."""

    folder: Path
    made_by: str
    rule: str = ""
    identity: dict[str, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, made_by: str) -> Laid:
        """What is there. The last piece with rows is left out, and what is behind it, for who goes on has to meet the lane's
        plan again. Nothing of what another program made."""
        try:
            told = json.loads((folder / SAID).read_bytes())
        except FileNotFoundError:
            return cls(folder, made_by)
        if (told.get("format"), told.get("made_by")) != (FORMAT, made_by):
            return cls(folder, made_by)
        pieces = [Piece.of(one) for one in told["pieces"]]
        last = max((number for number, piece in enumerate(pieces) if piece.rows), default=0)
        return cls(folder, made_by, told["rule"], told["identity"], pieces[:last])

    @property
    def span(self) -> Span:
        """What all pieces stand for."""
        return reduce(Span.then, (piece.span for piece in self.pieces), Span(Position(), Position()))

    @property
    def rows(self) -> int:
        """The rows of all pieces."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def counts(self) -> Counts:
        """What the folds of the pieces had counted."""
        return sum((piece.counts for piece in self.pieces), Counts())

    def add(self, piece: Piece, parts: Sequence[pa.Table], records: Sequence[Records[Any]]) -> None:
        """Lay down one more, whose batches and records are counted here; durable on return. OSError where it cannot be."""
        place = self._place(piece.number)
        shutil.rmtree(place, ignore_errors=True)
        folder_made(place)
        lengths = []
        with (place / RECORDS).open("wb") as file:
            for one in records:
                lengths.append(one.write(file))
            _sync(file)
        with (place / ROWS).open("wb") as file:
            batches = _write(file, parts)
            _sync(file)
        synced(place)
        self.pieces.append(replace(piece, batches=batches, records=tuple(lengths)))
        self._say()

    def schema(self) -> pa.Schema | None:
        """Of the rows; None without any."""
        return self._open(self.pieces[0]).schema if self.pieces else None

    def part(self, number: int) -> list[pa.RecordBatch]:
        """The rows of one part, in the order in which they were laid down."""
        found = []
        for piece in self.pieces:
            first = sum(piece.batches[:number])
            reader = self._open(piece)
            found += [reader.get_batch(first + i) for i in range(piece.batches[number])]
        return found

    def records(self) -> Iterator[Records[Any]]:
        """The records that the rows came from, packed."""
        for piece in self.pieces:
            at = 0
            with pa.memory_map(str(self._place(piece.number) / RECORDS)) as file:
                whole = file.read_buffer()
            for length in piece.records:
                yield Records.packed(whole.slice(at, length))
                at += length

    def remove(self) -> None:
        """Leave nothing. OSError where that cannot be."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.pieces.clear()

    def _place(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def _open(self, piece: Piece) -> pa.ipc.RecordBatchFileReader:
        return pa.ipc.open_file(pa.memory_map(str(self._place(piece.number) / ROWS)))

    def _say(self) -> None:
        told = {"format": FORMAT, "made_by": self.made_by, "rule": self.rule, "identity": self.identity}
        new = self.folder / f"{SAID}.new"
        with new.open("wb") as file:
            file.write(json.dumps({**told, "pieces": [piece.told() for piece in self.pieces]}).encode())
            _sync(file)
        new.replace(self.folder / SAID)
        synced(self.folder)


def _write(file: Any, parts: Sequence[pa.Table]) -> tuple[int, ...]:
    counts = []
    with pa.ipc.new_file(file, parts[0].schema, options=WRITTEN) as writer:
        for part in parts:
            batches = part.combine_chunks().to_batches()
            for batch in batches:
                writer.write_batch(batch)
            counts.append(len(batches))
    return tuple(counts)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
