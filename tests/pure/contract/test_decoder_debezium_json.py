"""`DebeziumJsonDecoder` keeps the promises of `ports.decoder`, with schemas in the messages."""

import json

import pyarrow as pa
from paths import GOLDEN

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.change import RAW
from replicator.testing.debezium import make_raw_frame
from replicator.testing.decoder_contract import DecoderContract
from replicator.testing.histories import make_random_history

RECORDED = GOLDEN / "decoders" / "debezium"


class TestDebeziumJsonDecoder(DecoderContract):
    def new_decoder(self):
        return DebeziumJsonDecoder({})

    def samples(self):
        return make_raw_frame(make_random_history(1, 30, toast=True, keys=("composite",)))

    def make_recorded(self):
        """Topics of PostgreSQL and MariaDB, with schemas."""
        return pa.concat_tables(map(topic, sorted([*RECORDED.glob("postgres/*.jsonl"), *RECORDED.glob("mariadb/*.jsonl")])))


def topic(path):
    """The raw frame of a recorded topic."""
    rows = []
    for record in map(json.loads, path.read_text().splitlines()):
        headers = [{"name": name, "value": value.encode()} for name, value in record["headers"]]
        texts = {name: None if record[name] is None else record[name].encode() for name in ("key", "value")}
        rows.append({**record, **texts, "timestamp": record["timestamp"][1], "headers": headers})
    return pa.Table.from_pylist(rows, RAW)
