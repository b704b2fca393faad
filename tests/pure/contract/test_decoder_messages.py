"""Decoders of messages keep the promises of `ports.decoder`: Canal, Maxwell, GoldenGate."""

import json

import pyarrow as pa
import pytest
from paths import GOLDEN

from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.decoders.ogg_json import OggJsonDecoder
from replicator.domain.change import RAW
from replicator.domain.transform.columns import Mask
from replicator.testing.decoder_contract import DecoderContract

SAMPLES = GOLDEN / "decoders" / "messages"
TYPES = {"id": "bigint(20)", "name": "varchar(40)", "price": "decimal(10,2) unsigned", "at": "datetime(6)", "raw": "blob"}
DECLARED = {"id": "int64", "name": "string", "price": "decimal(10,2)", "at": "timestamp[us]", "raw": "binary"}


def frame(texts):
    rows = [{"topic": "all", "partition": 0, "offset": n, "timestamp": 1_700_000_000_000 + n} for n in range(len(texts))]
    values = [json.dumps(text, ensure_ascii=False).encode() for text in texts]
    return pa.Table.from_pylist([r | {"value": v} for r, v in zip(rows, values, strict=True)], RAW)


def row(n):
    return {"id": n, "name": "é☃" * n, "price": f"{n}.50", "at": "2024-02-29 23:59:59.123456", "raw": "AA=="}


def canal(n):
    kind = ("INSERT", "UPDATE", "DELETE")[n % 3]
    data = [{k: None if v is None else str(v) for k, v in row(k).items()} for k in (n, n + 1)]
    return {
        "data": data,
        "old": [{"name": "old"}, {"id": "77"}] if kind == "UPDATE" else None,
        "type": kind,
        "database": "shop",
        "table": "items",
        "mysqlType": TYPES,
        "pkNames": ["id"],
        "isDdl": False,
        "es": 1_700_000_000_000,
    }


def maxwell(n):
    kind = ("insert", "update", "delete", "bootstrap-insert")[n % 4]
    old = {"old": {"id": 77} if n % 8 == 1 else {"name": "old"}} if kind == "update" else {}
    return {"database": "shop", "table": "items", "type": kind, "ts": 1_700_000_000, "xid": n, "data": row(n), **old}


def ogg(n):
    kind = "IUD"[n % 3]
    images = {
        "I": {"after": row(n)},
        "U": {"before": row(n // 2), "after": {"id": n, "price": 5.5}},
        "D": {"before": row(n)},
    }
    return {"table": "SHOP.ITEMS", "op_type": kind, "op_ts": "2024-02-29 10:00:00.5", "pos": f"{n:020}", **images[kind]}


FORMATS = {
    "canal": (CanalJsonDecoder, {}, canal),
    "canal-declared": (CanalJsonDecoder, {"schema": {"shop.*": DECLARED}}, canal),
    "maxwell": (MaxwellJsonDecoder, {"schema": {"shop.items": DECLARED}, "keys": {"shop.items": ["id"]}}, maxwell),
    "maxwell-private": (
        MaxwellJsonDecoder,
        {
            **{"schema": {"shop.items": DECLARED}, "keys": {"shop.items": ["id"]}},
            **{"private": {"shop.items": {"id": Mask("hmac", b"k" * 16), "name": Mask("truncate", b"k" * 16, 2)}}},
        },
        maxwell,
    ),
    "ogg": (OggJsonDecoder, {"schema": {"SHOP.ITEMS": DECLARED}, "keys": {"SHOP.ITEMS": ["id"]}}, ogg),
}


class TestMessageDecoders(DecoderContract):
    @pytest.fixture(autouse=True, params=list(FORMATS))
    def kind(self, request):
        self.decoder, self.options, self.message = FORMATS[request.param]

    def new_decoder(self):
        return self.decoder(self.options)

    def samples(self):
        return frame([self.message(n) for n in range(12)])

    def make_recorded(self):
        """Of other tables, so only where these need no declaration."""
        texts = [
            json.loads(line)
            for path in SAMPLES.glob("canal-*.jsonl")
            for line in path.read_text().splitlines()
            if line.strip()
        ]
        return frame(texts if self.decoder is CanalJsonDecoder else [])
