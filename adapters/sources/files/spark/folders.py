"""Folders of files that are written once, read by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from ..folders import ROWS
from ..rows import RowsFilesSource
from .dms import DmsFilesSparkSource
from .source import ArchiveSparkSource


class RowsFilesSparkSource(RowsFilesSource, ArchiveSparkSource):
    """`RowsFilesSource` whose frames are `pyspark.sql.DataFrame`; one task reads a file of CSV."""


def files_spark_source(options: Mapping[str, object]) -> DmsFilesSparkSource | RowsFilesSparkSource:
    """The source of the folders of `format`."""
    return RowsFilesSparkSource(options) if options.get("format") == ROWS else DmsFilesSparkSource(options)
