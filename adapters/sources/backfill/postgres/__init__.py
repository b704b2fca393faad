"""Backfills of PostgreSQL tables."""

from __future__ import annotations

from .database import PostgresBackfill

__all__ = ["PostgresBackfill"]
