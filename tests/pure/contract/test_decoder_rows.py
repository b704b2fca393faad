"""`RowsDecoder` keeps the promises of `ports.decoder`, with types in the records and with declared ones."""

import json

import pyarrow as pa
import pytest

from adapters.decoders.rows import RowsDecoder
from replicator.domain.change import RAW
from replicator.testing.decoder_contract import DecoderContract

TYPES = {"id": "int64", "name": "string", "price": "decimal(10,2)", "tags": {"list": "string"}}
DECLARED = {**TYPES, "tags": "list<string>"}


def row(n):
    return {"id": n % 4, "name": "é☃" * n, "price": f"{n}.50", "tags": ["a", None]}


def make_typed_row(n):
    own = {"_op": "crud"[n % 4], "_version": n // 3, "_order": 1, "_row": n}
    before = {"_before": {"id": n % 4 + 10, "name": "old"}} if n % 4 == 2 else {}
    return {"schema": TYPES, "payload": {**own, **before, **row(n)}}


def bare(n):
    return {"kind": (1, 2, 3, "r")[n % 4], "at": n // 3, "no": str(n), **row(n)}


def frame(value):
    rows = [{"topic": "items", "partition": 0, "offset": n, "timestamp": 1_700_000_000_000 + n} for n in range(12)]
    values = [json.dumps(value(n), ensure_ascii=False, separators=(",", ":")).encode() for n in range(12)]
    return pa.Table.from_pylist([r | {"value": v} for r, v in zip(rows, values, strict=True)], RAW)


FOREIGN = {
    "schema": {"items": DECLARED},
    "operation_column": "kind",
    "sequence_columns": ["at", "no"],
    "operations": {"create": [1], "update": 2, "delete": [3], "read": ["r"]},
}


class TestRowsDecoder(DecoderContract):
    @pytest.fixture(autouse=True, params=["typed", "declared"])
    def kind(self, request):
        self.options, self.value = ({}, make_typed_row) if request.param == "typed" else (FOREIGN, bare)

    def new_decoder(self):
        return RowsDecoder({**self.options, "keys": {"items": ["id"]}})

    def samples(self):
        return frame(self.value)
