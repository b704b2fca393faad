"""`DeltaRsSink` keeps the promises of `ports.sink`, on a local disk."""

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from adapters.engines.local import LocalEngine
from adapters.sinks.delta_rs import DeltaRsSink
from replicator.testing.sink_contract import SinkContract


@dataclass
class DeltaTarget:
    folder: Path

    def open(self):
        return DeltaRsSink({"path": str(self.folder)})

    def rows(self, lane):
        return self.open().read(lane.into).to_pylist()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class TestDeltaRsSink(SinkContract):
    numbers = count(1)

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.parent = tmp_path

    def new_target(self):
        return DeltaTarget(self.parent / f"lake{next(self.numbers)}")

    def new_engine(self):
        return LocalEngine()
