"""Backfills of PostgreSQL tables."""

from __future__ import annotations

from .database import PostgresBackfill, PostgresComparison

__all__ = ["PostgresBackfill", "PostgresComparison"]
