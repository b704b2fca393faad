"""Archives (`transport: archive`), and folders of files that are written once (`transport: files`), by what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .check import ArchiveCheck
from .connect import ConnectFilesCheck, ConnectFilesSource
from .dms.source import DmsFilesCheck, DmsFilesSource
from .rows import RowsFilesCheck, RowsFilesSource
from .source import ArchiveSource

ROWS = "rows"
FILES, CONNECT = "files", "connect"


def split_files(options: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether an archive consists of files of Kafka Connect's sinks, and the other options."""
    own = dict(options)
    return own.pop(FILES, None) == CONNECT, own


def archive_source(options: Mapping[str, object]) -> ArchiveSource:
    """The source of recorded topics, in files of ours or in those of Kafka Connect's sinks."""
    of_sinks, own = split_files(options)
    return ConnectFilesSource(own) if of_sinks else ArchiveSource(own)


def archive_check(name: str, options: Mapping[str, Any]) -> ArchiveCheck:
    """What `doctor` looks at there."""
    of_sinks, own = split_files(options)
    return ConnectFilesCheck(name, own) if of_sinks else ArchiveCheck(name, own)


def files_source(options: Mapping[str, object]) -> DmsFilesSource | RowsFilesSource:
    """The source of the folders of `format`."""
    return RowsFilesSource(options) if options.get("format") == ROWS else DmsFilesSource(options)


def files_check(name: str, options: Mapping[str, Any]) -> DmsFilesCheck | RowsFilesCheck:
    """What `doctor` looks at there."""
    return RowsFilesCheck(name, options) if options.get("format") == ROWS else DmsFilesCheck(name, options)
