"""`DmsCsvDecoder` keeps the promises of `ports.decoder`, with header rows and with declared columns."""

import pyarrow as pa
import pytest

from adapters.decoders.dms_csv import DmsCsvDecoder
from replicator.domain.change import RAW
from replicator.testing.decoder_contract import DecoderContract
from replicator.testing.decoder_fuzz import alter_csv

TYPES = {"id": "int64", "name": "string", "price": "decimal(10,2)", "at": "timestamp[us]"}
FILE = 1_700_000_000_000


def row(n, quoted='"{}, ""{}""\n"'):
    """Row `n` of a file; every third holds what must be in quotes."""
    name = quoted.format("é☃" * n, n) if n % 3 == 0 else "plain"
    return f"{n % 4},{name},{n}.50,2024-02-29 23:59:59.{n:06d}"


def make_record(n):
    headers = [{"name": "dms.columns", "value": b"Op,id,name,price,at"}, {"name": "dms.kind", "value": b"cdc"}]
    return {"value": f"{'IUD'[n % 3]},{row(n)}".encode(), "headers": headers}


def headless(n):
    """The full load has no operations."""
    if n < 4:
        return {"value": row(n).encode(), "headers": [{"name": "dms.kind", "value": b"load"}]}
    return {"value": f"{'IUD'[n % 3]},{row(n)}".encode()}


def frame(record):
    times = [{"topic": "app.items", "partition": 0, "offset": (FILE << 21) + n, "timestamp": FILE} for n in range(12)]
    return pa.Table.from_pylist([time | record(n) for n, time in enumerate(times)], RAW)


class TestDmsCsvDecoder(DecoderContract):
    @pytest.fixture(autouse=True, params=["headed", "untyped", "headless"])
    def kind(self, request):
        self.schema = {} if request.param == "untyped" else {"app.items": TYPES}
        self.record = headless if request.param == "headless" else make_record

    def new_decoder(self):
        return DmsCsvDecoder({"schema": self.schema, "keys": {"app.*": ["id"]}})

    def samples(self):
        return frame(self.record)

    def mutate_record(self, value, rng):
        return alter_csv(value, rng)
