"""Opens the event store of a configuration."""

from __future__ import annotations

from replicator.application.operations.event_emitter import EventEmitter
from replicator.domain.errors import ConfigProblem
from replicator.ports.event_store import EventStore
from replicator.settings import Loaded

from .adapters import LOCAL, build_event_limits, list_options
from .plugins import list_names, load_adapter

GROUP = "replicator.event_stores"


def open_store(loaded: Loaded) -> EventStore:
    """The event store, by its location and the pipeline's engine. ConfigProblem if the configuration has none."""
    settings = loaded.settings.event_store
    if settings is None:
        raise ConfigProblem(
            "the configuration has no event store",
            next_step="Add one, for example event_store: {path: ./deltalake/events}",
        )
    kind = "delta" if settings.path is not None else "postgres"
    engine = loaded.settings.engine
    of_engine = f"{kind}_{engine}"
    if engine == LOCAL or of_engine not in list_names(GROUP):
        made: EventStore = load_adapter(GROUP, kind, f"{loaded.describe_origin('event_store')}: ")(list_options(settings))
        return made
    scheme, is_url, _ = (settings.path or "").partition("://")
    given = {**list_options(settings), engine: dict(getattr(loaded.settings, engine)), "stores": [scheme] if is_url else []}
    on_engine: EventStore = load_adapter(GROUP, of_engine, f"{loaded.describe_origin('event_store')}: ")(given)
    return on_engine


def make_emitter(loaded: Loaded) -> EventEmitter:
    """An emitter of events. Its store stays open until it is closed."""
    return EventEmitter(open_store(loaded), build_event_limits(loaded))
