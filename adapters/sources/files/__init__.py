"""Recorded topics in files."""

from .source import ArchiveSource

__all__ = ["ArchiveSource"]
