"""`LocalEngine` keeps the promises of `ports.engine`."""

import pytest

from adapters.engines.decode_pool import NUMBER
from adapters.engines.local import LocalEngine
from replicator.testing.engine_contract import EngineContract, EnginePrefetchContract


class TestLocalEngine(EngineContract):
    def new_engine(self):
        return LocalEngine()


@pytest.mark.skipif(not NUMBER, reason="needs two processors, and files in memory")
class TestLocalEnginePrefetch(EnginePrefetchContract):
    def new_engine(self):
        return LocalEngine({"ahead": 2})
