"""Tables in a schema of a PostgreSQL database."""

from .local import PostgresSink

__all__ = ["PostgresSink"]
