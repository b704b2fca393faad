"""Tables of PostgreSQL that are read whole."""

from __future__ import annotations

from .database import PostgresBackfill

__all__ = ["PostgresBackfill"]
