"""Builds the projections of a configuration, and their refresher and scheduler."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.refresh import ProjectionRefresher, ProjectionScheduler, ScheduledProjection
from replicator.domain.errors import ConfigProblem, suggest_name
from replicator.domain.events import EVENT_STORE
from replicator.domain.patterns import is_exact
from replicator.domain.projection import GroupKey, Projection, ProjectionInput
from replicator.ports.adapter_options import SinkOptions
from replicator.ports.options import to_timedelta
from replicator.ports.runtime import Lineage
from replicator.settings import ConfigError, Finding, Loaded
from replicator.settings.plugins import load_adapter
from replicator.settings.projections import sort_projections
from replicator.settings.queries import Query, QueryContext, QueryProblem, read_query
from replicator.settings.schema import put_event_store

from . import adapters

GROUP, LINEAGE = "replicator.projectors", "replicator.lineage"
MAX_QUERY_BYTES = 1024 * 1024
"""Maximum bytes of a query."""


def build_projections(loaded: Loaded) -> tuple[Projection, ...]:
    """Every projection, each after the projections that it reads. ConfigError with all problems of their queries."""
    configured = loaded.settings.projections
    queries_read = {name: _read_query(loaded, name) for name in configured}
    wrong = [finding for _, findings in queries_read.values() for finding in findings]
    if wrong:
        raise ConfigError(wrong)
    targets = {name: (one.sink, one.into or name) for name, one in configured.items()}
    order = sort_projections({name: one.inputs for name, one in configured.items()}, targets)
    queries = {name: query for name, (query, _) in queries_read.items() if query is not None}
    projections = []
    for name in order:
        settings, query = configured[name], queries[name]
        inputs = []
        for table, value in settings.inputs.items():
            sink, dot, target = value.partition(".")
            inputs.append(ProjectionInput(table, sink, target if dot else None, query.keys[table], query.columns))
        parts = [query.text, dict(settings.inputs), settings.keys, settings.partition_by]
        projections.append(
            Projection(
                name=name,
                query=query.text,
                inputs=tuple(inputs),
                sink=settings.sink,
                into=settings.into or name,
                keys=tuple(settings.keys or ()),
                partition_by=settings.partition_by,
                fingerprint=hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32],
                config_line=loaded.describe_origin("projections", name),
            )
        )
    return tuple(projections)


def list_findings(loaded: Loaded) -> Sequence[Finding]:
    """The problems of projection queries."""
    return [finding for name in loaded.settings.projections for finding in _read_query(loaded, name)[1]]


def list_hints(loaded: Loaded) -> Iterator[Finding]:
    """Warnings for inputs that make refreshes by groups read more than necessary. Their rows are still right."""
    tables = [table for table in loaded.settings.tables if is_exact(table.match)]
    lanes = [lane for table in tables for lane in loaded.settings.resolve_entry_lanes(table, table.match)]
    for name, settings in loaded.settings.projections.items():
        query = _read_query(loaded, name)[0]
        for table, value in settings.inputs.items():
            key = query.keys.get(table) if query is not None else None
            for lane in (one for one in lanes if key is not None and f"{one.sink}.{one.into}" == value):
                for sentence, step in _describe_slow(loaded.settings.sinks[lane.sink], lane.options, key, value):
                    finding = make_finding(loaded, lane.at, "slow_groups", f"projection {name}: {sentence}", step)
                    yield replace(finding, severity="warning")


def _describe_slow(
    sink: SinkOptions, options: Mapping[str, Any], key: GroupKey | None, target: str
) -> Iterator[tuple[str, str]]:
    if not sink.is_lake:
        sentence = f"{target} is in {sink.what}, where the changed groups are unknown: each change computes all groups again"
        yield sentence, "read a target of the table in a lake instead, or set an interval, such as refresh: 5 minutes"
        return
    if not options.get("change_data_feed"):
        sentence = f"changes of {target} are found by reading whole files"
        yield sentence, "add change_data_feed: true"
    if not (options.get("partition_by") or options.get("cluster_by")):
        column = key and key.column
        step = f"add partition_by: [{column}], or a column computed from it" if column else "add partition_by"
        yield f"rows of a group may be in any file of {target}, so all files are read", step


def select_projections(loaded: Loaded, names: Sequence[str]) -> tuple[Projection, ...]:
    """The named projections, or all. ConfigProblem for an unknown name, and if none is configured."""
    projections = build_projections(loaded)
    known_names = [one.name for one in projections]
    if not known_names:
        raise ConfigProblem(
            "the configuration has no projection",
            next_step="Add one, for example projections: {sums: {sql: sums.sql, inputs: {orders: lake.orders}, sink: lake}}",
        )
    for name in names:
        if name not in known_names:
            hint = suggest_name(name, known_names) or f"there are: {', '.join(known_names)}"
            raise ConfigProblem(f"there is no projection {name!r}", next_step=f"{hint[:1].upper()}{hint[1:]}")
    return tuple(one for one in projections if not names or one.name in names)


@contextmanager
def open_refresher(loaded: Loaded) -> Iterator[ProjectionRefresher]:
    """A refresher of projections on the pipeline's engine."""
    with ExitStack() as opened:
        projector = opened.enter_context(closing(_build_projector(loaded, opened)))
        lineage = loaded.settings.lineage
        namespace = (lineage and lineage.namespace) or loaded.settings.pipeline
        receiver: Lineage | None = None
        if lineage is not None:
            kind = "file" if lineage.path is not None else "http"
            factory = load_adapter(LINEAGE, kind, f"{loaded.describe_origin('lineage')}: ")
            receiver = factory(adapters.list_options(lineage))
        yield ProjectionRefresher(projector, namespace, receiver)


