"""Folders of DMS, read by Spark's executors."""

from __future__ import annotations

from ..dms import DmsFilesSource
from .source import ArchiveSparkSource


class DmsFilesSparkSource(DmsFilesSource, ArchiveSparkSource):
    """`DmsFilesSource` with `pyspark.sql.DataFrame` as frames; one task reads a file."""
