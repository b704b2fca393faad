"""The local engine: `LocalEngine` over Arrow tables in one process."""

from .engine import LocalEngine

__all__ = ["LocalEngine"]
