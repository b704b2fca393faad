"""Files as sources.

`transport: archive` reads recorded topics, by the option `files`:

- `recorded`: archives of Replicator (`source`).
- `connect`: files of Kafka Connect's object store sinks (`connect`).
- `lines`: the growing file of Kafka Connect's file sink (also `connect`).

`transport: files` reads folders of files that never change (`immutable`), by the option `format`:

- `rows`: rows as CSV, JSON Lines or Parquet (`rows`).
- Others: folders of AWS DMS (`dms`).

A `FileFormat` (`file_reader`) defines the records of a file. A `FileDelivery` (`delivery`, `spark`) reads files on an
engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicator.ports.adapter_options import ROWS

from ..file_options import CONNECT, LINES, RECORDED, ArchiveSettings, FilesSettings
from .connect import ConnectFilesCheck, ConnectFilesSource, LineFileCheck, LineFileSource
from .dms import DmsFilesCheck, DmsFilesSource
from .rows import RowsFilesCheck, RowsFilesSource
from .source import ArchiveCheck, ArchiveSource

__all__ = ["ArchiveSource", "archive_check", "archive_source", "files_check", "files_source"]

SOURCES = {RECORDED: ArchiveSource, CONNECT: ConnectFilesSource, LINES: LineFileSource}
CHECKS = {RECORDED: ArchiveCheck, CONNECT: ConnectFilesCheck, LINES: LineFileCheck}


def archive_source(options: ArchiveSettings | Mapping[str, Any]) -> ArchiveSource:
    """The source for recorded topics, in Replicator's archive format or in files of Kafka Connect's sinks."""
    files = options.get("files") if isinstance(options, Mapping) else options.files
    return SOURCES[files or RECORDED](options)


def archive_check(name: str, options: Mapping[str, Any]) -> ArchiveCheck:
    """The check for `doctor`."""
    return CHECKS[options.get("files") or RECORDED](name, options)


def files_source(options: FilesSettings | Mapping[str, Any]) -> DmsFilesSource | RowsFilesSource:
    """The source for folders with files of `format`."""
    form = options.get("format") if isinstance(options, Mapping) else options.format
    return RowsFilesSource(options) if form == ROWS else DmsFilesSource(options)


def files_check(name: str, options: Mapping[str, Any]) -> DmsFilesCheck | RowsFilesCheck:
    """The check for `doctor`."""
    return RowsFilesCheck(name, options) if options.get("format") == ROWS else DmsFilesCheck(name, options)
