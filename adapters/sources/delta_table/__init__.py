"""The rows of a plain Delta table as a stream: those that were appended, or its change data feed."""

from .source import RowsSource

__all__ = ["RowsSource"]
