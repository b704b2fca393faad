"""Tables of MariaDB that are read whole."""

from __future__ import annotations

from .database import MariaDbBackfill

__all__ = ["MariaDbBackfill"]
