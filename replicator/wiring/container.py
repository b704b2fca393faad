"""The setup of a pipeline, the container that builds and connects its parts, and runs as part of other commands."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dependency_injector import containers, providers

from replicator import __version__
from replicator.application.lane_runs import LaneRuns
from replicator.application.operations.dead_letters import RetryResult, retry_selected
from replicator.application.operations.rebuild import SPILL_FOLDER
from replicator.application.operations.status import StatusReporter
from replicator.application.options import RuntimeOptions
from replicator.application.quarantine.rejects import KeyFile, Rejects
from replicator.application.runtime_context import RuntimeContext
from replicator.application.state_folder import REGISTER_FOLDER, FileRegister, InstanceLock
from replicator.application.supervisor import Supervisor
from replicator.domain.errors import ExitCode, Fatal, Fenced
from replicator.ports.engine import Engine
from replicator.ports.options import to_timedelta
from replicator.ports.runtime import ShowProgress
from replicator.ports.sink import Sink
from replicator.ports.stores import DeadLetterFilter, DeadLetters
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter

from . import adapters, build
from .build import PipelineInput
from .daemon_client import ask_status

# The setup of one run: the sources, lanes, sinks and files of a pipeline, and their differences from the config.


MAX_OFFSETS = 2**62
GATHER_SECONDS = 60.0
"""Maximum seconds that a batch run gathers changes before it commits, so that a kill loses little work."""
PATIENCE_SECONDS = 75.0
"""Longer than `GATHER_SECONDS`, so that other calls of a sink end in time."""


@dataclass(frozen=True)
class PipelineSetup:
    """The parts of one run, which the container builds once each.

    - `engine`: its name. `folder`: the files of the pipeline on this machine.
    - `inputs`: the records of the run, and its lanes.
    - `lakes`: by sink, the folder of a lake that takes the place of the configured one.
    - `dead_letters`: the folder of a store that takes the place of the configured one.
    - `in_batches`: few large commits are wanted, not soon visible rows.
    - `is_whole`: each source is read as one batch.
    """

    loaded: Loaded
    engine: str
    folder: Path
    inputs: Sequence[PipelineInput]
    lakes: Mapping[str, Path] = field(default_factory=dict)
    dead_letters: Path | None = None
    in_batches: bool = False
    is_whole: bool = False

    @classmethod
    def from_config(cls, loaded: Loaded, files: Mapping[str, Sequence[str]] | None = None) -> PipelineSetup:
        """The configured pipeline. `files`: only these sources, and of each only these files and earlier ones."""
        used = {table.source for table in loaded.settings.tables if files is None or table.source in files}
        sources = [name for name in loaded.settings.sources if name in used]
        sinks = adapters.list_used_sinks(loaded, sources)
        inputs = [
            PipelineInput(
                name,
                partial(
                    adapters.build_source,
                    loaded,
                    name,
                    sinks=len(sinks),
                    sources=len(sources),
                    files=(files or {}).get(name),
                ),
                partial(adapters.build_decoder, loaded, name),
                rules_for=build.build_rules_for(loaded, name),
                sinks=adapters.list_used_sinks(loaded, [name]),
                is_private=adapters.is_private(loaded, name),
                has_backfills=adapters.has_backfills(loaded, name),
                event_logs=build.build_event_logs(loaded, name),
                transactions=build.build_transaction_rules(loaded, name),
                on_reject=loaded.settings.on_reject,
            )
            for name in sources
        ]
        is_whole = all(loaded.settings.sources[name].is_whole for name in sources)
        return cls(loaded, str(loaded.settings.engine), adapters.get_state_folder(loaded), inputs, is_whole=is_whole)

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.loaded.settings.pipeline

    @property
    def spill_folder(self) -> Path | None:
        """The folder in which the rows of a new target wait for its one commit."""
        return self.folder / SPILL_FOLDER if self.in_batches else None

    def build_options(self) -> RuntimeOptions:
        """The limits of the run, from `limits`, `max_rejects` and `dead_letters`."""
        settings, sinks, sources = self.loaded.settings, len(self._list_sinks()), len(self.inputs)
        size = adapters.compute_batch_bytes(self.loaded, sinks, sources)
        options = RuntimeOptions(
            handover_bytes=adapters.compute_waiting_bytes(self.loaded, size, sinks, sources),
            hold_bytes=size,
            # Rejects in a temporary lake end no run, and no command could show their dead letters.
            max_rejects=None if self.lakes else settings.max_rejects,
            log_rejects=not self.lakes,
            reject_patience=to_timedelta(settings.dead_letters.patience).total_seconds(),
        )
        if self.is_whole:  # Otherwise a lane that is behind reads in slices.
            options = replace(options, catch_up_offsets=MAX_OFFSETS)
        if not self.in_batches:
            return options
        # No reader waits for new rows, and fewer, larger commits are less work.
        queue_bytes = adapters.compute_gathering_bytes(self.loaded, size, sinks, sources)
        options = replace(options, handover_bytes=queue_bytes, gather=GATHER_SECONDS)
        return replace(options, state_patience=PATIENCE_SECONDS, new_patience=PATIENCE_SECONDS)

    def build_engine(self) -> Engine[Any]:
        """The engine."""
        return adapters.build_engine(self.loaded, self.engine, prefetches=self.in_batches)

    def build_register(self) -> FileRegister:
        """The register of the pipeline."""
        return FileRegister(self.folder / REGISTER_FOLDER)

    def build_dead_letters(self) -> DeadLetters:
        """The store of rejected records."""
        return adapters.build_dead_letters(self.loaded, self.dead_letters)

    def build_sinks(self) -> dict[str, Sink[Any]]:
        """The sinks of the lanes, by name."""
        return {name: self.open_sink(name) for name in self._list_sinks()}

    def open_sink(self, name: str) -> Sink[Any]:
        """A sink that writes targets."""
        lake = self.lakes.get(name)
        if lake is not None:
            return adapters.open_lake(lake)
        return adapters.build_engine_sink(self.loaded, name, self.engine)

    def _list_sinks(self) -> list[str]:
        used = {name for one in self.inputs for name in one.sinks}
        return [name for name in self.loaded.settings.sinks if name in used]


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

    instance = providers.Singleton(InstanceLock, setup.provided.folder, setup.provided.name)
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


# Runs a pipeline as part of another command: until it has caught up, or to retry dead letters.


def build_container(setup: PipelineSetup) -> Container:
    """The container of a pipeline that is not the configured one."""
    return Container(loaded=setup.loaded, setup=providers.Object(setup))


def run_until_caught_up(container: Container, show_progress: ShowProgress = nullcontext) -> Any:
    """Like `run --until-caught-up`; returns the supervisor.

    Fenced while another instance runs. The error of a lane or source that stopped. Fatal if not everything was
    applied.
    """
    container.instance().acquire()
    try:
        supervisor = container.supervisor()
        with show_progress(container.status()):
            code: ExitCode = supervisor.run(once=True)
    finally:
        container.instance().release()
    if code is not ExitCode.OK:
        problem = supervisor.problem
        raise problem.to_error() if problem is not None else Fatal("Not everything could be applied.")
    return supervisor


def retry_dead_letters(loaded: Loaded, which: DeadLetterFilter) -> RetryResult:
    """Retry the selected dead letters with this configuration. Fenced while the daemon runs."""
    if ask_status(loaded) is not None:
        raise Fenced(
            "the daemon is running, with the configuration of its start",
            next_step="Stop the daemon, repeat the command, and start the daemon again: it resumes.",
        )
    container = Container(loaded=loaded)
    with container.instance():
        pipelines: build.Pipelines = container.pipelines()
        workers = container.workers()
        for worker in workers.values():
            worker.start()
        try:
            return retry_selected(pipelines, container.runtime(), which)
        finally:
            container.runtime().abandon.set()
            for worker in workers.values():
                worker.finish()
                worker.join(None)
                worker.close_sink()
            for pipeline in pipelines.values():
                pipeline.context.source.close()
            container.dead_letters().close()
