"""DTS records in the form that `dts_binlog_parser` prints."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from support import dts_sales
from support.dts_records import (
    BIGINT,
    DATETIME,
    TEXT,
    TIMESTAMP,
    VARCHAR,
    encode_record,
    make_datetime,
    make_dts_frame,
    make_integer,
    make_record,
    make_text,
    make_value,
)

from adapters.decoders.dts_avro import DtsAvroDecoder
from adapters.decoders.dts_avro.record_printer import sort_like_scala


def print_records(*said):
    decoder = DtsAvroDecoder({})
    return decoder.features.print_records(make_dts_frame(*said)).to_pylist()


def test_full_load_of_sales():
    rows = print_records(*dts_sales.make_loaded_messages())
    utc = [(*row[:4], datetime(1970, 1, 1, tzinfo=UTC), *row[5:]) for row in dts_sales.PRINTED]
    assert [tuple(row[name] for name in dts_sales.NAMES) for row in rows] == utc
    assert [row["error"] for row in rows] == [None] * 4


@pytest.mark.parametrize(
    ("names", "order"),
    [
        # Documented by Alibaba: a full load of sales, and a table without a key.
        (["id", "date", "name", "sales"], ["sales", "date", "name", "id"]),
        (["id", "name", "__#alibaba_rds_row_id#__"], ["__#alibaba_rds_row_id#__", "name", "id"]),
        ([], []),
    ],
)
def test_column_order_equals_that_of_scala(names, order):
    assert sort_like_scala(names) == order


def test_column_order_loses_no_name():
    names = [f"c{n}é" for n in range(100)]
    assert sorted(sort_like_scala(names)) == sorted(names) and sort_like_scala(names) == sort_like_scala(names)


def test_printed_values_of_an_image():
    fields = {"id": BIGINT, "seen": TIMESTAMP, "at": DATETIME, "none": VARCHAR, "bytes": TEXT, "odd": VARCHAR}
    image = [
        make_integer(7),
        make_value("Timestamp", timestamp=1_618_239_451, millis=5),
        make_datetime(2024, 2, 29, 1, 2, 3, 4),
        None,
        make_value("BinaryObject", type="BLOB", value=b"\x00\xff"),
        make_text(b"\xff"),
    ]
    absent = [make_integer(7), "NULL", "NONE", None, "NONE", "NONE"]
    [row] = print_records(make_record("UPDATE", fields, absent, image))
    assert row["beforeImages"] == '{"id":"7"}'
    shown = {"id": "7", "seen": "1618239451.000005", "at": "2024-02-29 01:02:03.000004", "bytes": "AP8=", "odd": "/w=="}
    assert row["afterImages"] == "{" + ",".join(f'"{name}":"{shown[name]}"' for name in sort_like_scala(shown)) + "}"
    assert row["fields"] == '["id","seen","at","none","bytes","odd"]'
    assert row["extraTags"] == '{"pk_uk_info":"{\\"PRIMARY\\":[\\"id\\"]}","thread_id":"163931"}'


@pytest.mark.parametrize(
    ("name", "shown"),
    [(None, "null.null"), ("mydb", "mydb."), ("mydb.t1", "mydb.t1"), ("a.b.c\\u002Ed", "a.c.d")],
)
def test_table_names(name, shown):
    [row] = print_records(make_record("DDL", after="drop table x", objectName=name))
    assert (row["dbTable"], row["fields"], row["afterImages"]) == (shown, "[]", "drop table x")


def test_invalid_record_has_its_reason():
    wrong = make_record("INSERT", {"id": BIGINT}, None, [make_integer(1), make_integer(2)])
    far = make_record("INIT", {"id": BIGINT}, None, [make_integer(1)], sourceTimestamp=1 << 60)
    rows = print_records(b"junk", wrong, None, far, encode_record(make_record("BEGIN")))
    assert [(row["recordType"], bool(row["error"])) for row in rows] == [
        (None, True), (None, True), (None, False), ("INIT", False), ("BEGIN", False),
    ]  # fmt: skip
    assert rows[3]["recordTimestamp"] is None and "an image of 2 values, and 1 field" in rows[1]["error"]
