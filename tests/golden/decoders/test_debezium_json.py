"""Every record of the recorded topics has an expected outcome, in `expected/`.

With UPDATE_GOLDEN=1 in the environment the files are written again: read the difference before you keep it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.recorded_topics import DECLARED, HERE, TOPICS, read_recorded_frame

from adapters.decoders.debezium_json import DebeziumJsonDecoder

BOOKKEEPING = ("_op", "_tx", "_error", "_unsent", "_moved_from", "_moved_to")
DOUBLES = {"public.customers": {"bignum": "double", "credit": "double"}, "public.toasty": {"big": "double"}}
"""Columns whose topics have decimals as numbers."""
CUSTOMERS = {"first_name": "string", "last_name": "string", "email": "string"}
PRODUCTS = {"id": "int64", "name": "string", "description": "string", "weight": "double"}
OPTIONS: dict[str, dict[str, object]] = {
    "postgres-schemaless": {"schema": DECLARED},
    "postgres-flattened": {"schema": {t: c | DOUBLES.get(t, {}) for t, c in DECLARED.items()}, "flattened": True},
    "mongodb": {"schema": {"inventory.customers": {"_id": "int64", **CUSTOMERS}}},
    "risingwave-mongodb": {"schema": {"inventory.customers": {"_id": "int64", **CUSTOMERS}}, "keys": {"*": ["_id"]}},
    "risingwave": {"keys": {"*": ["id"]}},
    "risingwave-schemaless": {"keys": {"*": ["id"]}, "schema": {"inventory.customers": {"id": "int64", **CUSTOMERS}}},
    "seatunnel": {"keys": {"*": ["id"]}, "schema": {"inventory.products": PRODUCTS}},
    "seatunnel-all-types": {"keys": {"*": ["id"]}},
    "paimon": {"keys": {"*": ["id"]}, "schema": {"test.product": {**PRODUCTS, "age": "int64", "address": "string"}}},
}
CAPTURED = {"postgres", "postgres-schemaless", "mariadb"}
"""Topics with whole change events of rows, as connectors wrote them."""
IN_ANY_ORDER = {"mysql", "oracle"}
"""Examples whose log positions belong to several histories."""


def to_readable(value: object) -> object:
    """A value for the golden file: long texts and lists are cut, other values are shown whole as text."""
    if isinstance(value, bytes):
        return f"0x{value[:16].hex()}" + (f"... {len(value)} bytes" if len(value) > 16 else "")
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:20]}... {len(value)} characters"
    if isinstance(value, list) and len(value) > 5:
        return [*map(to_readable, value[:3]), f"... {len(value)} elements"]
    if isinstance(value, list):
        return [to_readable(v) for v in value]
    return value if isinstance(value, str | int | bool | dict) or value is None else str(value)


def to_golden_change(row: dict[str, object]) -> dict[str, object]:
    """A change in the golden file, without nulls."""
    known = {name.lstrip("_"): row[name] for name in BOOKKEEPING if row.get(name) is not None}
    known["sequence"] = [row[f"_seq_{i}"] for i in (1, 2, 3)]
    columns = {k: to_readable(v) for k, v in row.items() if (k == "_id" or not k.startswith("_")) and v is not None}
    return known if row["_error"] else {**known, "columns": columns}


def outcomes(path: Path) -> dict[str, object]:
    """The outcome of each record by offset, and the table at every version of its schema."""
    raw = read_recorded_frame(path)
    decoder = DebeziumJsonDecoder(OPTIONS.get(path.parent.name, {}))
    routes = decoder.route(raw).to_pylist()
    records: dict[int, object] = {i: f"ignored: {r['ignored']}" for i, r in enumerate(routes) if r["ignored"]}
    records |= {i: r["error"] for i, r in enumerate(routes) if r["error"]}
    tables = []
    for table, fingerprint in dict.fromkeys((r["table"], r["fingerprint"]) for r in routes if r["table"]):
        numbers = [i for i, r in enumerate(routes) if r["fingerprint"] == fingerprint]
        run = raw.take(numbers)
        spec = decoder.learn(run, table, fingerprint)
        shown = {c.name: f"{c.type}{'' if c.nullable else ' not null'} {c.source_type}".strip() for c in spec.columns}
        tables.append({"table": table, "keys": list(spec.keys), "columns": shown})
        for number, row in zip(numbers, decoder.decode(run, spec).to_pylist(), strict=True):
            records[number] = to_golden_change(row)
    assert sorted(records) == list(range(raw.num_rows))
    return {"tables": tables, "records": {str(raw["offset"][i].as_py()): records[i] for i in sorted(records)}}


def format_outcomes(found: dict[str, object]) -> str:
    """The outcomes as JSON with one record a line."""
    tables, records = found["tables"], found["records"]
    assert isinstance(tables, list)
    assert isinstance(records, dict)
    above = ",\n  ".join(json.dumps(t, ensure_ascii=False) for t in tables)
    below = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, default=str)}" for k, v in records.items())
    return f'{{"tables": [\n  {above}\n],\n"records": {{\n  {below}\n}}}}\n'


@pytest.mark.parametrize("path", TOPICS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_record_has_its_expected_outcome(path: Path) -> None:
    found = format_outcomes(outcomes(path))
    expected = HERE / "expected" / path.parent.name / f"{path.stem}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.parent.mkdir(parents=True, exist_ok=True)
        expected.write_text(found)
    assert json.loads(found) == json.loads(expected.read_text())


@pytest.mark.parametrize(
    "path", [p for p in TOPICS if p.parent.name not in IN_ANY_ORDER], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_changes_of_a_partition_are_in_sequence_order(path: Path) -> None:
    records = outcomes(path)["records"]
    assert isinstance(records, dict)
    changes = [r for r in records.values() if isinstance(r, dict) and r.get("op", "r") != "r"]
    sequences = [r["sequence"] for r in changes]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize("path", [p for p in TOPICS if p.parent.name in CAPTURED], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_envelope_equals_the_changes(path: Path) -> None:
    raw = read_recorded_frame(path)
    decoder = DebeziumJsonDecoder({"schema": DECLARED})
    envelope = decoder.envelope(raw)
    assert envelope["error"].null_count == raw.num_rows
    records = outcomes(path)["records"]
    assert isinstance(records, dict)
    for row, outcome, value in zip(envelope.to_pylist(), records.values(), raw["value"].to_pylist(), strict=True):
        if isinstance(outcome, dict):
            payload = json.loads(value)
            payload = payload.get("payload", payload)
            assert [row["seq_1"], row["seq_2"], row["seq_3"]] == outcome["sequence"]
            assert (row["op"], row["tx"]) == (outcome["op"], outcome.get("tx"))
            assert [json.loads(row[k] or "null") for k in ("before", "after")] == [payload["before"], payload["after"]]
        elif outcome == "ignored: tombstone":
            assert set(row.values()) == {None}
