"""Folders of files that are written once (`transport: files`), by what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .dms.source import DmsFilesCheck, DmsFilesSource
from .rows import RowsFilesCheck, RowsFilesSource

ROWS = "rows"


def files_source(options: Mapping[str, object]) -> DmsFilesSource | RowsFilesSource:
    """The source of the folders of `format`."""
    return RowsFilesSource(options) if options.get("format") == ROWS else DmsFilesSource(options)


def files_check(name: str, options: Mapping[str, Any]) -> DmsFilesCheck | RowsFilesCheck:
    """What `doctor` looks at there."""
    return RowsFilesCheck(name, options) if options.get("format") == ROWS else DmsFilesCheck(name, options)
