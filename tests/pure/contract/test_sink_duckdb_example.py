"""The sink of `examples/duckdb-sink` keeps the promises of `ports.sink`."""

from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.duckdb_target import DuckDbTarget

from adapters.engines.local import LocalEngine
from replicator.testing.sink_contract import SinkContract
from replicator.testing.sink_row_transforms import SinkColumnVersions


class OnDisk:
    numbers = count(1)

    @pytest.fixture(autouse=True)
    def folder(self):
        """In memory where there is such a folder: DuckDB waits for the disk at every commit."""
        memory = Path("/dev/shm")
        with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            self.parent = Path(folder)
            yield

    def new_target(self):
        return DuckDbTarget(self.parent / f"target{next(self.numbers)}")

    def new_engine(self):
        return LocalEngine()


class TestDuckDbSink(OnDisk, SinkContract):
    """Beside a DuckDB file, it has only published modules."""


class TestSequencesPerColumn(OnDisk, SinkColumnVersions):
    """Kept in the side table."""
