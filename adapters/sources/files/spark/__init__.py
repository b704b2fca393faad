"""Recorded topics in files, read by Spark's executors."""

from .source import ArchiveSparkSource

__all__ = ["ArchiveSparkSource"]
