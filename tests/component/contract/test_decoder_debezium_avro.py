"""`DebeziumAvroDecoder` follows the contract of `ports.decoder`, and decodes the same changes as `DebeziumJsonDecoder`."""

from __future__ import annotations

import pytest
from hypothesis import assume
from servers.schema_registry import API
from support.avro_of_connect import Avro, decode_without_fingerprints

from adapters.decoders.debezium_avro import DebeziumAvroDecoder, get_schemas
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.testing.contract import for_all
from replicator.testing.debezium import make_raw_frame
from replicator.testing.decoder_contract import DecoderContract
from replicator.testing.histories import histories, make_random_history


class TestDebeziumAvroDecoder(DecoderContract):
    @pytest.fixture(autouse=True)
    def _registry(self, registry):
        self.url = f"{registry}{API}"
        self.good = Avro(self.url).frame(make_raw_frame(make_random_history(1, 30, toast=True, keys=("composite",))))

    def new_decoder(self):
        return DebeziumAvroDecoder({"registry": {"url": self.url}})

    def samples(self):
        return self.good


@pytest.mark.parametrize("tombstones", ["ignore", "delete"])
def test_random_histories_are_equal_in_avro_and_json(registry, tombstones):
    url = f"{registry}{API}"
    get_schemas.cache_clear()  # Mutated records used ids that the registry assigns now.
    avro = Avro(url)

    @for_all(history=histories(toast=True))
    def check(history):
        spoken = {e.version for e in history.events if e.key is not None}
        assume(history.events and (not history.table().keys or spoken == {e.version for e in history.events}))
        raw = make_raw_frame(history)
        mine = DebeziumAvroDecoder({"registry": {"url": url}, "tombstones": tombstones})
        assert decode_without_fingerprints(mine, avro.frame(raw)) == decode_without_fingerprints(
            DebeziumJsonDecoder({"tombstones": tombstones}), raw
        )
