"""An event log in a Delta table, read as the stream it recorded."""

from .source import DeltaSource

__all__ = ["DeltaSource"]
