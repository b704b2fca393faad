"""The parts of a configuration, as `ports.components` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicator.application.stream.file_register import FileRegister
from replicator.domain.patterns import is_exact
from replicator.ports.components import SinkRules, SinkUse, SourceRules
from replicator.ports.dead_letters import DeadLetters
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane
from replicator.ports.register import Register
from replicator.ports.source import Source
from replicator.settings import Loaded

from . import adapters, build, daemon


class ConfiguredComponents:
    """`ports.components.Components` of a configuration."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.pipeline, self.engine = loaded.settings.pipeline, str(loaded.settings.engine)
        self.folder = adapters.get_state_folder(loaded)
        self.register: Register = FileRegister(build.get_register_folder(loaded))
        self.sources: Mapping[str, SourceRules] = {
            name: _build_source_rules(loaded, name) for name in sorted(loaded.settings.sources)
        }
        self.sinks: Mapping[str, SinkRules] = {name: _build_sink_rules(loaded, name) for name in loaded.settings.sinks}

    def resolve_lanes(self, table: str) -> Sequence[Lane]:
        return [adapters.build_lane(self.loaded, lane) for lane in self.loaded.settings.resolve_lanes(table)]

    def use_local(self) -> ConfiguredComponents:
        return ConfiguredComponents(adapters.use_local_engine(self.loaded))

    def build_engine(self) -> Engine[Any]:
        return adapters.build_engine(self.loaded)

    def build_decoder(self, source: str) -> Decoder:
        return adapters.build_decoder(self.loaded, source)

    def open_source(self, name: str) -> Source[Any]:
        return adapters.build_source(self.loaded, name)

    def open_sink(self, name: str, use: SinkUse = "read") -> Any:
        settings, engine = self.loaded.settings.sinks[name], self.loaded.settings.engine
        # A target is dropped by the engine whose catalog names it. Only the engine can write some tables of a lake.
        of_engine = {
            "read": False,
            "write": True,
            "rewrite": settings.kind == "delta",
            "drop": settings.catalog_of == engine,
        }
        return (adapters.build_engine_sink if of_engine[use] else adapters.build_sink)(self.loaded, name)

    def open_dead_letters(self) -> DeadLetters:
        return adapters.build_dead_letters(self.loaded)

    def ask_daemon(self) -> dict[str, Any] | None:
        return daemon.ask_status(self.loaded)


def _build_source_rules(loaded: Loaded, name: str) -> SourceRules:
    return SourceRules(
        tables=frozenset(t.match for t in loaded.settings.tables if t.source == name and is_exact(t.match)),
        rules_for=build.build_rules_for(loaded, name),
        event_logs=build.build_event_logs(loaded, name),
        transactions=build.build_transaction_rules(loaded, name),
        has_backfills=adapters.has_backfills(loaded, name),
        has_tables=any(table.source == name for table in loaded.settings.tables),
    )


def _build_sink_rules(loaded: Loaded, name: str) -> SinkRules:
    settings = loaded.settings.sinks[name]
    has_lanes = any(entry.sink == name for table in loaded.settings.tables for entry in table.to)
    return SinkRules(settings.kind, loaded.describe_origin("sinks", name), settings.catalog_of, has_lanes)
