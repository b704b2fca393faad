"""Backfills of PostgreSQL tables."""
