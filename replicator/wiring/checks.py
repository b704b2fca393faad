"""Runs the checks of `doctor`: every source with its database and connector, every sink, the dead letters, the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.ports.diagnosis import Diagnosis
from replicator.ports.frames import Lane
from replicator.settings import Loaded
from replicator.settings.schema import plain_options

from . import adapters
from .daemon import ask_status
from .offline import known_lanes, stored_status
from .plugins import load, names

GROUP = "replicator.checks"
OWN_SCHEMA = "_replicator"
LETTERS = "dead_letters"
"""Schema and table in which a PostgreSQL database keeps dead letters."""
BROUGHT_BY_SOURCES = ("database", "connect", "registry")
"""Keys of a source with options of a check of their own, which is called as they are."""
OF_DATABASES = {"postgresql": "source_database", "mariadb": "mariadb_database"}
"""Those of `database`, by its kind."""

Task = tuple[str, str, Mapping[str, Any]]
"""A kind of check, its subject, and its options."""


def diagnose(loaded: Loaded) -> Iterator[Diagnosis]:
    """Everything found, in the order of the stream. The checks run at once: servers that do not answer are waited for
    together."""
    lanes: Sequence[Lane] = ()
    status: Mapping[str, Any] = {"lanes": ()}
    try:
        lanes = known_lanes(loaded)
        status = ask_status(loaded) or stored_status(loaded)
    except ReplicatorError as problem:
        yield Diagnosis("error", "lanes", problem.sentence, problem.next_step)
    tasks = list(_tasks(loaded, lanes, status))
    with ThreadPoolExecutor(len(tasks)) as pool:
        for found in pool.map(_check, tasks):
            yield from found


def _tasks(loaded: Loaded, lanes: Sequence[Lane], status: Mapping[str, Any]) -> Iterator[Task]:
    settings = loaded.settings
    for name, source in settings.sources.items():
        yield (
            _of_transport(source.transport),
            f"source {name}",
            {**adapters.options(source), **_of_lanes(loaded, lanes, status, name), **adapters.kept(loaded, name)},
        )
        for key in BROUGHT_BY_SOURCES:
            own = plain_options(source).get(key)
            if own is not None:
                tables = [table.match for table in settings.tables if table.source == name]
                kind = OF_DATABASES[getattr(source, key).kind] if key == "database" else key
                yield kind, f"{key} of source {name}", {**own, "tables": tables}
    for name, sink in settings.sinks.items():
        targets = [lane.into for lane in lanes if lane.sink == name]
        yield sink.kind, f"sink {name}", {**adapters.options(sink), "targets": targets}
    yield _of_letters(loaded)
    if settings.engine in names(GROUP):
        yield settings.engine, f"engine {settings.engine}", {"stores": adapters.stores(loaded)}
    yield "machine", "machine", {"state": settings.state}


def _of_letters(loaded: Loaded) -> Task:
    kind, options = adapters.dead_letters_kind(loaded), adapters.options(loaded.settings.dead_letters)
    if kind == "kafka":
        return "kafka_letters", "dead letters", {**options, "production": _is_production(loaded)}
    if kind == "postgres":
        options = {"schema": OWN_SCHEMA, **options, "targets": [LETTERS]}
    return kind, "dead letters", options


def _of_transport(name: str) -> str:
    """The check of a transport: `<name>_source` where a kind of sink has the same name."""
    return f"{name}_source" if f"{name}_source" in names(GROUP) else name


def _of_lanes(loaded: Loaded, lanes: Sequence[Lane], status: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What a source's check is told of the lanes that read it."""
    mine = {lane.id for lane in lanes if lane.source == source}
    positions = {lane["id"]: lane["position"] for lane in status["lanes"] if lane["position"] and lane["id"] in mine}
    told = {"positions": positions, "production": _is_production(loaded)}
    return {**told, "readers": _readers(loaded, source)} if loaded.settings.sources[source].transport == "kafka" else told


def _readers(loaded: Loaded, source: str) -> dict[str, dict[str, list[str]]]:
    """By table those who want every change of it, not only the last one of each key; and those of Debezium's changes who
    take a message without a value for nothing."""
    found: dict[str, dict[str, list[str]]] = {}
    settings = loaded.settings
    form = settings.sources[source].format
    for table in (table for table in settings.tables if table.source == source):
        lanes = settings.lanes_of(table, table.match)
        logs = [f"event log {entry.sink}" for entry in table.to if settings.sinks[entry.sink].kind == "event_log"]
        named = {f"{lane.sink} under {lane.policy}": lane for lane in lanes}
        every = [name for name, lane in named.items() if lane.policy != "scd1" or form == "debezium_outbox"]
        blind = [name for name, lane in named.items() if lane.tombstones != "delete" and form == "debezium_json"]
        match = "*" if form == "debezium_outbox" else table.match
        there = found.setdefault(match, {"every": [], "keeping": []})
        there["every"] += [*logs, *every]
        there["keeping"] += [name for name in blind if name not in every]
    return found


def _is_production(loaded: Loaded) -> bool:
    """True with an overlay of any name but dev: replication factors and the like matter then."""
    return any(overlay.stem != "dev" for overlay in loaded.files[1:])


def _check(task: Task) -> Sequence[Diagnosis]:
    kind, subject, options = task
    if kind not in names(GROUP):
        return [Diagnosis("warning", subject, f"there is no check for {kind!r}", "Its package registers none.")]
    try:
        return load(GROUP, kind)(subject, options).diagnose()  # type: ignore[no-any-return]
    except ReplicatorError as problem:
        return [Diagnosis("error", subject, problem.sentence, problem.next_step)]
