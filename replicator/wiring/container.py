"""The container: how the parts of a running pipeline are put together. The only use of dependency_injector."""

from __future__ import annotations

import threading
from typing import Any

from dependency_injector import containers, providers

from replicator import __version__
from replicator.application.control import Control
from replicator.application.instance import InstanceLock
from replicator.application.key_file import KeyFile
from replicator.application.lanes import Lanes
from replicator.application.register import FileRegister
from replicator.application.rejects import Rejects
from replicator.application.shared import Shared
from replicator.application.status import Status
from replicator.application.supervisor import Supervisor
from replicator.settings import Loaded

from . import adapters, daemon, parts, projections
from .plugins import load


def telemetry() -> Any:
    """Metrics, counted from now on."""
    return load("replicator.telemetry", "prometheus")(__version__)


class Container(containers.DeclarativeContainer):
    """One running pipeline; `loaded` is given, the rest follows. Every part is built once, when it is first asked for."""

    loaded: providers.Dependency[Loaded] = providers.Dependency(instance_of=Loaded)

    options = providers.Singleton(parts.options, loaded)
    stop = providers.Singleton(threading.Event)
    telemetry = providers.Singleton(telemetry)
    engine = providers.Singleton(adapters.engine, loaded)
    dead_letters = providers.Singleton(adapters.dead_letters, loaded)
    sinks = providers.Singleton(adapters.sinks, loaded)
    register = providers.Singleton(FileRegister, providers.Callable(parts.register_folder, loaded))

    instance = providers.Singleton(
        InstanceLock, providers.Callable(adapters.state_folder, loaded), loaded.provided.settings.pipeline
    )
    lanes = providers.Singleton(Lanes, telemetry)
    key_file = providers.Singleton(KeyFile, providers.Callable(parts.key_file, loaded))
    rejects = providers.Singleton(Rejects, dead_letters, engine, stop, options, telemetry, secret=key_file.provided.hashes)
    shared = providers.Singleton(
        Shared, engine=engine, lanes=lanes, rejects=rejects, telemetry=telemetry, options=options, stop=stop
    )
    laid: providers.Object[Any] = providers.Object(None)
    workers = providers.Singleton(parts.workers, sinks, shared, laid)
    pipelines = providers.Singleton(parts.pipelines, loaded, workers, register, shared)

    supervisor = providers.Singleton(parts.supervisor, Supervisor, pipelines, workers, dead_letters, shared)
    status = providers.Singleton(parts.status, Status, pipelines, shared)
    unmatched = providers.Callable(parts.unmatched, loaded, pipelines, rejects)
    control = providers.Singleton(Control, lanes, pipelines)
    monitor = providers.Singleton(parts.monitor, loaded, telemetry)
    keeper = providers.Singleton(projections.keeper, loaded, lanes)
    snapshotting = providers.Singleton(parts.snapshotting, loaded, lanes, workers)
    pulse = providers.Factory(parts.Pulse, pipelines)
    views = providers.Singleton(daemon.views, loaded, status, control, pulse, keeper=keeper, snapshotting=snapshotting)
