"""Settings of sinks: one model per kind, and the dead-letter store."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, SecretStr, Tag, model_validator

from .fields import CatalogSchema, ConfigPath, Dsn, FromZero, HttpUrl, LakePath, Strict, _refused

Engine = Literal["local", "spark"]


class SinkSettings(Strict):
    """What every sink has."""

    engines: list[Engine] = Field(["local", "spark"], min_length=1)
    """The engines that may write it. Another one is refused before anything starts."""

    @property
    def catalog_of(self) -> Engine | None:
        """The engine in whose catalog the targets have names; only that one can take them away. None: they have none."""
        return None


class StorageSettings(Strict):
    """What reaches an object store. What is not said comes from the environment (AWS_ACCESS_KEY_ID, AWS_REGION, ...), or
    from the role of the machine."""

    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    """Of credentials that last for a while only."""
    region: str | None = Field(None, min_length=1)
    endpoint: HttpUrl | None = None
    """The URL of a store other than Amazon's."""
    allow_http: bool = False
    """The endpoint may be one without encryption."""

    @model_validator(mode="after")
    def _whole(self) -> StorageSettings:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise _refused("storage", "needs both 'access_key_id' and 'secret_access_key', or none of them")
        if self.session_token is not None and self.access_key_id is None:
            raise _refused("storage", "has a 'session_token' without 'access_key_id'")
        if (self.endpoint or "").startswith("http://") and not self.allow_http:
            raise _refused("storage", "has an 'endpoint' without encryption; write https://, or 'allow_http: true'")
        return self


class DeltaSettings(SinkSettings):
    """Delta Lake tables, one folder per table."""

    kind: Literal["delta"]
    path: LakePath
    """The lake's folder, or s3://BUCKET/FOLDER; tables are folders in it."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
    compact_every: FromZero | None = None
    """Small files of a table are compacted after every so many commits, 50 by default; 0 is never."""
    schema_name: CatalogSchema | None = Field(None, alias="schema")
    """On Spark: the schema of the session's catalog in which the tables have names, with views of the rows that hold now."""

    @property
    def catalog_of(self) -> Engine | None:
        """See `SinkSettings.catalog_of`."""
        return None if self.schema_name is None else "spark"

    @model_validator(mode="after")
    def _stored(self) -> DeltaSettings:
        _refuse_idle_storage(self.path, self.storage)
        return self


def _refuse_idle_storage(path: str | None, storage: StorageSettings | None) -> None:
    if storage is not None and "://" not in (path or ""):
        raise _refused("inapplicable", "has a 'storage', which means nothing without an s3:// URL in 'path'; remove it")


class EventLogSettings(SinkSettings):
    """Every record as it came, append-only: a Delta table at `path`, or cdc_raw.cdc_events at `dsn`."""

    kind: Literal["event_log"]
    path: LakePath | None = None
    """The Delta table's own folder, or its s3://BUCKET/FOLDER."""
    storage: StorageSettings | None = None
    """With an object store: what reaches it."""
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
        _refuse_idle_storage(self.path, self.storage)
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
