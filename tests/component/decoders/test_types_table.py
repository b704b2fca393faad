"""The tables of docs/reference/types.md against the code: column types, and results of values.

The code fills in the cells of types. Read the result:

    REPLICATOR_ACCEPT=1 python -m pytest tests/component/decoders/test_types_table.py
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import Schema
from paths import PROJECT
from servers.schema_registry import API
from sqlalchemy.dialects import postgresql
from support.avro_of_connect import Avro
from support.debezium_events import ID, make_change_event, make_column, make_payload, make_raw_records
from support.dts_records import BIGINT, NAMESPACE, PARTS, encode_record, make_integer, make_record

from adapters.decoders.canal_json import CanalFormat, CanalJsonDecoder
from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.dms_csv import DmsCsvDecoder
from adapters.decoders.dts_avro import rows as dts
from adapters.decoders.dts_avro.decoder import DtsAvroDecoder, DtsFormat
from adapters.decoders.json.type_names import find_type_reader
from adapters.decoders.maxwell_json import MaxwellJsonDecoder
from adapters.decoders.messages.message import MessageFormat
from adapters.decoders.ogg_json import OggJsonDecoder
from adapters.decoders.rows import RowsDecoder
from adapters.decoders.rows.dms_parquet import DmsParquetDecoder
from adapters.delta.types import storage_type
from adapters.postgres.types import new_type
from adapters.sources.files.immutable import find_read_type, slice_to_json
from replicator.domain.change import RAW
from replicator.domain.table import Column
from replicator.ports.decoder import Decoder

PAGE = PROJECT / "docs" / "reference" / "types.md"
ACCEPT = bool(os.environ.get("REPLICATOR_ACCEPT"))
REFUSED = "refused"
HERE = "<the value>"
PREFIXES = {"time.": "io.debezium.time.", "data.": "io.debezium.data.", "connect.": "org.apache.kafka.connect.data."}
FIELDS = {
    "VariableScaleDecimal": (("scale", "int32"), ("value", "bytes")),
    "geometry.Point": (("x", "double"), ("y", "double"), ("wkb", "bytes"), ("srid", "int32")),
    "geometry.Geometry": (("wkb", "bytes"), ("srid", "int32")),
}
DECIMAL = re.compile(r"(.*)\((\d+|-),(\d+)\)\Z")
PARQUET: Mapping[str, pa.DataType] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "fixed_size_binary[16]": pa.binary(16),
    "decimal128(38, 10)": pa.decimal128(38, 10),
    "decimal256(60, 5)": pa.decimal256(60, 5),
    "timestamp[us, tz=Europe/Berlin]": pa.timestamp("us", "Europe/Berlin"),
    "list<item: int32>": pa.list_(pa.int32()),
    "struct<a: int32>": pa.struct([("a", pa.int32())]),
}


# -- the page ----------------------------------------------------------------------------------------------------------


def find_table_rows(kind: str, name: str, page: str) -> tuple[int, int]:
    """Start and end of the rows of a table in the page."""
    start = page.index(f"<!-- {kind}: {name} -->\n")
    head = page.index("\n| --- ", start)
    return page.index("\n", head + 1) + 1, page.index("<!-- end -->", head)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows(kind: str, name: str) -> list[list[str]]:
    page = PAGE.read_text(encoding="utf-8")
    first, end = find_table_rows(kind, name, page)
    return [cells(line) for line in page[first:end].splitlines()]


def strip_backticks(cell: str) -> str:
    return cell.strip("`")


# -- column types ------------------------------------------------------------------------------------------------------


def connect(type_name: str, name: str = "v") -> dict[str, Any]:
    """The Kafka Connect schema for a type of the page."""
    kind, _, rest = type_name.partition(" ")
    if kind == "array":
        return make_column(name, "array", items=connect(rest.removeprefix("of "), "item"))
    if kind == "map":
        return make_column(name, "map", keys={"type": "string"}, values=connect(rest.removeprefix("of "), "item"))
    logical, parameters = rest, None
    if found := DECIMAL.match(rest):
        logical, digits = found[1], {} if found[2] == "-" else {"connect.decimal.precision": found[2]}
        parameters = {"scale": found[3], **digits}
    for short, long in PREFIXES.items():
        if logical.startswith(short):
            logical = long + logical.removeprefix(short)
    fields = next((pairs for end, pairs in FIELDS.items() if logical.endswith(end)), None) if kind == "struct" else None
    more: dict[str, Any] = {"fields": [make_column(n, k) for n, k in fields]} if fields else {}
    return make_column(name, kind, logical or None, **({"parameters": parameters} if parameters else {}), **more)


def make_sent_change(type_name: str, value: str = "null") -> tuple[Column, dict[str, Any]]:
    """The column of a Kafka Connect schema, and a change with this value."""
    return decode_value(DebeziumJsonDecoder({}), frame_of(type_name, value))


def frame_of(type_name: str, value: str) -> pa.Table:
    return make_raw_records(
        [
            make_change_event([ID, connect(type_name)], after={"id": 1, "v": HERE}).replace(
                json.dumps(HERE).encode(), value.encode()
            )
        ]
    )


def decode_value(decoder: Decoder, frame: pa.Table) -> tuple[Column, dict[str, Any]]:
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    [change] = decoder.decode(frame, spec).to_pylist()
    return spec.column("v"), change


def parquet(name: str) -> pa.DataType | None:
    return find_read_type(PARQUET[name] if name in PARQUET else pa.type_for_alias(name.removesuffix("[day]")))


def make_typed_column(form: MessageFormat, type_name: str) -> Column | None:
    """The column that a format gives to a type."""
    return form.column("v", type_name)


MAKE: Mapping[str, Callable[[str], Column | pa.DataType | None]] = {
    "debezium": lambda type_name: make_sent_change(type_name)[0],
    "declared": lambda type_name: find_type_reader(type_name).type,
    "mysql": partial(make_typed_column, CanalFormat()),
    "dts": partial(make_typed_column, DtsFormat()),
    "parquet": parquet,
}


def derive_cells(column_or_type: Column | pa.DataType | None) -> list[str]:
    """The cells of a type: Arrow, Delta, PostgreSQL."""
    if column_or_type is None:
        return [REFUSED] * 3
    of = column_or_type if isinstance(column_or_type, Column) else Column("v", column_or_type)
    return [
        f"`{cell}`"
        for cell in (format_type(of.type), delta(of.type), str(new_type(of).compile(dialect=postgresql.dialect())).lower())
    ]


def format_type(arrow: pa.DataType) -> str:
    return str(arrow).replace("|", "\\|")


def delta(arrow: pa.DataType) -> str:
    """The name of the column's type in delta-rs."""
    schema = Schema.from_arrow(pa.schema([("v", storage_type(arrow))]))
    return _delta(json.loads(schema.to_json())["fields"][0]["type"])


