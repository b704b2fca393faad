"""Files of sinks as lines, and their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.plain_values import format_count
from replicator.domain.time_bounds import FIRST_MS, LAST_MS

from ..archive_records import ArchiveRecord, LineTooLong, unreadable_record
from ..batch_builder import RecordColumns
from ..file_format import AVRO, LONGEST, NULL, Number
from ..file_list import ArchiveFile, Place
from ..immutable.text_files import read_lines
from ..line_reader import LongLine
from .file_list import SinkFile, list_sink_files
from .file_names import RAW, SUFFIXES, parse_name


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


class SinkFileFormat:
    """`FileFormat` of JSON lines, message lines, Avro and Parquet."""

    suffixes: tuple[str, ...] = SUFFIXES
    divisible = growing = False
    deep = True
    longest = LONGEST

    def __init__(self, settle: float) -> None:
        self._settle = settle
        self._beside: dict[str, _SideLines] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Open files are not pickled."""
        return {**self.__dict__, "_beside": {}}

    def files(self, path: Place) -> list[ArchiveFile]:
        """See `FileFormat.files`: by partition and offset."""
        return list_sink_files(path, self._settle)

    def lines(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        return iter(stream)

    def record(self, file: ArchiveFile, line: bytes, number: Number) -> ArchiveRecord | ValueError | None:
        """Raises ConfigProblem for a file that overlaps the next, EnvironmentProblem if keys or headers end too early."""
        at = number()
        found = self._make_record(file, at)
        if isinstance(found, ValueError):
            return found
        if not line.strip() and not file.name.endswith((*RAW, AVRO)):
            return None
        return found._replace(value=_to_message(file, line))

    def _make_record(self, file: ArchiveFile, at: int) -> ArchiveRecord | ValueError:
        """The record with that number, without its value."""
        assert isinstance(file, SinkFile)  # noqa: S101 - `files` returns no others
        name = parse_name(file.path)
        offset = name.first + at - 1
        if file.following is not None and offset >= parse_name(file.following.path).first:
            raise ConfigProblem(
                f"{file.path} continues at record {offset} of {name.place}, with which {file.following.path} begins. "
                "Records of a partition were sorted into several files at a time, so their offsets are unknown",
                next_step="Use the connector's DefaultPartitioner, or one by a time that never goes back.",
            )
        try:
            key = self._read_part(file, "keys", at)
            headers = self._read_part(file, "headers", at)
            said = None if headers is None else [(one.key, _to_bytes(one.value)) for one in _read_headers(file, headers)]
        except (LineTooLong, msgspec.MsgspecError, UnicodeError) as error:
            return error if isinstance(error, LineTooLong) else ValueError(f"its headers cannot be read: {error}")
        time = file.stamp[1] // 1_000_000
        return ArchiveRecord(*name.place, offset, time if FIRST_MS <= time <= LAST_MS else None, said, key, None)

    def _read_part(self, file: SinkFile, part: str, at: int) -> bytes | None:
        """The key or headers of a record; None if there are none."""
        beside: ArchiveFile | None = getattr(file, part)
        if beside is None:
            return None
        there = self._beside.get(part)
        if there is None or there.file is not beside or there.at >= at:
            there = self._beside[part] = _SideLines(beside, self)
        line = there.read_line(at)
        if line is None:
            raise EnvironmentProblem(
                f"{beside.path} has {format_count(there.at, 'line')}, and {file.path} has more: it is not whole."
            )
        return line if part == "headers" else _to_message(beside, line)

    def frame(self, file: ArchiveFile, chunk: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """See `FileFormat.frame`: every row is a message."""
        from .parquet_values import to_messages  # noqa: PLC0415 - an optional package

        gathered = RecordColumns()
        for at, message in enumerate(to_messages(chunk), first):
            found = self._make_record(file, at)
            if isinstance(found, ValueError):
                gathered.add(unreadable_record(file.label, at, message, found))
            else:
                gathered.add(found._replace(value=message))
        return gathered.to_batch()

    def refuse(self, file: ArchiveFile, schema: pa.Schema) -> None:
        """See `FileFormat.refuse`: refuses a file without a schema of Connect structs."""
        from .parquet_values import refuse_parquet  # noqa: PLC0415 - an optional package

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


def _read_headers(file: SinkFile, line: bytes) -> list[_Header]:
    """The headers in a line: JSON has a struct around the array, Avro has the array itself."""
    is_typed = file.headers is not None and file.headers.name.endswith(AVRO)
    return _typed_headers(line).payload if is_typed else _headers(line).headers


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


def _to_bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()
