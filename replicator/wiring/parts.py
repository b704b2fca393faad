"""Parts of a pipeline that are built per source or per sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from replicator.application.crashes import Crashes
from replicator.application.lanes import Lanes
from replicator.application.options import Options
from replicator.application.pipeline import Pipeline
from replicator.application.rejects import Rejects
from replicator.application.roster import Place
from replicator.application.rules import RulesFor, TableRules, TransactionRules, event_log_lane
from replicator.application.shared import Shared
from replicator.application.snapshotting import Snapshotting
from replicator.application.status import Status
from replicator.application.supervisor import Supervisor
from replicator.application.workers import Worker
from replicator.domain.patterns import matches
from replicator.ports.dead_letters import DeadLetters
from replicator.ports.frames import Lane
from replicator.ports.register import Register
from replicator.ports.sink import Sink
from replicator.settings import Loaded
from replicator.settings.fields import timespan

from . import adapters
from .daemon_page import DaemonPage

Workers = Mapping[str, Worker[Any]]
Pipelines = Mapping[str, Pipeline[Any]]


EVERY_OFFSET = 2**62


def options(loaded: Loaded) -> Options:
    """The application's bounds, from `limits`, `max_rejects` and `dead_letters`."""
    size = adapters.batch_bytes(loaded)
    waiting = adapters.waiting_bytes(loaded, size)
    patience = timespan(loaded.settings.dead_letters.patience).total_seconds()
    most = loaded.settings.max_rejects
    made = Options(handover_bytes=waiting, hold_bytes=size, max_rejects=most, reject_patience=patience)
    used = [loaded.settings.sources[table.source] for table in loaded.settings.tables]
    # A lane that is behind reads in pieces, unless whatever there is to read is one batch.
    return replace(made, catch_up_offsets=EVERY_OFFSET) if all(source.is_whole for source in used) else made


GATHER_SECONDS = 60.0
"""Of a run that nobody watches; then what there is is committed, lest a kill takes more."""
PATIENCE_SECONDS = 75.0
"""More than that: who waits for sinks gets an answer."""


def gathering(loaded: Loaded) -> Options:
    """`options` of a run that nobody watches for what is new: fewer, larger commits are less work."""
    made = options(loaded)
    most = adapters.gathering_bytes(loaded, made.hold_bytes)
    made = replace(made, state_patience=PATIENCE_SECONDS, new_patience=PATIENCE_SECONDS)
    return replace(made, handover_bytes=most, gather=GATHER_SECONDS)


def register_folder(loaded: Loaded) -> Path:
    """Where the pipeline remembers what it saw of its sources."""
    return adapters.state_folder(loaded) / "sources"


def key_file(loaded: Loaded) -> Path:
    """The secret of the keys of rejected records: beside the list of rows that were forgotten, where a replay finds it."""
    return adapters.erasures(loaded).path.with_name("keys.secret")


def workers(sinks: Mapping[str, Sink[Any]], shared: Shared[Any], laid: Path | None) -> Workers:
    """One worker per sink."""
    return {name: Worker(name, sink, shared, laid and laid / quote(name, safe="")) for name, sink in sinks.items()}


def pipelines(loaded: Loaded, of_sinks: Workers, register: Register, shared: Shared[Any]) -> Pipelines:
    """One pipeline per source that some table names."""
    named = {table.source for table in loaded.settings.tables}
    out = {}
    for name in loaded.settings.sources:
        if name in named:
            place = Place(
                name=name,
                source=adapters.source(loaded, name),
                rules_for=rules_for(loaded, name),
                logs=event_logs(loaded, name),
                workers=of_sinks,
                register=register,
                transactions=transactions(loaded, name),
                on_reject=loaded.settings.on_reject,
                crashes=crashes(loaded, name, shared),
                private=adapters.is_private(loaded, name),
                has_backfills=adapters.has_backfills(loaded, name),
            )
            out[name] = Pipeline(place, adapters.decoder(loaded, name), shared)
    return out


