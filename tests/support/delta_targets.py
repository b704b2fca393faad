"""Targets of `DeltaRsSink` for contract suites."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from adapters.sinks.delta.sink import DeltaRsSink

from .partitioned_sink import Choice, partition_sink


@dataclass
class DeltaTarget:
    folder: Path

    def open(self):
        return DeltaRsSink({"path": str(self.folder)})

    def rows(self, lane):
        return self.open().read(lane.into).to_pylist()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class PartitionedTarget(DeltaTarget):
    choice: Choice
    chosen: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def open(self):
        return partition_sink(super().open(), self.choice, self.chosen)

    def rows(self, lane):
        return super().open().read(lane.into).to_pylist()
