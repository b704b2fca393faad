"""Runs the checks of `doctor`, and lists the parts of a support bundle. `doctor` checks every source with its database
and connector, every sink, the dead letters, and the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.application.lane_registry import list_lanes
from replicator.application.operations.lanes import read_status
from replicator.application.operations.plan import list_plans
from replicator.application.operations.support_bundle import Parts, list_versions, summarize_dead_letters, summarize_erasures
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, ExitCode, ReplicatorError
from replicator.domain.patterns import is_exact
from replicator.domain.policy import CURRENT_ROW_POLICIES
from replicator.domain.transform.expressions import list_columns
from replicator.ports.adapter_options import AdapterOptions
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch, Lane
from replicator.ports.runtime import Diagnosis
from replicator.ports.source import Source
from replicator.settings import Loaded
from replicator.settings.adapter_models import DEBEZIUM_JSON, OUTBOX, EventStoreSinkSettings, FreeForm
from replicator.settings.plugins import list_names, load_adapter
from replicator.settings.schema import to_plain_options
from replicator.wiring import adapters, build

from .components import ConfiguredComponents
from .daemon_client import ask_metrics, ask_status

GROUP = "replicator.checks"
SOURCE_CHECKS = ("database", "registry")
"""Keys of a source with a check of the same name, which gets their options."""
DATABASE_CHECKS = {"postgresql": "source_database", "mariadb": "mariadb_database"}
"""The checks of `database`, by its kind."""

CONNECTORS = "connectors"
"""The project folder with connector configurations, as they are registered."""

Task = tuple[str, str, Mapping[str, Any]]
"""The kind of a check, its subject, and its options."""


def diagnose(loaded: Loaded, connect: str | None = None) -> Iterator[Diagnosis]:
    """All findings, in the order of the stream. `connect` replaces the Kafka Connect address of the config.

    The checks run in parallel, so the timeouts of servers that do not answer do not add up.
    """
    lanes: Sequence[Lane] = ()
    status: Mapping[str, Any] = {"lanes": ()}
    try:
        lanes = list_lanes(ConfiguredComponents(loaded))
        stored = read_status(ConfiguredComponents(loaded))
        status = ask_status(loaded) or stored
        for lane in (lane for lane in stored["lanes"] if lane["exit_code"] == ExitCode.CONFIG):
            yield Diagnosis("error", f"lane {lane['id']}", lane["error"], lane["next_step"])
    except ReplicatorError as problem:
        yield Diagnosis("error", "lanes", problem.sentence, problem.next_step)
    tasks = list(_list_tasks(loaded, lanes, status, connect))
    with ThreadPoolExecutor(len(tasks)) as pool:
        for findings in pool.map(_run_check, tasks):
            yield from findings


def list_parts(loaded: Loaded) -> Parts:
    """The parts of a support bundle."""
    return {
        "versions": lambda: list_versions(loaded.settings.engine),
        "config": lambda: {"files": [str(file) for file in loaded.files], "resolved": loaded.to_redacted()},
        "status": lambda: ask_status(loaded) or read_status(ConfiguredComponents(loaded)),
        "metrics": lambda: ask_metrics(loaded),
        "plan": lambda: list(list_plans(ConfiguredComponents(loaded))),
        "dead_letters": lambda: _summarize_dead_letters(loaded),
        "erasures": lambda: _summarize_erasures(loaded),
        "doctor": lambda: list(map(asdict, diagnose(loaded))),
    }


def _summarize_dead_letters(loaded: Loaded) -> dict[str, Any]:
    with closing(adapters.build_dead_letters(loaded)) as store:
        return summarize_dead_letters(store.read())


def _summarize_erasures(loaded: Loaded) -> list[dict[str, Any]]:
    stored = adapters.open_erasure_list(loaded).load()
    return summarize_erasures(stored.erasures if stored else ())


def _list_tasks(loaded: Loaded, lanes: Sequence[Lane], status: Mapping[str, Any], connect: str | None) -> Iterator[Task]:
    settings, checks = loaded.settings, list_names(GROUP)
    for name in settings.sources:
        yield from _list_source_tasks(loaded, name, lanes, status, connect)
    # Tables that the config names count too, even if no record of them was read yet.
    every: list[Lane] = []
    for table in settings.tables:
        rules = build.build_rules_for(loaded, table.source)(table.match) if is_exact(table.match) else None
        every += rules.lanes if rules else ()
    every += lanes
    for name, sink in settings.sinks.items():
        mine = {lane.into: lane for lane in every if lane.sink == name}
        section: AdapterOptions = sink
        kind = sink.kind
        if isinstance(sink, EventStoreSinkSettings):
            section = sink.store
            # An event store of another package has the check of its own kind.
            kind = sink.store.adapter if isinstance(sink.store, FreeForm) else kind
        yield kind, f"sink {name}", {**adapters.list_options(section), "targets": list(mine), "lanes": list(mine.values())}
    letters = settings.dead_letters
    kind, options = letters.adapter, adapters.list_options(letters)
    # Some places have a check of their own for dead letters.
    if f"{kind}_letters" in checks:
        kind, options = f"{kind}_letters", {**options, "production": _is_production(loaded)}
    yield kind, "dead letters", options
    if settings.engine in checks:
        yield settings.engine, f"engine {settings.engine}", {"stores": adapters.list_object_stores(loaded)}
    yield "machine", "machine", {"state": settings.state}


def _list_source_tasks(
    loaded: Loaded, name: str, lanes: Sequence[Lane], status: Mapping[str, Any], connect: str | None
) -> Iterator[Task]:
    """The checks of a source, and of its database, schema registry and connector."""
    source = loaded.settings.sources[name]
    # A transport has a check of its own if a kind of sink has the same name.
    kind = f"{source.transport}_source"
    kind = kind if kind in list_names(GROUP) else source.transport
    mine = {lane.id for lane in lanes if lane.source == name}
    options: dict[str, Any] = {
        **adapters.make_check_options(loaded, name),
        "positions": {one["id"]: one["position"] for one in status["lanes"] if one["position"] and one["id"] in mine},
        "production": _is_production(loaded),
    }
    if source.reads_broker:
        options["readers"] = _list_readers(loaded, name)
    yield kind, f"source {name}", options
    for key in SOURCE_CHECKS:
        own = to_plain_options(source).get(key)
        if own is None:
            continue
        kind = DATABASE_CHECKS[getattr(source, key).kind] if key == "database" else key
        options = {**own, "tables": [table.match for table in loaded.settings.tables if table.source == name]}
        if kind == "source_database":
            options["whole_rows"] = list(_list_whole_row_columns(loaded, name))
            options["replica_identity"] = source.replica_identity
        yield kind, f"{key} of source {name}", options
    if "connect" in source.list_keys():
        yield from _list_connector_tasks(loaded, name, connect)


def _list_whole_row_columns(loaded: Loaded, name: str) -> Iterator[dict[str, Any]]:
    """The columns that lanes need in every change, also if a source sends only changed ones. `of`: the operation."""
    settings = loaded.settings
    for table in (table for table in settings.tables if table.source == name):
        for lane in settings.resolve_entry_lanes(table, table.match):
            entry = {"match": table.match, "lane": f"{lane.sink} into {lane.into}"}
            if lane.row_transforms.sequence_by and not lane.row_transforms.without_deletes:
                yield {**entry, "of": "deletes", "columns": list(lane.row_transforms.sequence_by), "key": "sequence_by"}
            if lane.row_transforms.where is not None:
                yield {**entry, "of": "updates", "columns": sorted(list_columns(lane.row_transforms.where)), "key": "where"}


def _list_connector_tasks(loaded: Loaded, name: str, connect: str | None) -> Iterator[Task]:
    """The check of the connector of a source, and of the files with connector configurations."""
    source = loaded.settings.sources[name]
    own = dict(to_plain_options(source).get("connect") or {})
    if not own and not source.format.startswith("debezium"):
        return
    files = [str(file) for file in sorted((loaded.root / CONNECTORS).glob("*.json"))]
    if not (own or connect or files):
        return
    tables = [table for table in loaded.settings.tables if table.source == name]
    lanes = [lane for table in tables for lane in loaded.settings.resolve_entry_lanes(table, table.match)]
    wanted = {
        "transactions": source.transactions is not None,
        "tombstones": any(lane.tombstones == "delete" for lane in lanes),
    }
    own |= {"url": connect} if connect else {}
    database = to_plain_options(source).get("database") or {}
    own |= {"dsn": database["dsn"]} if database.get("kind") == "postgresql" else {}
    topics = {"topics": to_plain_options(source)["topics"], "wanted": [need for need, holds in wanted.items() if holds]}
    yield "connect", f"connect of source {name}", {**own, **topics, "files": files}


def _list_readers(loaded: Loaded, source: str) -> dict[str, dict[str, list[str]]]:
    """By table, the readers that need every change, not only the last one of each key. For Debezium's changes also
    the readers that ignore messages without a value."""
    by_table: dict[str, dict[str, list[str]]] = {}
    settings = loaded.settings
    form = settings.sources[source].format
    for table in (table for table in settings.tables if table.source == source):
        lanes = settings.resolve_entry_lanes(table, table.match)
        logs = [f"event log {entry.sink}" for entry in table.to if settings.sinks[entry.sink].is_event_log]
        named = {f"{lane.sink} under {lane.policy}": lane for lane in lanes}
        every = [name for name, lane in named.items() if lane.policy not in CURRENT_ROW_POLICIES or form == OUTBOX]
        blind = [name for name, lane in named.items() if lane.tombstones != "delete" and form == DEBEZIUM_JSON]
        match = "*" if form == OUTBOX else table.match
        readers = by_table.setdefault(match, {"every": [], "ignores_tombstones": []})
        readers["every"] += [*logs, *every]
        readers["ignores_tombstones"] += [name for name in blind if name not in every]
    return by_table


def _is_production(loaded: Loaded) -> bool:
    """True with an overlay of any name but dev, because replication factors and similar settings matter then."""
    return any(overlay.stem != "dev" for overlay in loaded.files[1:])


def _run_check(task: Task) -> Sequence[Diagnosis]:
    kind, subject, options = task
    if kind not in list_names(GROUP):
        return [Diagnosis("warning", subject, f"there is no check for {kind!r}", "Its package registers none.")]
    try:
        return load_adapter(GROUP, kind)(subject, options).diagnose()  # type: ignore[no-any-return]
    except ReplicatorError as problem:
        return [Diagnosis("error", subject, problem.sentence, problem.next_step)]


# Decodes records without a lane, for `inspect`. Writes nothing, and keeps no position.

PLACE_COLUMNS = ("topic", "partition", "offset")
ERROR = "error"


def inspect_archive(path: Path, form: str, most: int) -> pa.Table:
    """The first `most` records (0: all) of the archive at `path`, with the columns of the format `form`."""
    options = {"format": form, "path": str(path.absolute()), **({"batch_records": most} if most else {})}
    return _describe_records(
        load_adapter("replicator.sources", "archive")(options), adapters.build_plain_decoder(form), most
    )


def inspect_source(loaded: Loaded, name: str, form: str | None, most: int) -> pa.Table:
    """The first records of a configured source, by default in its own format.

    ConfigProblem for an unknown source, and for one that stores state.
    """
    settings = loaded.settings.sources.get(name)
    if settings is None:
        names = ", ".join(loaded.settings.sources) or "none"
        raise ConfigProblem(f"there is no source {name!r}, and no file or folder", next_step=f"The sources are: {names}.")
    if settings.stateful_table is not None:
        raise ConfigProblem(
            f"source {name!r} stores the rows that it reads, so it cannot be inspected",
            next_step="Query its targets instead.",
        )
    engine = adapters.find_reading_engine(loaded)
    if engine != adapters.LOCAL:
        raise ConfigProblem(
            f"only the engine {engine!r} can read source {name!r}, so it cannot be inspected",
            next_step="Query its rows with Spark SQL.",
        )
    own = form in (None, settings.format)
    decoder = adapters.build_unfiltered_decoder(loaded, name) if own else adapters.build_plain_decoder(str(form))
    return _describe_records(adapters.build_source(loaded, name, engine), decoder, most)


def _describe_records(source: Source[pa.Table], decoder: Decoder, most: int) -> pa.Table:
    stop, parts = threading.Event(), [RAW.empty_table()]

    def take(batch: Batch[pa.Table]) -> None:
        parts.append(batch.frame)
        if most and sum(part.num_rows for part in parts) >= most:
            stop.set()

    try:
        source.run(source.start(), take, stop, once=True)
    finally:
        source.close()
    raw = pa.concat_tables(parts).slice(0, most or None)
    print_records = decoder.features.print_records
    if print_records is not None:
        printed = print_records(raw)
        return printed if printed[ERROR].null_count < len(printed) else printed.drop_columns([ERROR])
    envelope = decoder.envelope(raw)
    printed = pa.table(
        [*(raw[name] for name in PLACE_COLUMNS), *envelope.columns], names=[*PLACE_COLUMNS, *envelope.column_names]
    )
    # A format does not fill all columns.
    return printed.drop_columns([name for name in printed.column_names if printed[name].null_count == len(printed) > 0])
