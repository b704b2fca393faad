"""Backfills of MariaDB tables."""

from __future__ import annotations

from .database import MariaDbBackfill

__all__ = ["MariaDbBackfill"]
