"""Snapshots as files in a folder: their versions from names, and their rows."""

from __future__ import annotations

import csv as rows_of_text
import gzip
import io
import logging
import os
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Reject
from replicator.domain.plain_values import format_count

from ...arrow import record_errors
from ...arrow.parquet_slices import ParquetSlices
from ...arrow.record_errors import ValueMisfit
from ...arrow.text_values import NAMES, find_text_reader, read_texts
from ...arrow.value_readers import UNSET, ValueReader, choose_objects
from ...decoders.common.row_files import CsvDialect
from ...decoders.json.type_names import find_type_reader
from ...object_store.files import seconds_until_stable
from ..file_options import find_version_digits
from .options import SnapshotsSettings
from .snapshots import ProcessedVersions, ReadSnapshot, to_storable

# Formats of snapshot files: Parquet, or text with declared columns.


SLICE_BYTES = 16 << 20
"""Bytes of text that are unpacked at once."""
SLICE_ROWS = 65_536
MAGIC = 4
"""Bytes of the magic number at the start and end of a Parquet file."""
REWRITE = "Write the snapshot again, or remove it."


class SnapshotFormat(Protocol):
    """A kind of file. `suffixes`: endings of its file names, the usual one first. `settles`: the file's content does not
    show if it is complete. `most`: the most bytes of an unpacked snapshot."""

    name: str
    suffixes: tuple[str, ...]
    settles: bool
    most: int

    def read(self, file: Path, room: int) -> pa.Table | None:
        """The rows of one file; None if it is incomplete. Raises OSError, SnapshotTooLarge for more than `room` unpacked
        bytes, and DataLoss for invalid content, which names file, row and column, never a value."""


class SnapshotTooLarge(Exception):
    """A file has more bytes than allowed."""


class ParquetFormat:
    """`SnapshotFormat` of Parquet files."""

    name = "Parquet"
    suffixes: tuple[str, ...] = (".parquet",)
    settles = False

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most

    def read(self, file: Path, room: int) -> pa.Table | None:
        """See `SnapshotFormat.read`: complete when its footer, its last part, was written."""
        if not _has_footer(file):
            return None
        try:
            with pq.ParquetFile(file) as reader:
                return _read_rows(file, reader, room)
        except pa.ArrowException:
            if not _has_footer(file):
                return None  # Replaced in the meantime.
            raise DataLoss(f"{file} is a whole file and cannot be read as Parquet.", next_step=REWRITE) from None


def _read_rows(file: Path, reader: pq.ParquetFile, room: int) -> pa.Table:
    """All rows. Their size is known before they are unpacked, although the file stores repeated values once."""
    metadata, schema = reader.metadata, reader.schema_arrow
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise DataLoss(f"{file} has two columns {twice[0]!r}.", next_step=REWRITE)
    if sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)) > room:
        raise SnapshotTooLarge
    slices, batches = ParquetSlices(reader, lambda: file, SLICE_BYTES, SLICE_ROWS), []
    for rows, size in slices.read():
        if size > room:
            raise SnapshotTooLarge
        batch = slices.unpack(rows)
        # Dictionary columns of the file's own schema are decoded.
        kinds = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in batch.schema]
        batches.append(batch.cast(pa.schema([f.with_type(kind) for f, kind in zip(batch.schema, kinds, strict=True)])))
        room -= batches[-1].nbytes
        if room < 0:
            raise SnapshotTooLarge
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def _has_footer(file: Path) -> bool:
    with file.open("rb") as stream:
        size = stream.seek(0, SEEK_END)
        stream.seek(max(0, size - MAGIC))
        return size > 2 * MAGIC and stream.read() in (b"PAR1", b"PARE")


PARQUET: SnapshotFormat = ParquetFormat()


# Snapshots as text, CSV or JSON Lines, with declared types. A file is read as a whole or not at all.

STEP = "Write the snapshot again, or correct `schema` of its table."
LARGEST = 256 << 20
"""Bytes of text that are parsed at once: offsets in a text column have 31 bits."""
LINES = 65_536
"""Lines of JSON that are parsed at once."""
BOM = b"\xef\xbb\xbf"


