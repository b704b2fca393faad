"""`LocalEngine` keeps the promises of `ports.engine`."""

from adapters.engines.local import LocalEngine
from replicator.testing.engine_contract import EngineContract


class TestLocalEngine(EngineContract):
    def new_engine(self):
        return LocalEngine()
