"""Files by what they are, read by Spark's executors."""

from __future__ import annotations

from collections.abc import Mapping

from ..connect import ConnectFilesSource
from ..dispatch import CONNECT, LINES, RECORDED, ROWS, split_options
from ..line_file import LineFileSource
from ..rows import RowsFilesSource
from .dms import DmsFilesSparkSource
from .source import ArchiveSparkSource


class RowsFilesSparkSource(RowsFilesSource, ArchiveSparkSource):
    """`RowsFilesSource` whose frames are `pyspark.sql.DataFrame`; one task reads a file of CSV."""


class ConnectFilesSparkSource(ConnectFilesSource, ArchiveSparkSource):
    """`ConnectFilesSource` whose frames are `pyspark.sql.DataFrame`; one task reads a file."""


class LineFileSparkSource(LineFileSource, ArchiveSparkSource):
    """`LineFileSource` whose frames are `pyspark.sql.DataFrame`."""


SOURCES = {RECORDED: ArchiveSparkSource, CONNECT: ConnectFilesSparkSource, LINES: LineFileSparkSource}


def archive_spark_source(options: Mapping[str, object]) -> ArchiveSparkSource:
    """The source of recorded topics, in files of ours or in those of Kafka Connect's sinks."""
    files, own = split_options(options)
    return SOURCES[files](own)


def files_spark_source(options: Mapping[str, object]) -> DmsFilesSparkSource | RowsFilesSparkSource:
    """The source of the folders of `format`."""
    return RowsFilesSparkSource(options) if options.get("format") == ROWS else DmsFilesSparkSource(options)