def find_snapshot_format(options: SnapshotsSettings) -> SnapshotFormat:
    """The format of the files. Raises ConfigProblem for unsupported column types."""
    if options.files in (None, "parquet"):
        return ParquetFormat(options.memory)
    nodes = find_readers(options.columns, options.name)
    form: TextFormat = JsonLinesFormat(nodes)
    if options.files == "csv":
        form = CsvFormat(nodes, CsvDialect.from_settings(options.csv))
    form.most = options.memory
    return form


def find_readers(schema: Mapping[str, str], table: str) -> dict[str, ValueReader]:
    """The readers of declared columns. Raises ConfigProblem for an unknown type, and if no column is declared."""
    readers = {}
    for name, type_name in schema.items():
        try:
            readers[name] = find_type_reader(type_name)
        except ValueMisfit as unknown:
            sentence = f"Column {name!r} in 'schema' of table {table}: {unknown}."
            raise ConfigProblem(sentence, next_step=f"Write a type such as {NAMES}.") from None
    if not readers:
        sentence = f"The columns of {table} are unknown, because its snapshots are text."
        raise ConfigProblem(sentence, next_step="Write 'schema: {COLUMN: TYPE, ...}' in its table.")
    return readers


class TextFormat(ABC):
    """`SnapshotFormat` of text files; files with names ending in .gz are unpacked."""

    name: str
    suffixes: tuple[str, ...]
    settles = True
    most = 1 << 30

    def read(self, file: Path, room: int) -> pa.Table:
        stamp = file.stat()
        try:
            with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
                text = stream.read(room + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise broken_file_error(file, "is not a whole gzip file") from None
        if len(text) > room:
            raise SnapshotTooLarge
        rows = self.parse_rows(text.removeprefix(BOM), file)
        if (now := file.stat()).st_mtime_ns != stamp.st_mtime_ns or now.st_size != stamp.st_size:
            raise broken_file_error(file, "was written to while it was read")
        return rows

    @abstractmethod
    def parse_rows(self, text: bytes, file: Path) -> pa.Table:
        """The rows of a whole file. Raises DataLoss."""


class CsvFormat(TextFormat):
    """CSV in this dialect. With a header row columns are found by name, and undeclared ones are left out. Without one
    they have the declared order."""

    name = "CSV"
    suffixes: tuple[str, ...] = (".csv", ".csv.gz")

    def __init__(self, nodes: Mapping[str, ValueReader], dialect: CsvDialect) -> None:
        self._types = {name: node.type for name, node in nodes.items()}
        self._dialect = dialect
        for name, kind in self._types.items():
            if find_text_reader(kind) is None:
                raise ConfigProblem(f"Column {name!r} is {kind}, which CSV does not hold.", next_step=f"There are {NAMES}.")

    def parse_rows(self, text: bytes, file: Path) -> pa.Table:
        try:
            text.decode()
        except UnicodeDecodeError:
            raise broken_file_error(file, "holds bytes that are not UTF-8") from None
        text = text.lstrip(b"\r\n")  # Blank lines do not count, also before a header.
        names, count = self._read_outline(text, file)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise broken_file_error(file, f"has two columns {twice[0]!r}")
        lacking = [name for name in self._types if name not in names]
        if lacking:
            raise broken_file_error(file, f"lacks the column {lacking[0]!r}")
        cells = self._read_cells(text, names, file)
        if cells.num_rows != count:
            raise broken_file_error(file, "has quotes that do not stand around whole values")
        columns = []
        for name, kind in self._types.items():
            values, bad = read_texts(cells[name].combine_chunks(), kind, f"column {name!r}")
            refuse_misfits(bad, 0, file)
            columns.append(values)
        return pa.table(columns, names=list(self._types))

    def _read_outline(self, text: bytes, file: Path) -> tuple[list[str], int]:
        """The names of the columns and the number of rows, from a strict reader. The fast reader accepts quotes that are
        never closed, or closed within a value, as text."""
        rows_of_text.field_size_limit(sys.maxsize)
        reader = rows_of_text.reader(
            io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline=""), **self._strict_options()
        )
        names = None if self._dialect.header else list(self._types)
        count = 0
        try:
            for row in reader:
                if names is None:
                    names = row
                elif row:
                    count += 1
                    if len(row) != len(names):
                        raise broken_file_error(
                            file, f"row {count} has {format_count(len(row), 'column')}, expected: {len(names)}"
                        )
        except rows_of_text.Error:
            raise broken_file_error(file, f"row {count + 1} has quotes that do not stand around whole values") from None
        if names is None:
            raise broken_file_error(file, "has no header")
        return names, count

    def _strict_options(self) -> dict[str, Any]:
        dialect = self._dialect
        quoting = rows_of_text.QUOTE_MINIMAL if dialect.quote else rows_of_text.QUOTE_NONE
        signs = {"delimiter": dialect.delimiter, "quotechar": dialect.quote, "escapechar": dialect.escape}
        return {**signs, "quoting": quoting, "doublequote": dialect.quote is not None, "strict": True}

    def _read_cells(self, text: bytes, names: list[str], file: Path) -> pa.Table:
        # The reader treats an empty last field as quoted if the last line has no end.
        whole = text if text.endswith((b"\n", b"\r")) else text + b"\n"
        if not text.strip(b"\r\n"):
            return pa.table({name: pa.array([], pa.string()) for name in self._types})
        convert = self._dialect.convert_options(names, pa.string())
        convert.include_columns = list(self._types)
        try:
            return csv.read_csv(
                pa.BufferReader(whole),
                csv.ReadOptions(
                    column_names=None if self._dialect.header else names,
                    use_threads=False,
                    block_size=min(len(whole) + 1, LARGEST),
                ),
                csv.ParseOptions(**self._dialect.parse_options, newlines_in_values=True),
                convert,
            )
        except pa.ArrowException:
            # The original message contains the row.
            raise broken_file_error(file, "cannot be read as rows of one width") from None


