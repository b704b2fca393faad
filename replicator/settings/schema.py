"""The whole config file as one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, Field, SecretStr, model_validator

from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import find_best
from replicator.domain.plain_values import is_loopback
from replicator.ports.adapter_options import Engine
from replicator.ports.options import (
    Address,
    ConfigPath,
    Count,
    Duration,
    FromZero,
    Glob,
    Name,
    Nesting,
    Size,
    Strict,
    Text,
    Token,
    check_spark_options,
    make_value_error,
)

from .adapter_models import OUTBOX, DeadLetters, DeadLetterSettings, EventStore, EventStoreSinkSettings, Sink, Source
from .document import Path
from .lanes import LaneSettings, resolve_lane
from .projections import LineageSettings, ProjectionSettings
from .tables import EntrySettings, OnReject, PolicyKeys, TableSettings

MIB = 1024 * 1024


class LimitSettings(Strict):
    """Limits of input and memory. Input beyond a limit is rejected, never truncated."""

    message_bytes: Size = 16 * MIB
    """The most bytes of one record."""
    depth: Nesting = 64
    """The deepest nesting of a value."""
    columns: Count = 4096
    """The most columns of a table."""
    batch_bytes: Size = 32 * MIB
    """The most bytes of input in one batch."""
    memory: Size = 1024 * MIB
    """Memory for records between the sources and the slowest sink. With many sources or sinks, batches become smaller."""


class HttpSettings(Strict):
    """The daemon's status page, health checks and metrics."""

    address: Address = "127.0.0.1:8090"
    """HOST:PORT to listen on. Port 0 takes a free port."""
    token: Token | None = None
    """The bearer token that callers must send. Required if the address is not a loopback address."""

    @model_validator(mode="after")
    def _check_token(self) -> HttpSettings:
        if self.token is None and not is_loopback(self.address):
            raise make_value_error("open", "listens beyond this machine, so it needs a 'token'")
        return self


class ServeSettings(Strict):
    """The HTTP server of `replicator serve`."""

    address: Address = "127.0.0.1:8091"
    """HOST:PORT to listen on. Port 0 takes a free port."""
    token: Token | None = None
    """The token that callers must send. Required if there is an `event_store`, and for addresses that are not loopback
    addresses."""
    tables: list[Glob] | None = Field(default=None, min_length=1)
    """The targets that may be read, as SINK.TABLE or globs. By default the targets of all lanes."""
    max_rows: Count = 10_000
    """The most rows of one answer."""
    query_timeout: Duration = "30 seconds"
    """The longest time for one answer."""


