"""The setup of one run: the sources, lanes, sinks and files of a pipeline, and their differences from the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from replicator.application.operations.rebuild import SPILL_FOLDER
from replicator.application.options import RuntimeOptions
from replicator.application.state_folder import FileRegister
from replicator.ports.engine import Engine
from replicator.ports.sink import Sink
from replicator.ports.stores import DeadLetters
from replicator.settings import Loaded

from . import adapters, build
from .build import PipelineLanes, PipelineSource

Inputs = Sequence[tuple[PipelineSource, PipelineLanes]]
"""The sources of a run, each with its lanes."""


@dataclass(frozen=True)
class Workspace:
    """The engine, files and targets of a pipeline.

    - `engine`: its name. `folder`: its files on this machine.
    - `lakes`: by sink, the folder of a lake that takes the place of the configured one.
    - `dead_letters`: the folder of a store that takes the place of the configured one.
    - `is_temporary`: no number of rejects ends a run.
    """

    engine: str
    folder: Path
    lakes: Mapping[str, Path] = field(default_factory=dict)
    dead_letters: Path | None = None
    is_temporary: bool = False

    @classmethod
    def from_config(cls, loaded: Loaded) -> Workspace:
        """The workspace of the configured pipeline."""
        return cls(str(loaded.settings.engine), adapters.get_state_folder(loaded))

    @property
    def register_folder(self) -> Path:
        """The folder with what the pipeline has read so far."""
        return self.folder / build.REGISTER_FOLDER


@dataclass(frozen=True)
class PipelineSetup:
    """The parts of one run, which the container builds once each. `in_batches`: few large commits are wanted, not soon
    visible rows."""

    loaded: Loaded
    workspace: Workspace
    inputs: Inputs
    in_batches: bool = False
    log_rejects: bool = True
    is_whole: bool = False
    """Each source is read as one batch."""

    @classmethod
    def from_config(cls, loaded: Loaded, files: Mapping[str, Sequence[str]] | None = None) -> PipelineSetup:
        """The configured pipeline. `files`: only these sources, and of each only these files and earlier ones."""
        used = {table.source for table in loaded.settings.tables if files is None or table.source in files}
        sources = [name for name in loaded.settings.sources if name in used]
        sinks = adapters.list_used_sinks(loaded, sources)
        inputs = [_make_input(loaded, name, len(sinks), (files or {}).get(name)) for name in sources]
        return cls(loaded, Workspace.from_config(loaded), inputs, is_whole=build.are_whole(loaded, sources))

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.loaded.settings.pipeline

    @property
    def spill_folder(self) -> Path | None:
        """The folder in which the rows of a new target wait for its one commit."""
        return self.workspace.folder / SPILL_FOLDER if self.in_batches else None

    def build_options(self) -> RuntimeOptions:
        """The limits of the run."""
        make = build.build_batch_options if self.in_batches else build.build_options
        made = make(self.loaded, len(self._list_sinks()), is_whole=self.is_whole)
        most = None if self.workspace.is_temporary else made.max_rejects
        return replace(made, max_rejects=most, log_rejects=self.log_rejects)

    def build_engine(self) -> Engine[Any]:
        """The engine."""
        make = adapters.build_prefetching_engine if self.in_batches else adapters.build_engine
        return make(self.loaded, self.workspace.engine)

    def build_register(self) -> FileRegister:
        """The register of the pipeline."""
        return FileRegister(self.workspace.register_folder)

    def build_dead_letters(self) -> DeadLetters:
        """The store of rejected records."""
        folder = self.workspace.dead_letters
        return adapters.build_dead_letters(self.loaded) if folder is None else adapters.open_dead_letters(folder)

    def build_sinks(self) -> dict[str, Sink[Any]]:
        """The sinks of the lanes, by name."""
        return {name: self.open_sink(name) for name in self._list_sinks()}

    def open_sink(self, name: str) -> Sink[Any]:
        """A sink that writes targets."""
        lake = self.workspace.lakes.get(name)
        if lake is not None:
            return adapters.open_lake(lake)
        return adapters.build_engine_sink(self.loaded, name, self.workspace.engine)

    def _list_sinks(self) -> list[str]:
        used = {name for _, lanes in self.inputs for name in lanes.sinks}
        return [name for name in self.loaded.settings.sinks if name in used]


def _make_input(loaded: Loaded, name: str, sinks: int, files: Sequence[str] | None) -> tuple[PipelineSource, PipelineLanes]:
    """A configured source and its lanes."""
    source = PipelineSource(
        name,
        partial(adapters.build_source, loaded, name, sinks=sinks, files=files),
        partial(adapters.build_decoder, loaded, name),
        adapters.is_private(loaded, name),
        adapters.has_backfills(loaded, name),
    )
    lanes = PipelineLanes(
        build.build_rules_for(loaded, name),
        adapters.list_used_sinks(loaded, [name]),
        build.build_event_logs(loaded, name),
        build.build_transaction_rules(loaded, name),
        loaded.settings.on_reject,
    )
    return source, lanes
