"""The store of events that a configuration names."""

from __future__ import annotations

from replicator.application.emitting import Emitting
from replicator.domain.errors import ConfigProblem
from replicator.ports.event_store import EventStore
from replicator.settings import Loaded

from .adapters import LOCAL, event_limits, options
from .plugins import load, names

GROUP = "replicator.event_stores"


def store(loaded: Loaded) -> EventStore:
    """The store of events, by its place and the pipeline's engine. ConfigProblem when the configuration names none."""
    settings = loaded.settings.event_store
    if settings is None:
        raise ConfigProblem(
            "the configuration names no store of events",
            next_step="Add one, for example event_store: {path: ./deltalake/events}",
        )
    kind = "delta" if settings.path is not None else "postgres"
    engine = loaded.settings.engine
    of_engine = f"{kind}_{engine}"
    if engine == LOCAL or of_engine not in names(GROUP):
        made: EventStore = load(GROUP, kind, f"{loaded.where('event_store')}: ")(options(settings))
        return made
    scheme, is_url, _ = (settings.path or "").partition("://")
    given = {**options(settings), engine: dict(getattr(loaded.settings, engine)), "stores": [scheme] if is_url else []}
    on_engine: EventStore = load(GROUP, of_engine, f"{loaded.where('event_store')}: ")(given)
    return on_engine


def emitting(loaded: Loaded) -> Emitting:
    """What stores events; its store is open until it is closed."""
    return Emitting(store(loaded), event_limits(loaded))
