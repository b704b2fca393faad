"""The decoder of outbox events keeps the promises of `ports.decoder`, in both forms."""

import json

import pyarrow as pa
import pytest

from adapters.decoders.debezium_outbox import DebeziumOutboxDecoder
from replicator.domain.change import RAW
from replicator.testing.decoder_contract import DecoderContract

SOURCE = {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "table": "outbox", "ts_us": 1}


def make_insert(n):
    row = {"id": f"e{n}", "aggregatetype": "order", "aggregateid": n % 3, "type": "é☃", "payload": json.dumps({"n": n})}
    return {"topic": "shop.public.outbox", "value": {"op": "c", "source": SOURCE, "after": row}, "headers": None}


def make_routed_event(n):
    headers = [{"name": "id", "value": b"e%d" % n}, {"name": "type", "value": b"placed"}]
    value = {"schema": {"type": "string", "optional": True}, "payload": json.dumps({"n": n})}
    return {"topic": f"outbox.event.kind{n % 2}", "value": value, "headers": headers, "key": b"7"}


class TestOutboxDecoder(DecoderContract):
    @pytest.fixture(autouse=True, params=[make_insert, make_routed_event], ids=["inserted", "routed"])
    def form(self, request):
        self.record = request.param

    def new_decoder(self):
        return DebeziumOutboxDecoder({})

    def samples(self):
        rows = [{"partition": 0, "offset": n, "timestamp": n} | self.record(n) for n in range(12)]
        return pa.Table.from_pylist([row | {"value": json.dumps(row["value"]).encode()} for row in rows], RAW)
