"""Backfills and comparisons of MariaDB tables."""

from __future__ import annotations

from .database import MariaDbBackfill, MariaDbComparison

__all__ = ["MariaDbBackfill", "MariaDbComparison"]
