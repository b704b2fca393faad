"""Transaction markers of a connector."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from adapters.arrow.record_positions import split_parts
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from replicator.domain.change import RAW, TX, changes_schema
from replicator.domain.position import TopicPartition
from replicator.domain.table import Column, TableSpec
from replicator.domain.transactions import TransactionPart

DECODER = DebeziumJsonDecoder({})
TABLE = TableSpec("public.items", (Column("id", pa.int64()),), ("id",), 3)


def read_markers(*values):
    rows = [{"topic": "t", "partition": 0, "offset": n, "value": value} for n, value in enumerate(values)]
    return DECODER.marks(pa.Table.from_pylist(rows, RAW))


def value(status, name, events=None, schema=None):
    told = events and [{"data_collection": t, "event_count": n} for t, n in events.items()]
    payload = {"status": status, "id": name, "event_count": 1, "data_collections": told, "ts_ms": 1_700_000_000_000}
    return json.dumps({"schema": schema, "payload": payload} if schema else payload).encode()


@pytest.mark.parametrize("schema", [None, {"type": "struct"}])
def test_end_marker_has_the_number_of_changes(schema):
    begun, ended = read_markers(
        value("BEGIN", "758:27065792", None, schema), value("END", "758:27067144", {"public.a": 2}, schema)
    )
    assert (begun.tx, begun.ended, dict(begun.events)) == ("758", False, {})
    assert (ended.tx, ended.name, ended.ended, dict(ended.events)) == ("758", "758:27067144", True, {"public.a": 2})
    assert (ended.partition, ended.offset, ended.at.year) == (TopicPartition("t", 0), 1, 2023)


@pytest.mark.parametrize("name", ["3e11fa47-71ca-11e1-9e33-c80aa9429562:23", "0-1-42", "file=mysql-bin.000003,pos=154"])
def test_other_databases_have_one_form_of_transaction_ids(name):
    assert [mark.tx for mark in read_markers(value("END", name))] == [name]


@pytest.mark.parametrize("text", [None, b"", b"{", b"[]", b"1", b"{}", value("WHAT", "1:2"), b'{"status": "END"}'])
def test_invalid_marker_is_ignored(text):
    assert not read_markers(text)


def test_parts_are_counted_by_transaction_and_partition():
    rows = [("1", "c", 0), ("1", "u", 0), ("2", "d", 0), (None, "c", 0), ("9", "r", 0), ("1", "c", 1), ("1", None, 1)]
    schema = changes_schema(TABLE)
    made = [
        {**dict.fromkeys(schema.names), TX: tx, "_op": op, "_topic": "i", "_partition": partition, "_offset": n, "id": n}
        for n, (tx, op, partition) in enumerate(rows)
    ]
    frame = pa.Table.from_pylist(made, pa.schema([field.with_nullable(True) for field in schema]))
    zero, one = TopicPartition("i", 0), TopicPartition("i", 1)
    expected = [
        TransactionPart("1", "x", zero, 2, 0, 1),
        TransactionPart("2", "x", zero, 1, 2, 2),
        TransactionPart("1", "x", one, 2, 5, 6),
    ]
    assert set(split_parts(frame, "x")) == set(expected)