def crashes(loaded: Loaded, source: str, shared: Shared[Any]) -> Crashes[Any]:
    """What records of the source did to earlier runs."""
    path = register_folder(loaded) / f"{quote(source, safe='')}.crashes"
    return Crashes(path, shared.engine, shared.rejects, source, shared.decoding)


def transactions(loaded: Loaded, source: str) -> TransactionRules | None:
    """How the lanes of one source are held together, if they are."""
    said = loaded.settings.sources[source].transactions
    if said is None:
        return None
    together = loaded.settings.engine == "local"
    return TransactionRules(said.topic, said.max_transaction_bytes, timespan(said.patience).total_seconds(), together)


def rules_for(loaded: Loaded, source: str) -> RulesFor:
    """What the configuration says of the tables of one source."""

    def rules(table: str) -> TableRules | None:
        entry = loaded.settings.table_for(table, source)
        if entry is None:
            return None
        found = loaded.settings.lanes_for(table, source)
        keys = next((lane.keys for lane in found if lane.keys), ())
        lanes = tuple(adapters.lane(loaded, lane) for lane in found)
        logs = frozenset(loaded.settings.event_logs_for(table, source))
        private = bool(adapters.private([entry], loaded.settings.defaults))
        return TableRules(lanes, tuple(keys), logs, loaded.settings.on_reject_of(table, source), private)

    return rules


def event_logs(loaded: Loaded, source: str) -> tuple[Lane, ...]:
    """The event-log lanes of one source."""
    settings = loaded.settings
    names = settings.event_logs_of(source)
    return tuple(event_log_lane(settings.pipeline, source, name, loaded.where("sinks", name)) for name in names)


def snapshotting(loaded: Loaded, lanes: Lanes, of_sinks: Workers) -> Snapshotting:
    """What takes snapshots beside the lanes."""
    from .snapshotting import snapshotting as made  # noqa: PLC0415 - it runs pipelines of its own

    return made(loaded, lanes, of_sinks)


def supervisor(
    make: Callable[..., Supervisor[Any]], of_sources: Pipelines, of_sinks: Workers, letters: DeadLetters, shared: Shared[Any]
) -> Supervisor[Any]:
    """The supervisor of all of them."""
    return make(tuple(of_sources.values()), tuple(of_sinks.values()), letters, shared)


def status(make: Callable[..., Status[Any]], of_sources: Pipelines, shared: Shared[Any]) -> Status[Any]:
    """What takes the snapshots."""
    return make(tuple(of_sources.values()), shared)


def monitor(loaded: Loaded, telemetry: Any) -> DaemonPage:
    """The daemon's page."""
    return DaemonPage(loaded, telemetry)


def unmatched(loaded: Loaded, of_sources: Pipelines, rejects: Rejects[Any]) -> list[str]:
    """A sentence for each entry of `tables` that no table seen so far matches, in records that were rejected either: a name
    may be misspelt. Records that were rejected before their table was known may be of any."""
    sentences = []
    for number, entry in enumerate(loaded.settings.tables):
        kinds = {kind: records for kind, records in rejects.kinds.items() if kind.source == entry.source}
        seen = sorted({*of_sources[entry.source].roster.topics, *(kind.table for kind in kinds if kind.table)})
        if not any(matches(entry.match, table) for table in seen):
            unread = sum(records for kind, records in kinds.items() if not kind.table)
            more = f"; of {unread:,} rejected records the table could not be read" if unread else ""
            line = loaded.where("tables", number, "match")
            sentences.append(f"no table matched {entry.match} ({line}); seen: {_some(seen)}{more}")
    return sentences


def _some(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more


class Pulse:
    """When a pipeline last turned, on the monotonic clock; the slowest of them counts."""

    def __init__(self, of_sources: Pipelines) -> None:
        self._pipelines = of_sources

    def __call__(self) -> float:
        """The moment, in seconds."""
        return min((p.turned for p in self._pipelines.values()), default=0.0)
