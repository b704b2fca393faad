"""Records of batches that are on their way to a sink, kept for what it rejects: as they came, or packed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Generic, cast, overload

import pyarrow as pa

from replicator.domain.position import Span
from replicator.ports.frames import Batch, F

IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
"""Records of one table are much alike: JSON with schemas takes a twentieth. With zstd it is half of that, and takes nearly
twice the time (measured), of which all that reads and decodes has the less."""

MAX_BEGUN = 8
"""Batches whose records are kept for more tables than one: the one at work, and those that come next
(`ports.engine.Prefetches`)."""


class RecordFrame(Generic[F]):
    """The raw frame of one batch. `size`: the bytes that keeping it takes."""

    def __init__(self, frame: F, size: int) -> None:
        self._frame: F | None = frame
        self._packed: pa.Buffer | None = None
        self.size = size

    @classmethod
    def from_buffer(cls, found: pa.Buffer) -> RecordFrame[F]:
        """Records as `write` wrote them."""
        made: RecordFrame[F] = cls(cast("F", None), found.size)
        made._packed = found
        return made

    def pack(self) -> None:
        """Take less memory from now on, where frames are Arrow's."""
        if not isinstance(self._frame, pa.Table):
            return
        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, self._frame.schema, options=IPC_OPTIONS) as writer:
            writer.write_table(self._frame)
        self._frame, self._packed = None, into.getvalue()
        self.size = self._packed.size

    def write(self, file: BinaryIO) -> int:
        """Write them to a file, as they are packed; the bytes."""
        self.pack()
        return file.write(cast("pa.Buffer", self._packed))

    @property
    def frame(self) -> F:
        """The frame; packed, a new one each time."""
        if self._packed is None:
            return cast("F", self._frame)
        with pa.ipc.open_stream(self._packed) as reader:
            return cast("F", reader.read_all())


class RecordFrames(Sequence[F]):
    """The frames of several batches, each made when it is asked for."""

    def __init__(self, records: Sequence[RecordFrame[F]]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, number: int) -> F: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[F]: ...

    def __getitem__(self, number: int | slice) -> F | Sequence[F]:
        return RecordFrames(self._records[number]) if isinstance(number, slice) else self._records[number].frame


class BatchRecords(Generic[F]):
    """The records of one batch after another; of a batch that several tables take the same ones. `from_buffer` where many
    gather before they are committed."""

    def __init__(self, *, packed: bool) -> None:
        self._beside = ThreadPoolExecutor(1, "packing") if packed else None
        self._begun: deque[tuple[Span, RecordFrame[F], Future[None]]] = deque(maxlen=MAX_BEGUN)

    def begin(self, batch: Batch[F]) -> None:
        """Records of this batch will be wanted: they are packed beside what is done with it until then."""
        if self._beside is None or self._find_packed(batch) is not None:
            return
        kept = RecordFrame(batch.frame, batch.size)
        self._begun.append((batch.span, kept, self._beside.submit(kept.pack)))

    def get_records(self, batch: Batch[F]) -> RecordFrame[F]:
        """The records of a batch."""
        self.begin(batch)
        found = self._find_packed(batch)
        if found is None:
            return RecordFrame(batch.frame, batch.size)
        kept, packed = found
        packed.result()
        return kept

    def _find_packed(self, batch: Batch[F]) -> tuple[RecordFrame[F], Future[None]] | None:
        return next(((kept, packed) for span, kept, packed in self._begun if span == batch.span), None)
