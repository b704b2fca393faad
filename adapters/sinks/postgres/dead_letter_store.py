"""Rejected records as a table of a PostgreSQL database."""

from __future__ import annotations

from .dead_letters import PostgresDeadLetters

__all__ = ["PostgresDeadLetters"]
