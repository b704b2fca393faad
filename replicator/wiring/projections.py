"""The projections that a configuration names, and what refreshes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from replicator.application.keeping import Keeper, Kept
from replicator.application.lanes import Lanes
from replicator.application.refreshing import Refreshing
from replicator.domain.errors import ConfigProblem
from replicator.domain.patterns import is_exact
from replicator.domain.projections import Input, Key, Projection
from replicator.ports.lineage import Lineage
from replicator.settings import ConfigError, Finding, Loaded
from replicator.settings.fields import timespan
from replicator.settings.lanes import LaneSettings
from replicator.settings.nearest import did_you_mean
from replicator.settings.projection_problems import in_order
from replicator.settings.projections import EVENT_STORE, ProjectionSettings
from replicator.settings.queries import Query, Said, Wrong, read_query
from replicator.settings.tables import VACUUM

from . import adapters
from .plugins import load

GROUP, LINEAGE = "replicator.projectors", "replicator.lineage"
HELD_IN_DATABASES = ("postgres", "event_log")
LARGEST = 1024 * 1024
"""Bytes of a query."""
PLACE = ("path", "storage", "compact_every", *VACUUM)
"""What a projector is told of a lake."""
IN_DATABASE = ("dsn", "schema", "table")
"""What it is told of a sink in PostgreSQL, beside what it holds."""


def projections(loaded: Loaded) -> tuple[Projection, ...]:
    """Every projection, each after those whose tables it reads. ConfigError with everything that is wrong with their
    queries."""
    said = loaded.settings.projections
    found = {name: _read(loaded, name) for name in said}
    wrong = [finding for _, findings in found.values() for finding in findings]
    if wrong:
        raise ConfigError(wrong)
    targets = {name: (one.sink, one.into or name) for name, one in said.items()}
    order = in_order({name: one.inputs for name, one in said.items()}, targets)
    queries = {name: query for name, (query, _) in found.items() if query is not None}
    return tuple(_projection(loaded, name, queries[name]) for name in order)


def findings(loaded: Loaded) -> Sequence[Finding]:
    """What is wrong with the queries of projections."""
    return [finding for name in loaded.settings.projections for finding in _read(loaded, name)[1]]


def hints(loaded: Loaded) -> Iterator[Finding]:
    """What keeps refreshes by groups from reading little, though their rows are right: of tables that lanes write, and are
    read by groups."""
    for name, said in loaded.settings.projections.items():
        query = _read(loaded, name)[0]
        for table, value in said.inputs.items():
            key = query.keys.get(table) if query is not None else None
            for lane in _lanes_into(loaded, value) if key is not None else ():
                for sentence, step in _slow(loaded.settings.sinks[lane.sink].kind, lane.options, key, value):
                    found = _finding(loaded, lane.at, "slow_groups", f"projection {name}: {sentence}", step)
                    yield replace(found, severity="warning")


def _lanes_into(loaded: Loaded, target: str) -> Iterator[LaneSettings]:
    for table in loaded.settings.tables:
        if is_exact(table.match):
            yield from (one for one in loaded.settings.lanes_of(table, table.match) if f"{one.sink}.{one.into}" == target)


def _slow(kind: str, options: Mapping[str, Any], key: Key | None, target: str) -> Iterator[tuple[str, str]]:
    if kind == "postgres":
        sentence = (
            f"{target} is in PostgreSQL, where what has changed is not told by groups: each change of it computes everything"
        )
        yield sentence, "read a target of the table in a lake instead, or say how often to refresh, as in refresh: 5 minutes"
        return
    if not options.get("change_data_feed"):
        sentence = f"what has changed in {target} is found by reading whole files"
        yield sentence, "add change_data_feed: true"
    if not (options.get("partition_by") or options.get("cluster_by")):
        column = key and key.column
        step = f"add partition_by: [{column}], or a column computed of it" if column else "add partition_by"
        yield f"rows of a group may be in any file of {target}, so all are read", step


def chosen(loaded: Loaded, names: Sequence[str]) -> tuple[Projection, ...]:
    """Those of these names, or all. ConfigProblem for a name that the configuration does not have, or where it has none."""
    there = projections(loaded)
    known = [one.name for one in there]
    if not known:
        raise ConfigProblem(
            "the configuration names no projection",
            next_step="Add one, for example projections: {sums: {sql: sums.sql, inputs: {orders: lake.orders}, sink: lake}}",
        )
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"there are: {', '.join(known)}"
            raise ConfigProblem(f"there is no projection {name!r}", next_step=f"{hint[:1].upper()}{hint[1:]}")
    return tuple(one for one in there if not names or one.name in names)


@contextmanager
def refreshing(loaded: Loaded) -> Iterator[Refreshing]:
    """What refreshes them, on the pipeline's engine."""
    with closing(cast(Any, _projector(loaded))) as projector:
        said = loaded.settings.lineage
        namespace = (said and said.namespace) or loaded.settings.pipeline
        yield Refreshing(projector, namespace, _lineage(loaded))


def keeper(loaded: Loaded, lanes: Lanes) -> Keeper:
    """What keeps projections current beside the lanes. ConfigError for a query that cannot be used."""
    kept = []
    for one in projections(loaded) if loaded.settings.projections else ():
        refresh = loaded.settings.projections[one.name].refresh
        if refresh != "manual":
            kept.append(Kept(one, None if refresh == "on_change" else timespan(refresh).total_seconds()))
    return Keeper(kept, lambda: refreshing(loaded), lambda: _committed(lanes))


