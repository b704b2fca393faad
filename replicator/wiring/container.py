"""The container: builds and connects the parts of a running pipeline. The only use of dependency_injector."""

from __future__ import annotations

import threading
from typing import Any

from dependency_injector import containers, providers

from replicator import __version__
from replicator.application.control import Control
from replicator.application.instance_lock import InstanceLock
from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.status import StatusReporter
from replicator.application.quarantine.key_file import KeyFile
from replicator.application.quarantine.rejects import Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.stream.file_register import FileRegister
from replicator.application.supervisor import Supervisor
from replicator.settings import Loaded

from . import adapters, build, daemon, projections
from .plugins import load_adapter


def build_telemetry() -> Any:
    """New metrics."""
    return load_adapter("replicator.telemetry", "prometheus")(__version__)


class Container(containers.DeclarativeContainer):
    """One running pipeline. `loaded` is given; every other part is built once, at its first use."""

    loaded: providers.Dependency[Loaded] = providers.Dependency(instance_of=Loaded)

    options = providers.Singleton(build.build_options, loaded)
    stop = providers.Singleton(threading.Event)
    telemetry = providers.Singleton(build_telemetry)
    engine = providers.Singleton(adapters.build_engine, loaded)
    dead_letters = providers.Singleton(adapters.build_dead_letters, loaded)
    sinks = providers.Singleton(adapters.build_sinks, loaded)
    register = providers.Singleton(FileRegister, providers.Callable(build.get_register_folder, loaded))

    instance = providers.Singleton(
        InstanceLock, providers.Callable(adapters.get_state_folder, loaded), loaded.provided.settings.pipeline
    )
    lanes = providers.Singleton(LaneRuns, telemetry)
    key_file = providers.Singleton(KeyFile, providers.Callable(build.get_key_file, loaded))
    rejects = providers.Singleton(
        Rejects, dead_letters, engine, stop, options, telemetry, secret=key_file.provided.load_hashes
    )
    runtime = providers.Singleton(
        RuntimeContext, engine=engine, lanes=lanes, rejects=rejects, telemetry=telemetry, options=options, stop=stop
    )
    spill_folder: providers.Object[Any] = providers.Object(None)
    workers = providers.Singleton(build.build_workers, sinks, runtime, spill_folder)
    pipelines = providers.Singleton(build.build_pipelines, loaded, workers, register, runtime)

    supervisor = providers.Singleton(build.build_supervisor, Supervisor, pipelines, workers, dead_letters, runtime)
    status = providers.Singleton(build.build_status, StatusReporter, pipelines, runtime)
    unmatched = providers.Callable(build.describe_unmatched, loaded, pipelines, rejects)
    control = providers.Singleton(Control, lanes, pipelines)
    monitor = providers.Singleton(build.build_monitor, loaded, telemetry)
    projection_scheduler = providers.Singleton(projections.build_scheduler, loaded, lanes)
    checkpoint_scheduler = providers.Singleton(build.build_checkpoint_scheduler, loaded, lanes, workers)
    diff_scheduler = providers.Singleton(build.build_diff_scheduler, loaded, lanes, telemetry)
    heartbeat = providers.Factory(build.Heartbeat, pipelines)
    views = providers.Singleton(
        daemon.build_views,
        loaded,
        status,
        control,
        heartbeat,
        keeper=projection_scheduler,
        snapshotting=checkpoint_scheduler,
    )
