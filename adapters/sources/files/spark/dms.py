"""DMS's folders, read by Spark's executors."""

from __future__ import annotations

from ..dms import DmsFilesSource
from .source import ArchiveSparkSource


class DmsFilesSparkSource(DmsFilesSource, ArchiveSparkSource):
    """`DmsFilesSource` whose frames are `pyspark.sql.DataFrame`; one task reads a file."""
