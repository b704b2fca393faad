"""Hints for records of another format than the configured one."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from support.dts_records import SAMPLES

from adapters.decoders.canal_json import CanalJsonDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.debezium_outbox import DebeziumOutboxDecoder
from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.decoders.ogg_json import OggJsonDecoder
from adapters.decoders.rows import RowsDecoder
from replicator.domain.change import RAW

OF_CANAL = {
    "data": [{"id": "1"}],
    "database": "a",
    "table": "t",
    "type": "INSERT",
    "isDdl": False,
    "mysqlType": {"id": "int"},
}
OF_MAXWELL = {"database": "a", "table": "t", "type": "insert", "ts": 1, "xid": 1, "data": {"id": 1}}
OF_GOLDENGATE = {"table": "A.T", "op_type": "I", "op_ts": "x", "current_ts": "x", "pos": "1", "after": {"ID": 1}}
OF_DEBEZIUM = {"before": None, "after": {"id": 1}, "op": "c", "source": {"connector": "mysql", "db": "a", "table": "t"}}
RECORDS = {
    "canal_json": json.dumps(OF_CANAL).encode(),
    "maxwell_json": json.dumps(OF_MAXWELL).encode(),
    "ogg_json": json.dumps(OF_GOLDENGATE).encode(),
    "debezium_json": json.dumps(OF_DEBEZIUM).encode(),
    "debezium_avro": b"\0\0\0\0\x0a\x02\x04hi",  # Whose id ends a line, for that matter.
    "dts_avro": (SAMPLES / "02_insert.bin").read_bytes(),
    "dms_csv": b"U,6,Mindy George,Los Angeles,2021-10-15",
}
DECODERS = {
    "canal_json": CanalJsonDecoder(),
    "maxwell_json": MaxwellJsonDecoder(),
    "ogg_json": OggJsonDecoder(),
    "debezium_json": DebeziumJsonDecoder(),
    "debezium_outbox": DebeziumOutboxDecoder(),
    "dts_avro": DtsAvroDecoder(),
    "rows": RowsDecoder(),
}
EVENTS = {("debezium_outbox", "debezium_json")}
"""What is of that format indeed, and only no event of an outbox."""


@pytest.mark.parametrize("other", RECORDS)
@pytest.mark.parametrize("mine", DECODERS)
def test_reject_names_the_detected_format(mine: str, other: str) -> None:
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "headers": None, "key": b"1"}
    [route] = DECODERS[mine].route(pa.Table.from_pylist([{**record, "value": RECORDS[other]}], RAW)).to_pylist()
    said = f"it looks like `format: {other}`" in (route["error"] or "")
    assert said == (mine != other and (mine, other) not in EVENTS), route


@pytest.mark.parametrize(
    ("value", "words"), [(b'{"after": {"id": 1}, "op": "c"}', "no source"), (b'{"a": 1}', "no op and no source")]
)
def test_reject_names_missing_fields(value: bytes, words: str) -> None:
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "headers": None, "key": None, "value": value}
    [route] = DebeziumJsonDecoder().route(pa.Table.from_pylist([record], RAW)).to_pylist()
    assert route["error"].endswith(f"it has {words}")


def test_unknown_bytes_have_no_format_hint() -> None:
    record = {"topic": "t", "partition": 0, "offset": 0, "timestamp": None, "headers": None, "key": b"1"}
    values = (b"hello", b"\0", b"\0\0\1", b"<xml/>", b"{", b"\xff\xfe", b'{"a": 1}')
    for mine, decoder in DECODERS.items():
        for route in decoder.route(pa.Table.from_pylist([{**record, "value": value} for value in values], RAW)).to_pylist():
            assert "looks like" not in (route["error"] or ""), (mine, route)