class JsonLinesFormat(TextFormat):
    """One JSON object per line. A missing field is NULL; undeclared fields are left out."""

    name = "JSON Lines"
    suffixes: tuple[str, ...] = (".jsonl", ".jsonl.gz")

    def __init__(self, nodes: Mapping[str, ValueReader]) -> None:
        self._objects = choose_objects(nodes)(dict(nodes))
        self._decode = msgspec.json.Decoder(self._objects.wire).decode

    def parse_rows(self, text: bytes, file: Path) -> pa.Table:
        nodes = self._objects.nodes
        columns: dict[str, list[pa.Array]] = {name: [pa.array([], node.type)] for name, node in nodes.items()}
        first = 0
        for lines in _read_lines(text):
            objects, bad = record_errors.decode_or_reject(self._decode, lines, self._objects.empty())
            refuse_misfits(bad, first, file)
            for name, node in nodes.items():
                cells = self._objects.values(objects, name)
                values, bad = record_errors.build_or_reject(
                    node.build, [None if v is UNSET else v for v in cells], f"column {name!r}"
                )
                refuse_misfits(bad, first, file)
                columns[name].append(values)
            first += len(lines)
        return pa.table({name: pa.chunked_array(parts) for name, parts in columns.items()})


def _read_lines(text: bytes) -> Iterator[list[bytes]]:
    """The lines that are not blank, in groups."""
    lines: list[bytes] = []
    for line in io.BytesIO(text):
        if line.strip():
            lines.append(line)
        if len(lines) == LINES:
            yield lines
            lines = []
    if lines:
        yield lines


def refuse_misfits(bad: Mapping[int, Reject], first: int, file: Path) -> None:
    """Raise DataLoss for the first invalid row, by index after `first` other rows."""
    if bad:
        index = min(bad)
        raise broken_file_error(file, f"row {first + index + 1}: {bad[index].sentence}")


def broken_file_error(file: Path, problem: str) -> DataLoss:
    """The error for a file with invalid content."""
    colon = ", " if problem.startswith("row ") else " "
    return DataLoss(f"{file}{colon}{problem}.", next_step=STEP)


log = logging.getLogger(__name__)
DONE = "_SUCCESS"
"""The file that Spark and others write to a folder when all its files are complete."""
SETTLED_SECONDS = 10.0
"""Seconds without a write after which a file is complete, if its content does not show it."""
MOST_DIGITS = 14


