"""Files as sources.

`transport: archive` reads recorded topics, by the option `files`:

- `recorded`: archives of Replicator (`source`).
- `connect`: files of Kafka Connect's object store sinks (`connect`).
- `lines`: the growing file of Kafka Connect's file sink (`line_file`).

`transport: files` reads folders of files that never change (`immutable`), by the option `format`:

- `rows`: rows as CSV, JSON Lines or Parquet (`rows`).
- Others: folders of AWS DMS (`dms`).

A `FileFormat` (`file_reader`) defines the records of a file. A `FileScan` (`source`, `spark`) reads files on an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .connect import ConnectFilesCheck, ConnectFilesSource
from .dms import DmsFilesCheck, DmsFilesSource
from .line_file import LineFileCheck, LineFileSource
from .rows import RowsFilesCheck, RowsFilesSource
from .source import ArchiveCheck, ArchiveSource

__all__ = ["ArchiveSource", "archive_check", "archive_source", "files_check", "files_source"]

ROWS = "rows"
FILES, RECORDED, CONNECT, LINES = "files", "recorded", "connect", "lines"
SOURCES = {RECORDED: ArchiveSource, CONNECT: ConnectFilesSource, LINES: LineFileSource}
CHECKS = {RECORDED: ArchiveCheck, CONNECT: ConnectFilesCheck, LINES: LineFileCheck}


def split_options(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of files in an archive, recorded topics or files of Kafka Connect's sinks, and the other options."""
    own = dict(options)
    return str(own.pop(FILES, None) or RECORDED), own


def archive_source(options: Mapping[str, object]) -> ArchiveSource:
    """The source for recorded topics, in Replicator's archive format or in files of Kafka Connect's sinks."""
    files, own = split_options(options)
    return SOURCES[files](own)


def archive_check(name: str, options: Mapping[str, Any]) -> ArchiveCheck:
    """The check for `doctor`."""
    files, own = split_options(options)
    return CHECKS[files](name, own)


def files_source(options: Mapping[str, object]) -> DmsFilesSource | RowsFilesSource:
    """The source for folders with files of `format`."""
    return RowsFilesSource(options) if options.get("format") == ROWS else DmsFilesSource(options)


def files_check(name: str, options: Mapping[str, Any]) -> DmsFilesCheck | RowsFilesCheck:
    """The check for `doctor`."""
    return RowsFilesCheck(name, options) if options.get("format") == ROWS else DmsFilesCheck(name, options)
