"""The tables of docs/types.md against the code: what a type becomes, and what its values do.

Cells of types are filled in by the code; read what it wrote:

    REPLICATOR_ACCEPT=1 python -m pytest tests/golden/test_types_table.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from debezium_events import ID, column, event, payload_of, raw
from deltalake import Schema
from sqlalchemy.dialects import postgresql

from adapters.arrow import mysql, texts
from adapters.arrow.json.faults import Unfit
from adapters.arrow.json.spelling import node_of
from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.decoders.dts_avro import types as dts
from adapters.delta.types import storage_type
from adapters.sources.files.once.typed import read_as
from adapters.sql.pg_types import new_type
from replicator.domain.table import Column

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
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


def block(kind: str, name: str, page: str) -> tuple[int, int]:
    """Where the rows of a table stand in the page, behind its head."""
    start = page.index(f"<!-- {kind}: {name} -->\n")
    head = page.index("\n| --- ", start)
    return page.index("\n", head + 1) + 1, page.index("<!-- end -->", head)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows(kind: str, name: str) -> list[list[str]]:
    page = PAGE.read_text(encoding="utf-8")
    first, end = block(kind, name, page)
    return [cells(line) for line in page[first:end].splitlines()]


def bare(cell: str) -> str:
    """A cell without the marks of code."""
    return cell.strip("`")


# -- what the code makes of types --------------------------------------------------------------------------------------


def connect(said: str, name: str = "v") -> dict[str, Any]:
    """A schema of Kafka Connect as the page says it."""
    kind, _, rest = said.partition(" ")
    if kind == "array":
        return column(name, "array", items=connect(rest.removeprefix("of "), "item"))
    if kind == "map":
        return column(name, "map", keys={"type": "string"}, values=connect(rest.removeprefix("of "), "item"))
    logical, parameters = rest, None
    if found := DECIMAL.match(rest):
        logical, digits = found[1], {} if found[2] == "-" else {"connect.decimal.precision": found[2]}
        parameters = {"scale": found[3], **digits}
    for short, long in PREFIXES.items():
        if logical.startswith(short):
            logical = long + logical.removeprefix(short)
    fields = next((told for end, told in FIELDS.items() if logical.endswith(end)), None) if kind == "struct" else None
    more: dict[str, Any] = {"fields": [column(n, k) for n, k in fields]} if fields else {}
    return column(name, kind, logical or None, **({"parameters": parameters} if parameters else {}), **more)


def sent(said: str, value: str = "null") -> tuple[Column, dict[str, Any]]:
    """The column of a schema of Kafka Connect, and the change with this value in it."""
    frame = raw([event([ID, connect(said)], after={"id": 1, "v": HERE}).replace(json.dumps(HERE).encode(), value.encode())])
    decoder = DebeziumJsonDecoder({})
    spec = decoder.learn(frame, "public.t", decoder.route(frame)["fingerprint"][0].as_py())
    [change] = decoder.decode(frame, spec).to_pylist()
    return spec.column("v"), change


def parquet(name: str) -> pa.DataType | None:
    return read_as(PARQUET[name] if name in PARQUET else pa.type_for_alias(name.removesuffix("[day]")))


def of_dts(name: str) -> pa.DataType | None:
    try:
        return dts.arrow_of(name)
    except Unfit:
        return None


MAKE: Mapping[str, Callable[[str], Column | pa.DataType | None]] = {
    "debezium": lambda said: sent(said)[0],
    "declared": lambda said: node_of(said).type,
    "mysql": mysql.arrow_of,
    "dts": of_dts,
    "parquet": parquet,
}


def derived(made: Column | pa.DataType | None) -> list[str]:
    """The cells of a type: Arrow, Delta, PostgreSQL."""
    if made is None:
        return [REFUSED] * 3
    of = made if isinstance(made, Column) else Column("v", made)
    return [
        f"`{cell}`"
        for cell in (shown(of.type), delta(of.type), str(new_type(of).compile(dialect=postgresql.dialect())).lower())
    ]


def shown(arrow: pa.DataType) -> str:
    return str(arrow).replace("|", "\\|")


def delta(arrow: pa.DataType) -> str:
    """As delta-rs itself calls the type of the column."""
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
def test_types_become_what_the_page_says(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    first, end = block("table", name, page)
    lines = []
    for row in map(cells, page[first:end].splitlines()):
        lines.append("| " + " | ".join([*row[:-3], *derived(MAKE[name](bare(row[-4])))]) + " |\n")
    if ACCEPT:
        PAGE.write_text(page[:first] + "".join(lines) + page[end:], encoding="utf-8")
    assert ACCEPT or page[first:end] == "".join(lines), "read the page, then accept it with REPLICATOR_ACCEPT=1"


# -- what becomes of values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("values", "debezium"), ids=" ".join)
def test_values_of_events_become_what_the_page_says(row: list[str]) -> None:
    said, value, becomes = map(bare, row)
    _, change = sent(said, value)
    expect(becomes, change["_error"], change["v"])


@pytest.mark.parametrize("row", rows("values", "text"), ids=" ".join)
def test_values_in_text_become_what_the_page_says(row: list[str]) -> None:
    said, value, becomes = map(bare, row)
    found, bad = texts.read(pa.array([value]), node_of(said).type, "column 'v'")
    expect(becomes, str(bad[0]) if bad else None, found[0].as_py())


@pytest.mark.parametrize("row", rows("values", "json"), ids=" ".join)
def test_values_without_schema_become_what_the_page_says(row: list[str]) -> None:
    said, value, becomes = map(bare, row)
    change = declared(said, value)
    expect(becomes, change["_error"], change["v"])


@pytest.mark.parametrize("row", rows("values", "decimals"), ids=" ".join)
@pytest.mark.parametrize("option", [None, "text", "base64"])
def test_decimals_without_schema_become_what_the_page_says(option: str | None, row: list[str]) -> None:
    value, *becomes = map(bare, row)
    change = declared("decimal(12,2)", value, option)
    expect(becomes[(None, "text", "base64").index(option)], change["_error"], change["v"])
    named = change["_error"] is None or "OUT_OF_RANGE" in change["_error"] or "write" in change["_error"]
    assert named, "a reject says what to set"


def declared(said: str, value: str, option: str | None = None) -> dict[str, Any]:
    """A change without schema that has this JSON in a column that is declared so."""
    text = json.dumps(payload_of(after={"id": 1, "v": HERE})).replace(json.dumps(HERE), value)
    frame = raw([text.encode()], [b'{"id":1}'])
    options = {"schema": {"public.t": {"id": "int64", "v": said}}, "decimals": option}
    decoder = DebeziumJsonDecoder(options)
    [change] = decoder.decode(frame, decoder.learn(frame, "public.t", "x")).to_pylist()
    return change


def expect(becomes: str, error: str | None, value: object) -> None:
    if becomes in ("OUT_OF_RANGE", "MALFORMED"):
        assert error is not None and error.startswith(f"{becomes}: ") and value is None
    else:
        assert error is None
        assert becomes == "kept" or str(value) == becomes
