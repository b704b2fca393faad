"""The container: builds and connects the parts of a running pipeline. The only use of dependency_injector."""

from __future__ import annotations

import threading
from typing import Any

from dependency_injector import containers, providers

from replicator import __version__
from replicator.application.control import Control
from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.status import StatusReporter
from replicator.application.quarantine.rejects import KeyFile, Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import InstanceLock
from replicator.application.supervisor import Supervisor
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter

from . import build, daemon, projections
from .daemon_page import DaemonPage
from .pipeline_setup import PipelineSetup


def build_telemetry() -> Any:
    """New metrics."""
    return load_adapter("replicator.telemetry", "prometheus")(__version__)


class Container(containers.DeclarativeContainer):
    """One running pipeline. `loaded` is given, or `setup` for another pipeline than the configured one. Every other part is
    built once, at its first use."""

    loaded: providers.Dependency[Loaded] = providers.Dependency(instance_of=Loaded)
    setup = providers.Singleton(PipelineSetup.from_config, loaded)

    options = providers.Singleton(PipelineSetup.build_options, setup)
    stop = providers.Singleton(threading.Event)
    telemetry = providers.Singleton(build_telemetry)
    engine = providers.Singleton(PipelineSetup.build_engine, setup)
    dead_letters = providers.Singleton(PipelineSetup.build_dead_letters, setup)
    sinks = providers.Singleton(PipelineSetup.build_sinks, setup)
    register = providers.Singleton(PipelineSetup.build_register, setup)

    instance = providers.Singleton(InstanceLock, setup.provided.workspace.folder, setup.provided.name)
    lanes = providers.Singleton(LaneRuns, telemetry)
    key_file = providers.Singleton(KeyFile, providers.Callable(build.get_key_file, setup.provided.loaded))
    rejects = providers.Singleton(
        Rejects, dead_letters, engine.provided.frames, stop, options, telemetry, secret=key_file.provided.load_hashes
    )
    runtime = providers.Singleton(
        RuntimeContext, engine=engine, lanes=lanes, rejects=rejects, telemetry=telemetry, options=options, stop=stop
    )
    workers = providers.Singleton(build.build_workers, sinks, runtime, setup.provided.spill_folder)
    pipelines = providers.Singleton(build.build_pipelines, setup.provided.inputs, register, workers, runtime)

    supervisor = providers.Singleton(
        Supervisor, pipelines.provided.values.call(), workers.provided.values.call(), dead_letters, runtime
    )
    status = providers.Singleton(StatusReporter, pipelines.provided.values.call(), runtime)
    unmatched = providers.Callable(build.describe_unmatched, loaded, pipelines, rejects)
    control = providers.Singleton(Control, lanes, pipelines)
    monitor = providers.Singleton(DaemonPage, loaded, telemetry)
    projection_scheduler = providers.Singleton(projections.build_scheduler, loaded, lanes)
    checkpoint_scheduler = providers.Singleton(build.build_checkpoint_scheduler, loaded, lanes, workers)
    diff_scheduler = providers.Singleton(build.build_diff_scheduler, loaded, lanes, telemetry)
    heartbeat = providers.Callable(build.find_heartbeat, pipelines)
    views = providers.Singleton(
        daemon.build_views,
        loaded,
        status,
        control,
        heartbeat.provider,
        projections=projection_scheduler,
        checkpoints=checkpoint_scheduler,
    )