@dataclass(frozen=True, order=True)
class FileSnapshot:
    """One existing snapshot: a file, or a folder of files."""

    version: int
    path: Path

    def read_rows(self, form: SnapshotFormat = PARQUET) -> pa.Table | None:
        """Its rows in types of Delta tables; None while it is incomplete. Raises:

        - ConfigProblem if it is larger than the format allows
        - EnvironmentProblem if it is unreadable
        - Fatal for a type that Delta tables lack
        - DataLoss for invalid text
        """
        if self.path.is_dir() and not (self.path / DONE).exists():
            log.warning("%s has no %s yet.", self.path, DONE)
            return None
        try:
            if self.seconds_until_stable(form) > 0:
                return None
            tables, room = [], form.most
            for file in self._list_files(form.suffixes):
                table = form.read(file, room)
                tables.append(table)
                room -= table.nbytes if table is not None else 0
                if room < 0:
                    raise SnapshotTooLarge
        except SnapshotTooLarge:
            raise ConfigProblem(
                f"{self.path} holds more than {form.most} bytes once it is unpacked (limits.memory).",
                next_step="Raise `limits.memory`.",
            ) from None
        except OSError as error:
            raise EnvironmentProblem(f"{self.path} cannot be read: {error.strerror or error}.") from error
        whole = [to_storable(table) for table in tables if table is not None]
        if len(whole) < len(tables):
            log.warning("%s is not a whole %s file yet.", self.path, form.name)
            return None
        if any(not table.schema.equals(whole[0].schema) for table in whole):
            raise EnvironmentProblem(
                f"The files of the snapshot {self.path} differ in their columns.", next_step="Write it anew."
            )
        return pa.concat_tables(whole).combine_chunks()

    def seconds_until_stable(self, form: SnapshotFormat) -> float:
        """Seconds until it is complete by its age; 0 or less if it is, or if its content shows it."""
        try:
            if not self.path.is_dir():
                stat = self.path.stat()
                if not form.settles:
                    return 0.0
                return seconds_until_stable(self.path, stat.st_mtime, stat.st_size, SETTLED_SECONDS)
            # A copy may write `_SUCCESS` before other files and preserve modification times, but it cannot preserve ctime.
            times = {file.name: file.stat().st_ctime for file in self.path.iterdir()}
        except FileNotFoundError:
            return 0.0  # Removed since it was listed: nothing to wait for.
        marker_time = times.pop(DONE, None)
        if marker_time is None or (times and marker_time > max(times.values())):
            return 0.0
        return seconds_until_stable(self.path, max([marker_time, *times.values()]), len(times), SETTLED_SECONDS)

    def read_size(self, form: SnapshotFormat = PARQUET) -> int:
        """The bytes of its files."""
        return sum(file.stat().st_size for file in self._list_files(form.suffixes))

    def read_remaining_size(self, form: SnapshotFormat) -> int | None:
        """The bytes of its files after it was processed. None if it was removed, or may lose its files just now."""
        try:
            if not self.path.is_dir():
                return self.path.stat().st_size
            is_still = time.time() - self.path.stat().st_mtime >= SETTLED_SECONDS
            is_whole = (self.path / DONE).exists() and any(file.name.endswith(form.suffixes) for file in self.path.iterdir())
            return self.read_size(form) if is_still and is_whole else None
        except FileNotFoundError:
            return None

    def _list_files(self, suffixes: tuple[str, ...]) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        files = [file for file in sorted(self.path.iterdir()) if file.name.endswith(suffixes)]
        if not files:
            raise DataLoss(f"The snapshot {self.path} has no {suffixes[0]} file.", next_step="Write it again, or remove it.")
        return files


