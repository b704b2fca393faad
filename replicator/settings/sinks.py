"""Settings of sinks: one model per kind, and the dead-letter store."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from .fields import ConfigPath, Dsn, FromZero, Strict, _refused

Engine = Literal["local", "spark"]


class SinkSettings(Strict):
    """What every sink has."""

    engines: list[Engine] = Field(["local", "spark"], min_length=1)
    """The engines that may write it. Another one is refused before anything starts."""


class DeltaSettings(SinkSettings):
    """Delta Lake tables, one folder per table."""

    kind: Literal["delta"]
    path: ConfigPath
    """The lake's folder or object-store URL; tables are folders in it."""
    compact_every: FromZero | None = None
    """Small files of a table are compacted after every so many commits, 50 by default; 0 is never."""


class EventLogSettings(SinkSettings):
    """Every record as it came, append-only: a Delta table at `path`, or cdc_raw.cdc_events at `dsn`."""

    kind: Literal["event_log"]
    path: ConfigPath | None = None
    """The Delta table's own folder."""
    dsn: Dsn | None = None
    """The PostgreSQL database."""
    compact_every: FromZero | None = None
    """With `path`: small files are compacted after every so many commits, 50 by default; 0 is never."""

    @model_validator(mode="after")
    def _one_place(self) -> EventLogSettings:
        if (self.path is None) == (self.dsn is None):
            raise _refused("place", "needs exactly one of 'path' and 'dsn'")
        if self.path is None and self.compact_every is not None:
            raise _refused("inapplicable", "has a 'compact_every', which means nothing without 'path'; remove it")
        return self


class PostgresSettings(SinkSettings):
    """Tables in one schema of a PostgreSQL database."""

    kind: Literal["postgres"]
    dsn: Dsn
    schema_name: str = Field("public", alias="schema", min_length=1, max_length=63)
    """The schema of the target tables."""


class PluginSinkSettings(SinkSettings):
    """A sink of an installed package; its own keys are checked by its adapter."""

    model_config = ConfigDict(extra="allow")
    kind: str


SINKS: dict[str, type[SinkSettings]] = {
    "delta": DeltaSettings,
    "event_log": EventLogSettings,
    "postgres": PostgresSettings,
}


def _kind(value: Any) -> str:
    name = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return name if isinstance(name, str) and name in SINKS else "plugin"


Sink = Annotated[
    Annotated[DeltaSettings, Tag("delta")]
    | Annotated[EventLogSettings, Tag("event_log")]
    | Annotated[PostgresSettings, Tag("postgres")]
    | Annotated[PluginSinkSettings, Tag("plugin")],
    Discriminator(_kind),
]


class DeadLetterSettings(Strict):
    """Where rejected records are kept."""

    path: ConfigPath | None = None
    """A Delta table's folder."""
    dsn: Dsn | None = None
    topic: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> DeadLetterSettings:
        if sum(place is not None for place in (self.path, self.dsn, self.topic)) != 1:
            raise _refused("place", "needs exactly one of 'path', 'dsn' and 'topic'")
        return self
