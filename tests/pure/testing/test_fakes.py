"""The fakes keep the promises of the ports that they stand in for."""

import pytest

from adapters.engines.local import LocalEngine
from replicator.testing.decoder_contract import DecoderContract
from replicator.testing.engine_contract import make_fake_raw
from replicator.testing.fakes import FakeDecoder, FakeSource, FakeTarget
from replicator.testing.histories import make_random_history
from replicator.testing.sink_contract import SinkContract
from replicator.testing.source_contract import SourceContract

pytestmark = pytest.mark.slow


class TestFakeSink(SinkContract):
    def new_target(self):
        return FakeTarget()

    def new_engine(self):
        return LocalEngine()


class TestFakeDecoder(DecoderContract):
    def new_decoder(self):
        return FakeDecoder()

    def samples(self):
        return make_fake_raw(make_random_history(1, 30, keys=("composite",)))

    test_mutated_records_are_accounted_for = None
    """Its records are frames that tests make themselves: none is broken."""


class MemoryStream(FakeSource):
    topic, partitions = "cdc.public.items", 3

    def publish(self, records):
        self.add_records(records)

    def open(self):
        return self


class TestFakeSource(SourceContract):
    def new_stream(self):
        return MemoryStream(identity={"cdc.public.items": "one"})