def _delta(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{_delta(kind['elementType'])}>"
        case "map":
            return f"map<{_delta(kind['keyType'])}, {_delta(kind['valueType'])}>"
    return "struct<" + ", ".join(f"{f['name']}: {_delta(f['type'])}" for f in kind["fields"]) + ">"


@pytest.mark.parametrize("name", MAKE)
def test_column_types_equal_the_page(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    first, end = find_table_rows("table", name, page)
    lines = []
    for row in map(cells, page[first:end].splitlines()):
        lines.append("| " + " | ".join([*row[:-3], *derive_cells(MAKE[name](strip_backticks(row[-4])))]) + " |\n")
    if ACCEPT:
        PAGE.write_text(page[:first] + "".join(lines) + page[end:], encoding="utf-8")
    assert ACCEPT or page[first:end] == "".join(lines), "read the page, then accept it with REPLICATOR_ACCEPT=1"


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("values", "debezium"), ids=" ".join)
def test_values_of_events_equal_the_page(row: list[str]) -> None:
    type_name, value, becomes = map(strip_backticks, row)
    _, change = make_sent_change(type_name, value)
    expect(becomes, change["_error"], change["v"])


NO_AVRO = {"2147483648", "9223372036854775808", "1.5", "1e39", "[[1], [2]]"}
"""Values of the page that Avro cannot encode in their type."""


def test_values_in_avro_decode_as_in_json(registry: str) -> None:
    avro, decoder = Avro(f"{registry}{API}"), DebeziumAvroDecoder({"registry": {"url": f"{registry}{API}"}})
    pairs = [pair for row in rows("values", "debezium") if (pair := tuple(map(strip_backticks, row[:2])))[1] not in NO_AVRO]
    assert {type_name for type_name, _ in pairs} == {strip_backticks(row[-4]) for row in rows("table", "debezium")}
    for type_name, value in pairs:
        frame = frame_of(type_name, value)
        # Compared as text, in which NaN equals NaN.
        assert str(decode_value(decoder, avro.frame(frame))) == str(decode_value(DebeziumJsonDecoder({}), frame)), (
            type_name,
            value,
        )


def decode_change(decoder: Decoder, record: bytes) -> dict[str, Any]:
    """The change of a record."""
    frame = pa.Table.from_pylist([{"topic": "t", "partition": 0, "timestamp": 0, "offset": 1, "value": record}], RAW)
    [route] = decoder.route(frame).to_pylist()
    assert route["error"] is None, route
    table = decoder.learn(frame, route["table"], route["fingerprint"])
    change: dict[str, Any] = decoder.decode(frame, table).to_pylist()[0]
    return change


def as_declared(type_name: str) -> dict[str, Any]:
    return {"schema": {"*": {"id": "int64", "v": type_name}}, "keys": {"*": ["id"]}}


def canal(type_name: str, value: str) -> dict[str, Any]:
    names = {"database": "d", "table": "t", "type": "INSERT", "pkNames": ["id"], "mysqlType": {"id": "int", "v": type_name}}
    row = json.dumps({**names, "data": [{"id": "1", "v": HERE}]}).replace(json.dumps(HERE), value)
    return decode_change(CanalJsonDecoder(), row.encode())


def maxwell(type_name: str, value: str) -> dict[str, Any]:
    row = {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": {"id": 1, "v": HERE}}
    return decode_change(
        MaxwellJsonDecoder(as_declared(type_name)), json.dumps(row).replace(json.dumps(HERE), value).encode()
    )


def ogg(type_name: str, value: str) -> dict[str, Any]:
    row = {"table": "d.t", "op_type": "I", "pos": "1", "after": {"id": 1, "v": HERE}}
    return decode_change(OggJsonDecoder(as_declared(type_name)), json.dumps(row).replace(json.dumps(HERE), value).encode())


def csv(type_name: str, value: str) -> dict[str, Any]:
    return decode_change(DmsCsvDecoder(as_declared(type_name)), f'I,1,"{value}"'.encode())


def dms_parquet(type_name: str, value: str) -> dict[str, Any]:
    arrow = PARQUET[type_name] if type_name in PARQUET else pa.type_for_alias(type_name.removesuffix("[day]"))
    found = json.loads(value)
    if pa.types.is_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        found = found.encode()
    cell = pa.array([found]).cast(arrow) if isinstance(found, str) else pa.array([found], arrow)
    prefix, columns = slice_to_json(pa.record_batch({"Op": ["I"], "id": [1], "v": cell}))
    [row] = zip(*columns.values(), strict=True)
    body = {"_file": 1, "_row": 1, **dict(zip(columns, row, strict=True))}
    return decode_change(DmsParquetDecoder({"keys": {"*": ["id"]}}), prefix + msgspec.json.encode(body) + b"}")


def of_dts(type_name: str, value: str) -> dict[str, Any]:
    [(branch, fields)] = json.loads(value).items()
    sent: Any = fields if isinstance(fields, str) else {**dict.fromkeys(PARTS if branch == "DateTime" else ()), **fields}
    if branch in ("Character", "BinaryObject", "BinaryGeometry"):
        sent["value"] = b64decode(sent["value"])
    kinds = {"id": BIGINT, "v": next(number for number, name in dts.NAMES.items() if name == type_name)}
    return decode_change(
        DtsAvroDecoder(),
        encode_record(make_record("INSERT", kinds, None, [make_integer(1), (f"{NAMESPACE}.{branch}", sent)])),
    )


def without_schema(type_name: str, value: str, option: str | None = None) -> dict[str, Any]:
    """The change of a Debezium record without schema, with this JSON in a column of this declared type."""
    text = json.dumps(make_payload(after={"id": 1, "v": HERE})).replace(json.dumps(HERE), value)
    frame = make_raw_records([text.encode()], [b'{"id":1}'])
    options = {"schema": {"public.t": {"id": "int64", "v": type_name}}, "decimals": option}
    decoder = DebeziumJsonDecoder(options)
    [change] = decoder.decode(frame, decoder.learn(frame, "public.t", "x")).to_pylist()
    return change


def of_rows(type_name: str, value: str) -> dict[str, Any]:
    decoder = RowsDecoder({**as_declared(type_name), "sequence_columns": [], "inserts_only": True})
    return decode_change(decoder, json.dumps({"id": 1, "v": HERE}).replace(json.dumps(HERE), value).encode())


FORMATS: Mapping[str, tuple[str, str, Callable[[str, str], dict[str, Any]]]] = {
    "canal_json": ("canal", "mysql", canal),
    "debezium_json": ("json", "declared", without_schema),
    "dms_csv": ("text", "declared", csv),
    "dms_parquet": ("parquet", "parquet", dms_parquet),
    "dts_avro": ("dts", "dts", of_dts),
    "maxwell_json": ("messages", "declared", maxwell),
    "ogg_json": ("messages", "declared", ogg),
    "rows": ("rows", "declared", of_rows),
}
"""Per format: its table of values, its table of types, and a function that decodes a value. Debezium's JSON with schema
has separate tables and a separate test."""
ELSEWHERE = {"debezium_avro", "debezium_outbox"}
"""Avro is compared with Debezium's JSON with schema. The columns of an outbox are fixed."""


def test_every_format_has_a_table_of_values() -> None:
    known = {each.name for each in entry_points(group="replicator.decoders") if each.value.startswith("adapters.")}
    assert set(FORMATS) | ELSEWHERE == known


@pytest.mark.parametrize("name", FORMATS)
def test_values_equal_the_page(name: str) -> None:
    page, _, become = FORMATS[name]
    wrong = {}
    for row in rows("values", page):
        type_name, value, becomes = map(strip_backticks, row)
        change = become(type_name, value.replace("\\|", "|"))
        try:
            expect(becomes, change["_error"], change["v"])
        except AssertionError:
            wrong[type_name, value] = change["_error"] or change["v"]
    assert not wrong


@pytest.mark.parametrize(("values", "types"), [("debezium", "debezium"), *((one[0], one[1]) for one in FORMATS.values())])
def test_every_pair_of_format_and_type_has_a_value(values: str, types: str) -> None:
    there = {strip_backticks(row[0]) for row in rows("values", values)}
    unread = {"list<string>"} if values == "text" else set()
    known = {strip_backticks(row[-4]) for row in rows("table", types) if row[-1] != REFUSED} - unread
    assert known <= there, known - there


@pytest.mark.parametrize("row", rows("values", "decimals"), ids=" ".join)
@pytest.mark.parametrize("option", [None, "text", "base64"])
def test_decimals_without_schema_equal_the_page(option: str | None, row: list[str]) -> None:
    value, *becomes = map(strip_backticks, row)
    change = without_schema("decimal(12,2)", value, option)
    expect(becomes[(None, "text", "base64").index(option)], change["_error"], change["v"])
    named = change["_error"] is None or "OUT_OF_RANGE" in change["_error"] or "write" in change["_error"]
    assert named, "the reject names the option"


def expect(becomes: str, error: str | None, value: object) -> None:
    if becomes in ("OUT_OF_RANGE", "MALFORMED"):
        assert error is not None and error.startswith(f"{becomes}: ") and value is None
    else:
        assert error is None
        assert becomes == "kept" or str(value) == becomes