def build_scheduler(loaded: Loaded, lanes: LaneRuns) -> ProjectionScheduler:
    """The scheduler that keeps projections current while lanes run. ConfigError for an unusable query."""
    scheduled = []
    for one in build_projections(loaded) if loaded.settings.projections else ():
        refresh = loaded.settings.projections[one.name].refresh
        if refresh != "manual":
            seconds = None if refresh == "on_change" else to_timedelta(refresh).total_seconds()
            scheduled.append(ScheduledProjection(one, seconds))
    return ProjectionScheduler(scheduled, lambda: open_refresher(loaded), lambda: _list_committed(lanes))


def _list_committed(lanes: LaneRuns) -> dict[str, object]:
    """By target, the last commit. For the event store, those of all lanes that write events."""
    runs = lanes.list_runs()
    store = tuple(run.applied_at for run in runs if run.lane.sink == EVENT_STORE)
    return {**{run.lane.id: run.applied_at for run in runs}, **({EVENT_STORE: store} if store else {})}


def _build_projector(loaded: Loaded, opened: ExitStack) -> Any:
    """The projector of the engine. It finds lakes by their locations; other sinks that projections name are `opened`."""
    loaded = replace(loaded, settings=put_event_store(loaded.settings))
    engine, store = loaded.settings.engine, loaded.settings.event_store
    sections = {**loaded.settings.sinks, **({} if store is None else {EVENT_STORE: store})}
    lakes = {name: section.for_projector(adapters.list_options(section)) for name, section in sections.items()}
    sinks: dict[str, Any] = {name: lake for name, lake in lakes.items() if lake is not None}
    paths = (str(lake["path"]).partition("://") for lake in sinks.values())
    stores = sorted({scheme for scheme, is_url, _ in paths if is_url})
    configured = loaded.settings.projections.values()
    inputs = {value.partition(".")[0] for one in configured for value in one.inputs.values()}
    for name in ({one.sink for one in configured} | inputs) - sinks.keys():
        sinks[name] = opened.enter_context(closing(cast(Any, adapters.build_sink(loaded, name)))).features
    own = {} if engine == adapters.LOCAL else {engine: dict(getattr(loaded.settings, engine)), "stores": stores}
    return load_adapter(GROUP, engine, f"{loaded.describe_origin('engine')}: ")({"sinks": sinks, **own})


def _read_query(loaded: Loaded, name: str) -> tuple[Query | None, list[Finding]]:
    """The query of a projection, or its problems with their locations."""
    settings = loaded.settings.projections[name]
    line = ("projections", name, "sql")
    path = Path(settings.sql)
    text = None
    if path.is_file():
        with path.open("rb") as file:
            raw = file.read(MAX_QUERY_BYTES + 1)
        with suppress(UnicodeDecodeError):
            text = raw.decode("utf-8-sig") if len(raw) <= MAX_QUERY_BYTES else None
    if text is None:
        why = f"cannot be read as text of at most {MAX_QUERY_BYTES} bytes" if path.is_file() else "is not there"
        sentence = f"projections.{name}.sql names a file that {why}: {path.absolute()}"
        return None, [make_finding(loaded, line, "unreadable", sentence, "name the file with its query")]
    query, wrong = read_query(
        text, QueryContext(loaded.settings.engine, list(settings.inputs), settings.partition_by, settings.parameters)
    )
    if query is not None:
        projector = load_adapter(GROUP, loaded.settings.engine, f"{loaded.describe_origin('engine')}: ")
        why = str(projector.unreadable(query.text))
        if why:
            wrong = [QueryProblem(1, "sql_engine", f"is not read by the engine {loaded.settings.engine!r}: {why}")]
    at = f"{loaded.describe_origin(*line)}: " if wrong else ""
    findings = [Finding("error", w.code, f"{at}projection {name} {w.sentence}", settings.sql, w.line, w.step) for w in wrong]
    unread = [] if query is None else [table for table in settings.inputs if table not in query.keys]
    for table in unread:
        sentence = f"projections.{name}.inputs.{table}: the query does not read it"
        findings.append(make_finding(loaded, ("projections", name, "inputs", table), "unused_input", sentence, "remove it"))
    return (None if findings else query), findings


def make_finding(loaded: Loaded, path: tuple[str | int, ...], code: str, sentence: str, step: str) -> Finding:
    """An error at the line of `path` in the config, or of its nearest parent that has one."""
    while path and path not in loaded.origins:
        path = path[:-1]
    origin = loaded.origins[path]
    return Finding("error", code, sentence, origin.file, origin.line, step)
