"""Targets of `DeltaRsSink` for contract suites."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from support.partitioned import Choice, partitioned

from adapters.sinks.delta.sink import DeltaRsSink


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
        return partitioned(super().open(), self.choice, self.chosen)

    def rows(self, lane):
        return super().open().read(lane.into).to_pylist()