def _committed(lanes: Lanes) -> dict[str, object]:
    """By target; of the store of events by all lanes that bring it events."""
    runs = lanes.all()
    store = tuple(run.applied_at for run in runs if run.lane.sink == EVENT_STORE)
    return {**{run.lane.id: run.applied_at for run in runs}, **({EVENT_STORE: store} if store else {})}


def _projector(loaded: Loaded) -> Any:
    engine, settings = loaded.settings.engine, loaded.settings
    places = _places(loaded)
    paths = (str(said["path"]).partition("://") for said in places.values())
    stores = sorted({scheme for scheme, is_url, _ in paths if is_url})
    own = {} if engine == adapters.LOCAL else {engine: dict(getattr(settings, engine)), "stores": stores}
    return load(GROUP, engine, f"{loaded.where('engine')}: ")({"sinks": {**places, **_databases(loaded)}, **own})


def _places(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """The sinks in lakes."""
    settings = loaded.settings
    sinks = {name: adapters.options(one) for name, one in settings.sinks.items() if getattr(one, "path", None)}
    if settings.event_store is not None and settings.event_store.path is not None:
        sinks[EVENT_STORE] = adapters.options(settings.event_store)
    return {name: {key: said[key] for key in PLACE if key in said} for name, said in sinks.items()}


def _databases(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """The sinks in PostgreSQL that are tables, or one."""
    settings = loaded.settings
    sinks: dict[str, tuple[str, Any]] = {
        name: (one.kind, one) for name, one in settings.sinks.items() if getattr(one, "kind", "") in HELD_IN_DATABASES
    }
    if settings.event_store is not None:
        sinks[EVENT_STORE] = (EVENT_STORE, settings.event_store)
    said = {name: {"holds": kind, **adapters.options(one)} for name, (kind, one) in sinks.items()}
    return {
        name: {key: one[key] for key in ("holds", *IN_DATABASE) if key in one} for name, one in said.items() if "dsn" in one
    }


def _lineage(loaded: Loaded) -> Lineage | None:
    said = loaded.settings.lineage
    if said is None:
        return None
    kind = "file" if said.path is not None else "http"
    made: Lineage = load(LINEAGE, kind, f"{loaded.where('lineage')}: ")(adapters.options(said))
    return made


def _read(loaded: Loaded, name: str) -> tuple[Query | None, list[Finding]]:
    """The query of a projection, or what is wrong with it and where."""
    said = loaded.settings.projections[name]
    line = ("projections", name, "sql")
    text = _text(Path(said.sql))
    if text is None:
        why = f"cannot be read as text of at most {LARGEST} bytes" if Path(said.sql).is_file() else "is not there"
        sentence = f"projections.{name}.sql names a file that {why}: {Path(said.sql).absolute()}"
        return None, [_finding(loaded, line, "unreadable", sentence, "name the file with its query")]
    query, wrong = read_query(text, Said(loaded.settings.engine, list(said.inputs), said.partition_by, said.parameters))
    if query is not None and (why := _unreadable(loaded, query)):
        wrong = [Wrong(1, "sql_engine", f"is not read by the engine {loaded.settings.engine!r}: {why}")]
    where = f"{loaded.where(*line)}: " if wrong else ""
    found = [Finding("error", w.code, f"{where}projection {name} {w.sentence}", said.sql, w.line, w.step) for w in wrong]
    unread = [] if query is None else [table for table in said.inputs if table not in query.keys]
    for table in unread:
        sentence = f"projections.{name}.inputs.{table}: the query does not read it"
        found.append(_finding(loaded, ("projections", name, "inputs", table), "unused_input", sentence, "remove it"))
    return (None if found else query), found


def _unreadable(loaded: Loaded, query: Query) -> str:
    projector = load(GROUP, loaded.settings.engine, f"{loaded.where('engine')}: ")
    return str(projector.unreadable(query.text))


def _finding(loaded: Loaded, path: tuple[str | int, ...], code: str, sentence: str, step: str) -> Finding:
    while path and path not in loaded.origins:
        path = path[:-1]
    origin = loaded.origins[path]
    return Finding("error", code, sentence, origin.file, origin.line, step)


def _text(file: Path) -> str | None:
    """The text of a file; None where it is none, or too long."""
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        raw = opened.read(LARGEST + 1)
    try:
        return raw.decode("utf-8-sig") if len(raw) <= LARGEST else None
    except UnicodeDecodeError:
        return None


def _projection(loaded: Loaded, name: str, query: Query) -> Projection:
    said = loaded.settings.projections[name]
    return Projection(
        name=name,
        query=query.text,
        inputs=tuple(_input(table, value, query) for table, value in said.inputs.items()),
        sink=said.sink,
        into=said.into or name,
        keys=tuple(said.keys or ()),
        partition_by=said.partition_by,
        fingerprint=_fingerprint(said, query),
        config_line=loaded.where("projections", name),
    )


def _input(table: str, value: str, query: Query) -> Input:
    sink, dot, name = value.partition(".")
    return Input(table, sink, name if dot else None, query.keys[table], query.columns)


def _fingerprint(said: ProjectionSettings, query: Query) -> str:
    parts = [query.text, dict(said.inputs), said.keys, said.partition_by]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
