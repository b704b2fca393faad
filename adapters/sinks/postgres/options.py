"""Options of PostgreSQL sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from replicator.ports.adapter_options import SinkOptions, given
from replicator.ports.options import Dsn, PositiveDuration


class PostgresSettings(SinkOptions):
    """Tables in one schema of a PostgreSQL database."""

    what: ClassVar[str] = "a PostgreSQL sink"
    rank: ClassVar[int] = 3
    assumed: ClassVar[Mapping[str, Any]] = {"kind": "postgres"}
    has_table_options: ClassVar[bool] = False
    holds_projections: ClassVar[bool] = True

    kind: Literal["postgres"]
    dsn: Dsn
    """The database, as `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    schema_name: str = Field("public", alias="schema", min_length=1, max_length=63)
    """The schema of the target tables."""
    answer_timeout: PositiveDuration = "5 minutes"
    """How long a server may stay silent if a second connection gets no answer either. Long statements are allowed."""

    query_timeout: float = given(60, gt=0)
    """Seconds that a query may take."""

    @classmethod
    def place_dead_letters(cls, section: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return {"dsn": section["dsn"]} if section.get("dsn") else None