class Settings(Strict):
    """Everything that the config file says. Immutable; secrets are SecretStr; paths are absolute once loaded."""

    # What `default_factory` makes is never used: `defaults` has filled these in.
    pipeline: Name = Field(default_factory=str)
    """The name of the pipeline. It is part of every stored position, so do not change it later. By default the name of
    the project's folder."""
    engine: Engine = "local"
    """The engine that decodes and writes: this process (`local`) or Spark."""
    sources: dict[Name, Source]
    """The sources, by name: where changes come from."""
    sinks: dict[Name, Sink]
    """The sinks, by name: where targets are written."""
    dead_letters: DeadLetters = Field(default_factory=DeadLetterSettings.model_construct)
    """The store of rejected records. By default the folder `_replicator/dead_letters` of the first Delta sink on a
    disk. Without such a sink: the first PostgreSQL sink, otherwise the `state` folder."""
    tables: list[TableSettings]
    """The tables to replicate, and their targets. Only the entry with the most specific `match` counts for a table."""
    defaults: PolicyKeys = PolicyKeys()
    """Policy keys for all entries that do not set them."""
    state: ConfigPath = Field("./state", validate_default=True)
    """The folder of local state."""
    erasures: ConfigPath | None = None
    """The folder with the list of erased keys (`replicator forget`). Back it up: without it, erased rows come back. By
    default in the `state` folder."""
    limits: LimitSettings = LimitSettings()
    http: HttpSettings = HttpSettings()
    event_store: EventStore | None = None
    """The store of events that programs emit themselves."""
    serve: ServeSettings = ServeSettings()
    projections: dict[Name, ProjectionSettings] = Field(default_factory=dict)
    """Gold tables, by name: a query computes each from other tables."""
    lineage: LineageSettings | None = None
    """The receiver of OpenLineage events of refreshes. By default none are sent."""
    spark: Annotated[dict[str, Text], AfterValidator(check_spark_options)] = Field(default_factory=dict)
    """Options of the Spark session by their own names, for the engine `spark`."""
    on_reject: OnReject = "continue"
    """The reaction when a record of a table is rejected. A table can override it. `continue`: the other records are
    applied. `hold_key`: later records of its key are rejected as HELD until it is retried. `stop_lane`: the table's
    lanes stop before it."""
    max_rejects: FromZero | None = None
    """The most rejects of one run; one more ends it with exit code 6. By default any number. Records that are sent
    again count again. A change that two targets reject counts twice."""

    def get_on_reject(self, table: str, source: str | None = None) -> OnReject:
        """The reaction of a source table to a record that cannot be used."""
        entry = self.find_table(table, source)
        return (entry and entry.on_reject) or self.on_reject

    def find_table(self, name: str, source: str | None = None) -> TableSettings | None:
        """The entry of `tables` for the source table `name` (of `source`, if given). None if no entry matches.

        Precedence: the exact name, then the first matching regular expression, then the glob with the most literal
        characters.
        """
        by_match = {t.match: t for t in reversed(self.tables) if source in (None, t.source)}
        pattern = find_best((t.match for t in self.tables if source in (None, t.source)), name)
        return None if pattern is None else by_match[pattern]

    def resolve_lanes(self, name: str, source: str | None = None) -> tuple[LaneSettings, ...]:
        """The lanes of the source table `name`, in the order of its `to`; event logs are not lanes of a table."""
        table = self.find_table(name, source)
        return () if table is None else self.resolve_entry_lanes(table, name)

    def resolve_entry_lanes(self, table: TableSettings, name: str) -> tuple[LaneSettings, ...]:
        """The lanes of the source table `name` through one entry of `tables`. Only the names in them depend on `name`."""
        at: Path = ("tables", self.tables.index(table), "to")
        return tuple(
            self._resolve_entry(name, table, entry, (*at, index))
            for index, entry in enumerate(table.to)
            if not self.sinks[entry.sink].is_event_log
        )

    def resolve_changed_lane(self, lane: LaneSettings, changes: Mapping[str, Any]) -> LaneSettings:
        """The lane under other rules: those that its entry would give with the keys `changes`."""
        _, table_at, _, entry_at = lane.at
        table = self.tables[cast(int, table_at)]
        # `model_copy` runs no validators: the program chose the keys, and they fit together.
        return self._resolve_entry(lane.table, table, table.to[cast(int, entry_at)].model_copy(update=changes), lane.at)

    def _resolve_entry(self, name: str, table: TableSettings, entry: EntrySettings, at: Path) -> LaneSettings:
        source = self.sources.get(table.source)
        return resolve_lane(
            name,
            (entry, table, self.defaults),
            self.sinks[entry.sink].kind,
            at,
            of_events=source is not None and source.format == OUTBOX,
            has_tombstones=source is not None and source.has_tombstones,
        )

    def list_table_event_logs(self, name: str, source: str | None = None) -> tuple[str, ...]:
        """The names of the event-log sinks that take the records of the source table `name`."""
        table = self.find_table(name, source)
        return tuple(e.sink for e in table.to if self.sinks[e.sink].is_event_log) if table else ()

    def list_event_logs(self, source: str) -> tuple[str, ...]:
        """The names of the event-log sinks that any table of `source` names, in the order of `sinks`."""
        named = {entry.sink for table in self.tables if table.source == source for entry in table.to}
        return tuple(name for name, sink in self.sinks.items() if sink.is_event_log and name in named)


def add_event_store(settings: Settings) -> Settings:
    """The settings with the store of events among the sinks, where some table names it and no sink is called so."""
    named = any(entry.sink == EVENT_STORE for table in settings.tables for entry in table.to)
    return put_event_store(settings) if named and EVENT_STORE not in settings.sinks else settings


def put_event_store(settings: Settings) -> Settings:
    """The settings with the store of events among the sinks, if there is one."""
    if settings.event_store is None:
        return settings
    store: Any = EventStoreSinkSettings.model_validate({"store": settings.event_store})
    return settings.model_copy(update={"sinks": {**settings.sinks, EVENT_STORE: store}})


def remove_event_store(settings: Settings) -> Settings:
    """The settings as they are written."""
    written = {name: sink for name, sink in settings.sinks.items() if not isinstance(sink, EventStoreSinkSettings)}
    return settings.model_copy(update={"sinks": written})


def to_plain_options(settings: BaseModel) -> Mapping[str, Any]:
    """The settings of one source, sink or dead-letter store as options of its adapter. They have the names of the config
    file. Unset ones are left out, and secrets are in clear. Never log or print the result."""
    return {name: _reveal(value) for name, value in settings.model_dump(by_alias=True, exclude_none=True).items()}


def _reveal(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return {name: _reveal(item) for name, item in value.items()} if isinstance(value, dict) else value
