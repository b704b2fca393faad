"""The growing file of Kafka Connect's file sink (FileStreamSink), read as one partition of a topic.

A line is the value of a record, as text; a line `null` is a null value. The file has no keys, partitions, offsets or
topics. The topic is an option, the partition is 0, and the offset is the line number from 0. Blank lines are skipped. A
line without a line end is still being written. The first line identifies the file. A file with another first line, or one
that shrank, is refused, because its lines have the offsets of lines that were read.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch, Stop

from ..file_options import FileSourceOptions
from .file_list import NULL, ArchiveFile, FilesLocation, find_files
from .file_reader import LONGEST, PACKED, ArchiveRecord, FileFormat, Number, unusable_error
from .source import RELOAD, ArchiveCheck, ArchiveSource

TOPIC = "topic"
FIRST_LINE = 64 * 1024
"""Bytes of the first line that identify a file."""
ANOTHER = "is not the file that was read: it begins with another line"


class LineFileFormat:
    """`FileFormat` of such a file."""

    suffixes: tuple[str, ...] = ("",)
    divisible = growing = True
    deep = False
    longest = LONGEST

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        """See `FileFormat.files`: the single file."""
        is_file = isinstance(path, str) and not Path(path).is_dir() and not path.endswith(PACKED)
        files = list(find_files(path, self.suffixes)) if is_file else []
        if len(files) != 1:
            raise ConfigProblem(
                f"{path} is not one file of lines on this machine",
                next_step="Let `path` be the connector's `file`; each file is a source of its own.",
            )
        return files

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return iter(stream)

    def record(self, _: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        if not line.endswith(b"\n"):
            return ValueError("it has no end")
        value = line.strip()
        return (
            ArchiveRecord(self.topic, 0, number() - 1, None, None, None, None if value == NULL else value) if value else None
        )

    def frame(self, file: ArchiveFile, _: pa.RecordBatch, __: int) -> pa.RecordBatch:
        """See `FileFormat.frame`: not used for text."""
        raise Fatal(f"{file.path} holds text")

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: no file of this format is Parquet."""


class LineFileSource(ArchiveSource):
    """A `Source` over such a file. Options of `ArchiveSource`, and `topic`."""

    def __init__(self, options: FileSourceOptions | Mapping[str, Any]) -> None:
        super().__init__(options)
        self._topic = str(getattr(self._options, TOPIC))
        self._read: tuple[ArchiveFile, str] | None = None
        self._lock = threading.Lock()

    @staticmethod
    def make_format(options: FileSourceOptions) -> FileFormat:
        topic = getattr(options, TOPIC)
        if not topic:
            raise ConfigProblem(f"The options of a source of files are not valid: {TOPIC}: must be a name.")
        return LineFileFormat(topic)

    def run(self, start: Position, apply_batch: Any, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the file at the start."""
        super().run(start, partial(self._apply_batch, apply_batch), stop, once=once)

    def read(self, start: Position, until: Position, apply_batch: Any, stop: Stop) -> None:
        super().read(start, until, partial(self._apply_batch, apply_batch), stop)

    def losses(self, position: Position, identity: Mapping[str, str]) -> Mapping[TopicPartition, str]:
        """See the port. The identity of the topic is the first line of the file."""
        losses = dict(super().losses(position, identity))
        [file] = self._list_files()
        before, now = identity.get(self._topic), digest_first_line(file)
        if before and now and before != now:
            losses |= {partition: f"{file.path} {ANOTHER}." for partition in position if partition.topic == self._topic}
        return losses

    def _files(self, start: Position) -> list[ArchiveFile]:
        """The file. Raises DataLoss if it was replaced or shrank."""
        with self._lock:
            files = super()._files(start)
            [file], now = files, digest_first_line(files[0])
            before, digest = self._read or (file, now)
            if file.size < before.size:
                raise DataLoss(
                    f"{file.path} became shorter: it had {format_count(before.size, 'byte')}, and has {file.size}",
                    next_step=RELOAD,
                )
            if digest and now != digest:
                raise DataLoss(f"{file.path} {ANOTHER}", next_step=RELOAD)
            self._read = file, now
        return files

    def _apply_batch(self, apply_batch: Any, batch: Batch[Any]) -> None:
        digest = self._read[1] if self._read else ""
        apply_batch(replace(batch, identity={self._topic: digest}) if digest else batch)


def digest_first_line(file: ArchiveFile) -> str:
    """The digest of the file's first line, which identifies the file; empty while the line is being written."""
    try:
        with file.path.open("rb") as stream:
            line = stream.readline(FIRST_LINE)
    except OSError as error:
        raise unusable_error(file, error) from error
    return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") or len(line) == FIRST_LINE else ""


class LineFileCheck(ArchiveCheck):
    """`ports.runtime.Check`, with the options of `LineFileSource`."""

    source = LineFileSource
