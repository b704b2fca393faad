"""Files of Kafka Connect's sinks, read as the original topics. First the files of object store sinks (S3, OSS and others
with the same names), then the growing file of the file sink.

**Names.** `TOPIC+PARTITION+OFFSET.json`, optionally `.gz`, in any folders: `topics/orders/partition=0/` by default. The
offset belongs to the first record; each line is the next record. A file with more records than fit before the next one is
refused. A partitioner has sorted records of a partition into several files, so their offsets are unknown. If the connector
skipped records, later records have lower offsets here, in the same order.

**Values.** A line of `.json` is the value (`JsonFormat`). A line that is a JSON string stands for its text, because the
connector writes text messages so (`StringConverter`). A line of `.bin` (`ByteArrayFormat`) is the message as it was. A
record of Avro (`AvroFormat`) or a row of Parquet (`ParquetFormat`) becomes the JSON of the value with its schema. The
schema is in the file. Text and bytes in Avro are messages as they were.

**Keys and headers** are in separate files, `TOPIC+PARTITION+OFFSET.keys.json` or `.keys.avro`, and the same with `.headers`,
in the order of the values (`store.kafka.keys`, `store.kafka.headers`). Once a partition has them, a file without them is
incomplete. Keys without values are tombstones (`behavior.on.null.values: write`). They are refused, because their
position among the values is unknown.

**Time.** The time of a record is the modification time of its file.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Retryable
from replicator.domain.out_of_range import FIRST_MS, LAST_MS
from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch, Stop

from ..file_options import FileSourceOptions
from .file_list import NULL, SETTLED_SECONDS, ArchiveFile, FilePath, FilesLocation, find_files, seconds_until_complete
from .file_reader import (
    AVRO,
    PACKED,
    ArchiveRecord,
    FileFormat,
    LineTooLong,
    LongLine,
    Number,
    RecordColumns,
    unreadable_record,
    unusable_error,
)
from .immutable import ImmutableFilesSource, read_lines
from .source import RELOAD, ArchiveSource

# File names of Connect's sinks.

PARQUET = ".parquet"
SUFFIXES = (".json", ".json.gz", ".bin", ".bin.gz", AVRO, PARQUET)
OTHERS = (".keys.parquet", ".headers.parquet", ".snappy", ".zip")
"""Endings of sink files that cannot be read."""
RAW = (".bin", ".bin.gz")
"""Endings of files whose lines are messages as they were."""
_NAME = re.compile(
    r"(?P<stem>(?P<topic>[A-Za-z0-9._-]+)\+(?P<partition>[0-9]{1,10})\+(?P<offset>[0-9]{1,19})(?:\+[0-9]{1,19})?)"
    r"(?:\.(?P<part>keys|headers))?"
    r"(?:(?:\.json|\.bin)(?:\.gz)?|\.avro|(?:\.(?:snappy|gz|zstd|lz4|lz4raw|lzo|br))?\.parquet)"
)
"""Sinks to HDFS also include the last offset in the name."""
_OF_AIVEN = re.compile(r"[A-Za-z0-9._-]+-[0-9]+-[0-9]+(?:\.(?:gz|snappy|zst))?")
_OF_STRINGS = re.compile(r"[A-Za-z0-9._-]+(?:\+[0-9]+){3}\.txt")
_OF_LENSES = re.compile(r"[0-9]+_[0-9]+_[0-9]+\D.*|.+\([0-9]+_[0-9]+\).*")
_OF_CLOUDERA = re.compile(r".+_[0-9]+_[0-9]+\.[a-z.]+")
_FOREIGN = (
    (_OF_AIVEN, "Aiven's sinks name files, in which fields of a record lie around the value"),
    (_OF_STRINGS, "sinks to HDFS name files of StringFormat, which is not read"),
    (_OF_LENSES, "Lenses' sinks name files: by the last offset, and not by the first"),
    (_OF_CLOUDERA, "Cloudera's sinks name files: by the last offset, and not by the first"),
)
"""File names of other sinks, which are not supported."""
LISTED = 2**17
"""Cached names: folders are listed again and again."""


class SinkFileName(NamedTuple):
    """A parsed file name: the partition, the first offset, and the kind of content (None for values). `stem`: the common
    part of files with the same records."""

    topic_partition: TopicPartition
    first: int
    part: str | None
    stem: str


@lru_cache(LISTED)
def parse_name(path: FilePath) -> SinkFileName:
    """The parsed name of the file at `path`. Raises ConfigProblem for an unknown name."""
    match = _NAME.fullmatch(path.name)
    if path.name.endswith(OTHERS) or (match and match["part"] and path.name.endswith(PARQUET)):
        raise ConfigProblem(
            f"{path} has an unsupported format. Values can be JSON, lines of messages, Avro or Parquet. Keys and headers "
            "can be JSON, lines or Avro",
            next_step="Let the connector write AvroFormat or JsonFormat, as `keys.format.class` and "
            "`headers.format.class` too, in another folder.",
        )
    if match is None or int(match["partition"]) >= 2**31 or int(match["offset"]) >= 2**62:
        hint = next((f"it is named as {owner}" for names, owner in _FOREIGN if names.fullmatch(path.name)), None)
        raise ConfigProblem(
            f"{path} is no file of a sink that can be read: {hint or 'its name is not like orders+0+0000000042.json'}",
            next_step="Move it to another place. Confluent's and Alibaba's sinks write files that are read; leave their "
            "`file.delim` at +.",
        )
    partition = TopicPartition(match["topic"], int(match["partition"]))
    return SinkFileName(partition, int(match["offset"]), match["part"], match["stem"])


def is_sink_file(name: str) -> bool:
    """True for file names that must be checked; other files are skipped."""
    return name.endswith((*SUFFIXES, *OTHERS)) or any(names.fullmatch(name) for names in (_OF_AIVEN, _OF_STRINGS))


# Files of sinks in their order, each with its files of keys and headers.

PARTS = ("keys", "headers")


@dataclass(frozen=True, slots=True)
class SinkFile(ArchiveFile):
    """A file of values. `keys`, `headers`: the files with keys and headers of its records, line by line. `lacks`: the
    kind of file that is missing here, but present for earlier files of the partition. `following`: the next file in the
    partition.

    Comparisons include all fields: a file is read again when another one follows it, and may then start too early.
    """

    keys: ArchiveFile | None = None
    headers: ArchiveFile | None = None
    lacks: str | None = None
    following: ArchiveFile | None = None


def list_sink_files(path: FilesLocation, settle: float) -> list[ArchiveFile]:
    """The files of values, by partition and offset.

    Raises ConfigProblem for a file of another kind, and for two files with the same first record. Also raises it for keys
    or headers that have no values `settle` seconds after they were written.
    """
    files = [f for f in find_files(path, ("",), deep=True) if is_sink_file(f.name) and not f.name.startswith((".", "_"))]
    part_files: dict[tuple[str, str], ArchiveFile] = {}
    values = []
    for file in files:
        name = parse_name(file.path)
        if name.part is None:
            values.append(replace(file, partition=name.topic_partition, first=name.first))
        else:
            part_files[_record_key(file), name.part] = file
    values.sort(key=lambda file: (file.partition, file.first, file.label))
    for lonely in part_files.keys() - {(_record_key(f), part) for f in values for part in PARTS}:
        # Recent files are allowed, because listing and copying take time.
        if seconds_until_complete(part_files[lonely], max(settle, SETTLED_SECONDS), since_copied=True) <= 0:
            raise ConfigProblem(
                f"{part_files[lonely].path} has keys or headers of records without values, whose position among other "
                "records is unknown",
                next_step="If there is a file of their values, copy it there too. Otherwise let the connector ignore such "
                "records (`behavior.on.null.values: ignore`), and remove its files.",
            )
    for one, other in pairwise(values):
        if (one.partition, one.first) == (other.partition, other.first):
            raise ConfigProblem(
                f"{one.path} and {other.path} begin with the same record", next_step="Remove the one that is a copy."
            )
    return list(_add_parts(values, part_files))


def _add_parts(values: list[ArchiveFile], part_files: dict[tuple[str, str], ArchiveFile]) -> Iterator[SinkFile]:
    part_keys: set[tuple[TopicPartition, str]] = set()
    for file, following in zip(values, [*values[1:], None], strict=False):
        parts = {part: part_files[_record_key(file), part] for part in PARTS if (_record_key(file), part) in part_files}
        part_keys |= {(file.partition, part) for part in parts}
        lacks = next((part for part in PARTS if (file.partition, part) in part_keys and part not in parts), None)
        # An executor has a working folder of its own.
        absolute = {part: replace(one, path=one.path.absolute()) for part, one in parts.items()}
        yield SinkFile(
            *(file.name, file.path, file.label, file.size, file.stamp, file.changed),
            *(file.partition, file.first),
            keys=absolute.get("keys"),
            headers=absolute.get("headers"),
            lacks=lacks,
            following=following if following is not None and following.partition == file.partition else None,
        )


def _record_key(file: ArchiveFile) -> str:
    """Identifies the records of a file: its folder, and its name without the kind of content."""
    return file.label.removesuffix(file.name) + parse_name(file.path).stem


# Files of sinks as lines, and their records.


class _Header(msgspec.Struct):
    key: str
    value: str | None = None


class _Headers(msgspec.Struct):
    headers: list[_Header]


class _TypedHeaders(msgspec.Struct):
    payload: list[_Header]


_text = msgspec.json.Decoder(str).decode
_headers = msgspec.json.Decoder(_Headers).decode
_typed_headers = msgspec.json.Decoder(_TypedHeaders).decode


class SinkFileFormat(FileFormat):
    """`FileFormat` of JSON lines, message lines, Avro and Parquet."""

    suffixes = SUFFIXES
    deep = True

    def __init__(self, settle: float) -> None:
        self._settle = settle
        self._beside: dict[str, _SideLines] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Open files are not pickled."""
        return {**self.__dict__, "_beside": {}}

    def files(self, path: FilesLocation) -> list[ArchiveFile]:
        """See `FileFormat.files`: by partition and offset."""
        return list_sink_files(path, self._settle)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """Raises ConfigProblem for a file that overlaps the next, EnvironmentProblem if keys or headers end too early."""
        at = number()
        record = self._make_record(file, at)
        if isinstance(record, ValueError):
            return record
        if not line.strip() and not file.name.endswith((*RAW, AVRO)):
            return None
        return record._replace(value=_to_message(file, line))

    def _make_record(self, file: ArchiveFile, at: int) -> ArchiveRecord | ValueError:
        """The record with that number, without its value."""
        assert isinstance(file, SinkFile)  # noqa: S101 - `files` returns no others
        offset = file.first + at - 1
        if file.following is not None and offset >= file.following.first:
            raise ConfigProblem(
                f"{file.path} continues at record {offset} of {file.partition}, with which {file.following.path} "
                "begins. Records of a partition were sorted into several files at a time, so their offsets are unknown",
                next_step="Use the connector's DefaultPartitioner, or one by a time that never goes back.",
            )
        try:
            key = self._read_part(file, "keys", at)
            text, pairs = self._read_part(file, "headers", at), None
            if text is not None:
                # JSON has a struct around the array, Avro has the array itself.
                is_typed = file.headers is not None and file.headers.name.endswith(AVRO)
                headers = _typed_headers(text).payload if is_typed else _headers(text).headers
                pairs = [(one.key, None if one.value is None else one.value.encode()) for one in headers]
        except (LineTooLong, msgspec.MsgspecError, UnicodeError) as error:
            return error if isinstance(error, LineTooLong) else ValueError(f"its headers cannot be read: {error}")
        time = file.stamp[1] // 1_000_000
        return ArchiveRecord(*file.partition, offset, time if FIRST_MS <= time <= LAST_MS else None, pairs, key, None)

    def _read_part(self, file: SinkFile, part: str, at: int) -> bytes | None:
        """The key or headers of a record; None if there are none."""
        part_file: ArchiveFile | None = getattr(file, part)
        if part_file is None:
            return None
        side_lines = self._beside.get(part)
        if side_lines is None or side_lines.file is not part_file or side_lines.at >= at:
            side_lines = self._beside[part] = _SideLines(part_file, self)
        line = side_lines.read_line(at)
        if line is None:
            raise EnvironmentProblem(
                f"{part_file.path} has {format_count(side_lines.at, 'line')}, and {file.path} has more: it is not whole."
            )
        return line if part == "headers" else _to_message(part_file, line)

    def frame(self, file: ArchiveFile, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """See `FileFormat.frame`: every row is a message."""
        from .avro_files import to_messages  # noqa: PLC0415 - an optional package

        columns = RecordColumns()
        for at, message in enumerate(to_messages(batch), first):
            record = self._make_record(file, at)
            if isinstance(record, ValueError):
                columns.add(unreadable_record(file.label, at, message, record))
            else:
                columns.add(record._replace(value=message))
        return columns.to_batch()

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: refuses a file without a schema of Connect structs."""
        from .avro_files import refuse_parquet  # noqa: PLC0415 - an optional package

        refuse_parquet(file, schema)


class _SideLines:
    """The lines of a keys or headers file, read in parallel with the values."""

    def __init__(self, file: ArchiveFile, form: SinkFileFormat) -> None:
        self.file, self.at = file, 0
        self._lines, self._longest = read_lines(form, file), form.longest

    def read_line(self, at: int) -> bytes | None:
        """The line with that number, which must be above the last one; None after the end. Raises LineTooLong."""
        while self.at < at:
            line = next(self._lines, None)
            if line is None:
                return None
            self.at += 1
        if isinstance(line, LongLine):
            raise LineTooLong(f"{self.file.path} line {at}: {line.describe(self._longest)}")
        return line


def _to_message(file: ArchiveFile, line: bytes) -> bytes | None:
    """The message of a line. Invalid JSON stays as it is: the decoder reports it."""
    if file.name.endswith(AVRO):
        return None if line == NULL else line
    if file.name.endswith(RAW):
        return line.removesuffix(b"\n")
    text = line.strip()
    if text == b"null":
        return None
    try:
        return _text(text).encode() if text.startswith(b'"') else text
    except (msgspec.MsgspecError, UnicodeError):
        return text


# The source for files of Kafka Connect's sinks.


class ConnectFilesSource(ImmutableFilesSource):
    """A `Source` over files of sinks (see the package). Options of `ArchiveSource`."""

    before = 1
    sparse_offsets = False

    @staticmethod
    def make_format(options: FileSourceOptions) -> FileFormat:
        return SinkFileFormat(_find_settle_seconds(options))

    def _seconds_until_stable(self, file: ArchiveFile) -> float:
        assert isinstance(file, SinkFile)  # noqa: S101 - the format returns no others
        parts = [part for part in (file, file.keys, file.headers) if part is not None]
        settle = _find_settle_seconds(self._options)
        seconds = max(seconds_until_complete(part, settle, since_copied=True) for part in parts)
        if seconds <= 0 and file.lacks is not None:
            raise Retryable(
                f"{file.path} has no file of {file.lacks}, but earlier files of its partition have one",
                next_step="The connector writes both again when it is restarted. Otherwise put the missing file there.",
            )
        return seconds


def _find_settle_seconds(options: FileSourceOptions) -> float:
    """Objects must settle too, because keys and headers are written after the values."""
    return SETTLED_SECONDS if options.settle_seconds is None else options.settle_seconds


# The growing file of the file sink (FileStreamSink), read as one partition of a topic.
#
# A line is the value of a record, as text; a line `null` is a null value. The file has no keys, partitions, offsets or
# topics. The topic is an option, the partition is 0, and the offset is the line number from 0. Blank lines are skipped. A
# line without a line end is still being written. The first line identifies the file. A file with another first line, or
# one that shrank, is refused, because its lines have the offsets of lines that were read.

TOPIC = "topic"
FIRST_LINE = 64 * 1024
"""Bytes of the first line that identify a file."""
ANOTHER = "is not the file that was read: it begins with another line"


class LineFileFormat(FileFormat):
    """`FileFormat` of such a file."""

    suffixes = ("",)
    divisible = growing = True

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

    def record(self, _: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        if not line.endswith(b"\n"):
            return ValueError("it has no end")
        value = line.strip()
        return (
            ArchiveRecord(self.topic, 0, number() - 1, None, None, None, None if value == NULL else value) if value else None
        )


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

    def run(self, start: Position, consume_batch: Any, stop: Stop, *, once: bool) -> None:
        """See the port. With `once`, up to the end of the file at the start."""
        super().run(start, partial(self._consume_batch, consume_batch), stop, once=once)

    def read(self, start: Position, until: Position, consume_batch: Any, stop: Stop) -> None:
        super().read(start, until, partial(self._consume_batch, consume_batch), stop)

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

    def _consume_batch(self, consume_batch: Any, batch: Batch[Any]) -> None:
        digest = self._read[1] if self._read else ""
        consume_batch(replace(batch, identity={self._topic: digest}) if digest else batch)


def digest_first_line(file: ArchiveFile) -> str:
    """The digest of the file's first line, which identifies the file; empty while the line is being written."""
    try:
        with file.path.open("rb") as stream:
            line = stream.readline(FIRST_LINE)
    except OSError as error:
        raise unusable_error(file, error) from error
    return hashlib.sha256(line).hexdigest() if line.endswith(b"\n") or len(line) == FIRST_LINE else ""
