"""Sources by kind of files, read by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from ..connect import ConnectFilesSource
from ..dispatch import CONNECT, LINES, RECORDED, ROWS, split_options
from ..dms import DmsFilesSource
from ..line_file import LineFileSource
from ..rows import RowsFilesSource
from .source import ArchiveSparkSource


class RowsFilesSparkSource(RowsFilesSource, ArchiveSparkSource):
    """`RowsFilesSource` with `pyspark.sql.DataFrame` as frames; one task reads a CSV file."""


class ConnectFilesSparkSource(ConnectFilesSource, ArchiveSparkSource):
    """`ConnectFilesSource` with `pyspark.sql.DataFrame` as frames; one task reads a file."""


class LineFileSparkSource(LineFileSource, ArchiveSparkSource):
    """`LineFileSource` with `pyspark.sql.DataFrame` as frames."""


SOURCES = {RECORDED: ArchiveSparkSource, CONNECT: ConnectFilesSparkSource, LINES: LineFileSparkSource}


def archive_spark_source(options: Mapping[str, object]) -> ArchiveSparkSource:
    """The source for recorded topics, in Replicator's archive format or in files of Kafka Connect's sinks."""
    files, own = split_options(options)
    return SOURCES[files](own)


def files_spark_source(options: Mapping[str, object]) -> DmsFilesSparkSource | RowsFilesSparkSource:
    """The source for folders with files of `format`."""
    return RowsFilesSparkSource(options) if options.get("format") == ROWS else DmsFilesSparkSource(options)


# Folders of DMS, read by Spark's executors.


class DmsFilesSparkSource(DmsFilesSource, ArchiveSparkSource):
    """`DmsFilesSource` with `pyspark.sql.DataFrame` as frames; one task reads a file."""
