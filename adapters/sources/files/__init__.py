"""Recorded topics in files."""

from .source import ArchiveSource
from .write import write_archive

__all__ = ["ArchiveSource", "write_archive"]
