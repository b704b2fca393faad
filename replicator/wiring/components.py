"""The parts of a configuration, as `ports.components` describes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from dependency_injector import providers

from replicator.application.operations.read_side import ConfiguredTargets
from replicator.application.operations.rebuild import REJECTED_FOLDER, get_rebuild_folder
from replicator.domain.errors import ConfigProblem
from replicator.domain.event_log import CheckpointSchedule
from replicator.domain.expr import Expr
from replicator.domain.patterns import is_exact
from replicator.ports.adapter_options import LogSinkOptions
from replicator.ports.components import (
    CONTINUE,
    DeadLetterStoreKind,
    RebuildRequest,
    SinkRules,
    SinkUse,
    SourceRules,
    make_event_log_lane,
)
from replicator.ports.decoder import Decoder
from replicator.ports.engine import Engine
from replicator.ports.frames import Lane
from replicator.ports.options import NO_RETENTION, to_timedelta
from replicator.ports.runtime import Endpoints, Server, ShowProgress
from replicator.ports.sink import Sink
from replicator.ports.source import Source
from replicator.ports.stores import DeadLetters, Register
from replicator.settings import Loaded, to_plain_options
from replicator.settings.adapter_models import EventStoreSinkSettings
from replicator.settings.expressions import InvalidExpressionText, parse_condition
from replicator.settings.plugins import load_adapter

from . import adapters, build, daemon_client, event_logs
from .build import digest_lane, digest_rules
from .container import PipelineSetup, build_container, run_until_caught_up


class ConfiguredComponents:
    """`ports.components.Components` of a configuration. `setup`: the parts of its runs, if not those of the config."""

    def __init__(self, loaded: Loaded, setup: PipelineSetup | None = None) -> None:
        self.loaded, self.setup = loaded, setup or PipelineSetup.from_config(loaded)
        self.pipeline, self.engine, self.folder = loaded.settings.pipeline, self.setup.engine, self.setup.folder
        self.register: Register = self.setup.build_register()
        sources = {}
        for name, source in loaded.settings.sources.items():
            tables = [table.match for table in loaded.settings.tables if table.source == name]
            sources[name] = SourceRules(
                tables=frozenset(filter(is_exact, tables)),
                rules_for=build.build_rules_for(loaded, name),
                event_logs=build.build_event_logs(loaded, name),
                transactions=build.build_transaction_rules(loaded, name),
                has_backfills=adapters.has_backfills(loaded, name),
                has_tables=bool(tables),
                backfill_folder=adapters.get_backfills_folder(loaded, name),
                kept_folder=adapters.get_kept_folder(loaded, name),
                lake=source.lake or "",
            )
        self.sources: Mapping[str, SourceRules] = sources
        self.sinks: Mapping[str, SinkRules] = {
            name: _build_sink_rules(loaded, name, is_lake=name in self.setup.lakes) for name in loaded.settings.sinks
        }
        topic = getattr(loaded.settings.dead_letters, "topic", None)
        self.dead_letters = DeadLetterStoreKind(loaded.settings.dead_letters.adapter, topic)
        self.erasures = adapters.get_erasures_folder(loaded)

    def resolve_lanes(self, table: str) -> Sequence[Lane]:
        return [adapters.build_lane(self.loaded, lane) for lane in self.loaded.settings.resolve_lanes(table)]

    def list_configured_targets(self, table: str) -> Mapping[str, str]:
        settings = self.loaded.settings
        lanes = [lane for entry in settings.tables for lane in settings.resolve_entry_lanes(entry, table)]
        return {f"{one.sink}.{one.into}": adapters.get_config_line(self.loaded, one) for one in lanes}

    def digest(self, lane: Lane, *, with_target: bool = False) -> str:
        settings = event_logs.find_lane_settings(self.loaded, lane)
        return (digest_lane if with_target else digest_rules)(self.loaded, settings)

    def find_log(self, table: str) -> Lane:
        return make_event_log_lane(self.pipeline, *event_logs.find_log(self.loaded, table))

    def open_log(self, log: Lane, topics: Collection[str] = ()) -> Any:
        return event_logs.open_log(self.loaded, log.source, log.sink, topics)

    def use_log(
        self, request: RebuildRequest, topics: Collection[str] = (), *, is_plain: bool = False
    ) -> ConfiguredComponents:
        folder = get_rebuild_folder(self, request.id)
        dead_letters_folder = folder / REJECTED_FOLDER if request.has_own_dead_letters else self.setup.dead_letters
        records = event_logs.open_log_records(self.loaded, request, topics, self.engine)
        keys = event_logs.PLAIN_LAKE_OPTIONS if is_plain else {}
        inputs = [event_logs.make_input(self.loaded, request, records, keys)]
        return self._change(folder=folder / self.pipeline, dead_letters=dead_letters_folder, inputs=inputs, is_whole=False)

    def use_lake(self, sink: str, folder: Path) -> ConfiguredComponents:
        state, lakes = folder / "state" / self.pipeline, {sink: folder / "lake"}
        return self._change(engine=adapters.LOCAL, folder=state, lakes=lakes, dead_letters=folder / "dead_letters")

    def _change(self, **fields: Any) -> ConfiguredComponents:
        """The same with another setup."""
        return ConfiguredComponents(self.loaded, replace(self.setup, **fields))

    def parse_condition(self, text: str) -> Expr:
        try:
            return parse_condition(text)
        except InvalidExpressionText as why:
            raise ConfigProblem(f"{text!r} is no condition: {why}", next_step="See docs/reference/expressions.md.") from None

    def use_records(self, lane: Lane, folder: Path, into: str, where: str = "") -> ConfiguredComponents:
        keys = {
            **event_logs.PLAIN_LAKE_OPTIONS,
            **event_logs.CURRENT_ROWS,
            **event_logs.add_condition(self.loaded, lane, where),
        }
        request, records = RebuildRequest(lane, into, policy="scd1"), folder / "records"
        open_records = event_logs.open_archive(self.loaded, lane.source, records)
        rows = event_logs.make_input(self.loaded, request, open_records, keys, on_reject=CONTINUE)
        return self.use_lake(lane.sink, folder)._change(inputs=[rows], is_whole=False)

    def catch_up(
        self, stop: Event | None = None, *, in_batches: bool = False, show_progress: ShowProgress = nullcontext
    ) -> dict[str, int]:
        container = build_container(replace(self.setup, in_batches=in_batches))
        if stop is not None:
            container.stop.override(providers.Object(stop))
        supervisor = run_until_caught_up(container, show_progress)
        records = sum(pipeline.progress.records for pipeline in container.pipelines().values())
        applied = sum(run.counts.applied for run in container.lanes().list_runs())
        return {"records": records, "applied": applied, "rejected": supervisor.rejected_count}

    def use_local(self) -> ConfiguredComponents:
        return self._change(engine=adapters.find_reading_engine(self.loaded))

    def build_engine(self) -> Engine[Any]:
        return adapters.build_engine(self.loaded, self.engine)

    def build_decoder(self, source: str, *, with_erased: bool = False) -> Decoder:
        return adapters.build_safe_decoder(self.loaded, source, with_erased=with_erased)

    def open_source(self, name: str) -> Source[Any]:
        return adapters.build_source(self.loaded, name, self.engine)

    def open_sink(self, name: str, use: SinkUse = "read") -> Sink[Any]:
        if name in self.setup.lakes:
            return adapters.open_lake(self.setup.lakes[name])
        settings = self.loaded.settings.sinks[name]
        # A target is dropped by the engine whose catalog names it. Only the engine can write some tables of a lake.
        of_engine = {
            "read": False,
            "write": True,
            "rewrite": settings.is_lake,
            "drop": settings.catalog_of == self.engine,
        }
        if of_engine[use]:
            return adapters.build_engine_sink(self.loaded, name, self.engine)
        return adapters.build_sink(self.loaded, name)

    def open_dead_letters(self, folder: Path | None = None) -> DeadLetters:
        return adapters.build_dead_letters(self.loaded, folder or self.setup.dead_letters)

    def ask_daemon(self) -> dict[str, Any] | None:
        return daemon_client.ask_status(self.loaded)

    def command_daemon(self, action: str, lane: str, argument: str) -> None:
        daemon_client.ask_control(self.loaded, action, lane, argument)


def _build_sink_rules(loaded: Loaded, name: str, *, is_lake: bool) -> SinkRules:
    settings = loaded.settings.sinks[name]
    has_lanes = any(entry.sink == name for table in loaded.settings.tables for entry in table.to)
    if is_lake:
        return SinkRules(adapters.find_lake(), loaded.describe_origin("sinks", name), None, None, has_lanes, is_lake=True)
    rules = SinkRules(
        settings.kind,
        loaded.describe_origin("sinks", name),
        settings.catalog_of,
        to_plain_options(settings.store if isinstance(settings, EventStoreSinkSettings) else settings).get("schema"),
        has_lanes,
        is_lake=settings.is_lake,
        is_event_log=settings.is_event_log,
    )
    if not isinstance(settings, LogSinkOptions):
        return rules
    checkpoints, retention = settings.checkpoints, settings.log_retention
    every = None if checkpoints is None or checkpoints.every is None else to_timedelta(checkpoints.every).total_seconds()
    return replace(
        rules,
        log_folder=settings.folder,
        is_log_in_database=settings.is_in_database,
        checkpoints=None if checkpoints is None else CheckpointSchedule(every, checkpoints.after_records, checkpoints.keep),
        retention=None if retention is None or retention == NO_RETENTION else to_timedelta(retention),
    )


# The HTTP server, and the rows that it shows.

SERVER_KEYS = ("address", "token", "max_rows")


def build_server(loaded: Loaded) -> Server[Endpoints]:
    """The server that receives events and shows rows over HTTP."""
    options = adapters.list_options(loaded.settings.serve)
    server_options = {name: options[name] for name in SERVER_KEYS if name in options}
    server: Server[Endpoints] = load_adapter("replicator.servers", "http")(
        {**server_options, "message_bytes": loaded.settings.limits.message_bytes}
    )
    return server


def build_read_side(loaded: Loaded) -> ConfiguredTargets:
    """The rows that the server shows."""
    serve = loaded.settings.serve
    seconds = to_timedelta(serve.query_timeout).total_seconds()
    return ConfiguredTargets(ConfiguredComponents(loaded), partial(event_logs.open_reader, loaded), serve.tables, seconds)
