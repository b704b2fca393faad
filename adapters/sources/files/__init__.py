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
from .connect import ConnectFilesSource, LineFileSource
from .dms import DmsFilesSource
from .rows import RowsFilesSource
from .source import ArchiveSource, FilesCheck

__all__ = ["ArchiveSource", "archive_check", "archive_source", "files_check", "files_source"]

SOURCES = {RECORDED: ArchiveSource, CONNECT: ConnectFilesSource, LINES: LineFileSource}


def archive_source(options: ArchiveSettings | Mapping[str, Any]) -> ArchiveSource:
    """The source for recorded topics, in Replicator's archive format or in files of Kafka Connect's sinks."""
    files = options.get("files") if isinstance(options, Mapping) else options.files
    return SOURCES[files or RECORDED](options)


def archive_check(name: str, options: Mapping[str, Any]) -> FilesCheck:
    """The check for `doctor`."""
    return FilesCheck(SOURCES[options.get("files") or RECORDED], name, options)


def files_source(options: FilesSettings | Mapping[str, Any]) -> DmsFilesSource | RowsFilesSource:
    """The source for folders with files of `format`."""
    form = options.get("format") if isinstance(options, Mapping) else options.format
    return RowsFilesSource(options) if form == ROWS else DmsFilesSource(options)


def files_check(name: str, options: Mapping[str, Any]) -> FilesCheck:
    """The check for `doctor`."""
    return FilesCheck(RowsFilesSource if options.get("format") == ROWS else DmsFilesSource, name, options)
