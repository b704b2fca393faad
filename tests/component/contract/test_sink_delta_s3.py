"""`DeltaRsSink` follows the contract of `ports.sink`, in an object store."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from servers.object_store import ObjectStore
from support.variants import STORE_TESTS

from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.testing.sink_contract import SinkContract


@dataclass
class StoredTarget:
    store: ObjectStore
    options: dict[str, Any] = field(init=False)

    def __post_init__(self):
        self.options = self.store.lake()

    def open(self):
        return DeltaRsSink(self.options)

    def rows(self, lane):
        return self.open().read(lane.into).to_pylist()

    def close(self):
        """The server drops everything when it ends."""


@pytest.mark.slow
class TestDeltaRsSinkInAnObjectStore(SinkContract):
    """`DeltaRsSink`; one in forty random histories is run, because a request takes a moment."""

    one_in = 40
    always = STORE_TESTS

    @pytest.fixture(autouse=True)
    def server(self, s3):
        self.s3 = s3

    def new_target(self):
        return StoredTarget(self.s3)

    def new_engine(self):
        return LocalEngine()
