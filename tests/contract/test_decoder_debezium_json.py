"""`DebeziumJsonDecoder` keeps the promises of `ports.decoder`, with schemas in the messages."""

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.testing.debezium import raw_frame
from replicator.testing.decoder_contract import DecoderContract
from replicator.testing.histories import random_history


class TestDebeziumJsonDecoder(DecoderContract):
    def new_decoder(self):
        return DebeziumJsonDecoder({})

    def samples(self):
        return raw_frame(random_history(1, 30, toast=True, keys=("composite",)))
