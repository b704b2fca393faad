"""Tables in a schema of a PostgreSQL database."""

from .sink import PostgresSink

__all__ = ["PostgresSink"]