class SnapshotFolder:
    """`SnapshotProvider` of the folder `path`. `restart_step`: the next step for starting from scratch."""

    is_numbered_here = False

    def __init__(self, path: str, restart_step: str, form: SnapshotFormat = PARQUET) -> None:
        self._path, self._anew, self._form = path, restart_step, form

    def has_news(self, versions: ProcessedVersions) -> bool:
        return any(snapshot.version not in versions for snapshot in list_snapshots(self._path, self._form))

    def read_next(self, versions: ProcessedVersions) -> ReadSnapshot | None:
        """The next complete snapshot. Raises DataLoss for a processed one that changed, and for one below these."""
        for snapshot in list_snapshots(self._path, self._form):
            if snapshot.version in versions:
                size, now = versions[snapshot.version], snapshot.read_remaining_size(self._form)
                if None not in (size, now) and size != now:
                    raise DataLoss(
                        f"{snapshot.path} differs from the version {snapshot.version} that was read before.",
                        next_step="Give it a later version, or restore the old file, or remove it.",
                    )
                continue
            if versions and snapshot.version < max(versions):
                raise DataLoss(
                    f"{snapshot.path} appeared after version {max(versions)} had been read.",
                    next_step="Remove it if it is not needed. Otherwise: " + self._anew,
                )
            rows = snapshot.read_rows(self._form)
            if rows is None:
                return None
            is_file = snapshot.path.is_file()
            size = snapshot.read_remaining_size(self._form) if is_file else snapshot.read_size(self._form)
            return None if size is None else ReadSnapshot(str(snapshot.path), snapshot.version, rows, size)
        return None

    def seconds_until_stable(self, versions: ProcessedVersions) -> float:
        """Seconds until all snapshots that are not in `versions` are complete by their age; 0 or less if they are."""
        new = [snapshot for snapshot in list_snapshots(self._path, self._form) if snapshot.version not in versions]
        return max((snapshot.seconds_until_stable(self._form) for snapshot in new), default=0.0)


def list_snapshots(path: str, form: SnapshotFormat = PARQUET) -> list[FileSnapshot]:
    """The snapshots in the folder `path`, by version. Raises EnvironmentProblem for an inaccessible folder, ConfigProblem
    for a name without a version, for duplicate versions, and for versions that are not comparable."""
    by_version: dict[int, FileSnapshot] = {}
    for entry in _list_paths(path, form):
        digits = "".join(_version_digits(entry, form))
        if not digits or len(digits) > MOST_DIGITS:
            raise ConfigProblem(
                f"The name of {entry} does not end in a version of 1 to {MOST_DIGITS} digits.",
                next_step=f"Name snapshots like 2024-01-05{form.suffixes[0]} or 000012{form.suffixes[0]}, or keep other "
                "files elsewhere.",
            )
        snapshot = FileSnapshot(int(digits), entry)
        other = by_version.setdefault(snapshot.version, snapshot)
        if other is not snapshot:
            raise ConfigProblem(
                f"{other.path} and {snapshot.path} are both version {snapshot.version}.",
                next_step="Remove one of them, or rename it.",
            )
    # Versions of several digit groups must have equal widths: 2024-1-31 would be above 2024-2-1.
    paths = [snapshot.path for snapshot in by_version.values()]
    by_widths = {tuple(map(len, _version_digits(path, form))): path for path in reversed(paths)}
    apart = next((widths for widths in by_widths if len(widths) > 1), None)
    if apart is not None and len(by_widths) > 1:
        other_path = next(path for widths, path in by_widths.items() if widths != apart)
        one, two = sorted([by_widths[apart], other_path])
        raise ConfigProblem(
            f"The versions in the names of {one} and {two} have parts of different lengths, so their order is unknown.",
            next_step="Use the same number of digits for each part in all names: 2024-01-05, not 2024-1-5.",
        )
    return sorted(by_version.values())


def _list_paths(path: str, form: SnapshotFormat) -> Iterator[Path]:
    try:
        for entry in sorted(Path(path).iterdir()):
            if not entry.name.startswith((".", "_")) and (entry.name.endswith(form.suffixes) or entry.is_dir()):
                yield entry
    except FileNotFoundError:
        raise EnvironmentProblem(f"{path} is not there.", next_step="Check 'path' of the source.") from None
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be looked at: {error.strerror}.", next_step=f"Let user {os.geteuid()} read it."
        ) from error


def _version_digits(path: Path, form: SnapshotFormat) -> list[str]:
    """The digit groups of its version."""
    return find_version_digits(path.name, form.suffixes)
