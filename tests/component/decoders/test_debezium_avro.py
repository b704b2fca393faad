"""Recorded topics decode from Avro as from JSON. Other programs recorded some of the Avro topics."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema
from paths import GOLDEN
from servers.schema_registry import API
from support.avro_of_connect import Avro, decode_runs, decode_without_fingerprints, register_schemas
from support.recorded_topics import TOPICS, read_recorded_frame

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.decoders.debezium_json import DebeziumJsonDecoder

HERE = GOLDEN / "decoders"
WITH_SCHEMA = [path for path in TOPICS if path.parent.name in ("postgres", "mariadb")]


@pytest.mark.parametrize("path", WITH_SCHEMA, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_recorded_topic_in_avro_decodes_as_in_json(path: Path, registry: str) -> None:
    raw = read_recorded_frame(path)
    avro = Avro(f"{registry}{API}")
    options = {"unavailable_value": ["__debezium_unavailable_value", "hex:00ff"]}
    mine = DebeziumAvroDecoder({"registry": {"url": f"{registry}{API}"}, **options})
    in_avro = avro.frame(raw)
    assert all(value is None or value.startswith(b"\0") for value in in_avro["value"].to_pylist())
    assert decode_without_fingerprints(mine, in_avro) == decode_without_fingerprints(DebeziumJsonDecoder(options), raw)


@pytest.mark.parametrize("name", ["compact", "non_compact"])
def test_topics_of_risingwave_give_the_expected_rows(name: str, registry: str) -> None:
    url = f"{registry}{API}"
    raw = register_schemas(HERE / "risingwave" / f"{name}.txt", url)
    decoder = DebeziumAvroDecoder({"registry": {"url": url}, "tombstones": "delete"})
    ((places, table, changes),) = decode_runs(decoder, raw)
    assert places == list(range(raw.num_rows))
    assert (table.name, table.keys) == ("public.orders", ("order_id",))
    left = {}
    for row in sorted(changes.to_pylist(), key=lambda row: row["_seq_1"]):
        assert row["_error"] is None
        if row["_op"] == "d":
            left.pop(row["order_id"], None)
        else:
            left[row["order_id"]] = (row["customer_name"], row["order_date"], row["product_id"], row["order_status"])
    assert left == {2: ("Alice", 1558430840001, 2, 1), 3: ("Alice", 1558430840002, 2, 1)}


OF_APICURIO = HERE / "apicurio"


def apply_converter_changes(text: bytes | None) -> bytes | None:
    """Changes defaults and special floats as converters do (see the README of the records)."""
    if text is None:
        return None
    document = json.loads(text)
    for field in document["schema"].get("fields", ()):
        image = document["payload"].get(field["field"])
        for column in field.get("fields", ()) if field["field"] in ("before", "after") and image else ():
            value = image[column["field"]]
            if value is None and column.get("default") is not None:
                image[column["field"]] = column["default"]
            if column["type"] in ("float", "double") and isinstance(value, str):
                image[column["field"]] = 0.0
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def read_apicurio_frame(topic: str, raw: pa.Table, url: str) -> pa.Table:
    """Registers the schemas of a real converter, and returns the records of `raw` as the converter wrote them."""
    client, schemas = Avro(url).client, json.loads((OF_APICURIO / "schemas.json").read_text())
    ids: dict[bytes, bytes] = {}

    def to_apicurio(coded: str | None) -> bytes | None:
        if coded is None:
            return None
        record = base64.b64decode(coded)
        head = record[:5]
        if head not in ids:
            number = str(int.from_bytes(head[1:], "big"))
            ids[head] = b"\0" + client.register_schema(f"apicurio-{number}", Schema(schemas[number], "AVRO")).to_bytes(
                4, "big"
            )
        return ids[head] + record[5:]

    lines = map(json.loads, (OF_APICURIO / "records.jsonl").read_text().splitlines())
    found = {line["line"]: line for line in lines if line["topic"] == topic}
    for name in ("key", "value"):
        column = pa.array([to_apicurio(found[place][name]) for place in range(raw.num_rows)], pa.binary())
        raw = raw.set_column(raw.column_names.index(name), raw.schema.field(name), column)
    return raw


@pytest.mark.parametrize("path", WITH_SCHEMA, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_topic_of_a_real_converter_decodes_as_in_json(path: Path, registry: str) -> None:
    raw = read_recorded_frame(path)
    in_avro = read_apicurio_frame(f"{path.parent.name}/{path.stem}", raw, f"{registry}{API}")
    values = pa.array(map(apply_converter_changes, raw["value"].to_pylist()), pa.binary())
    in_json = raw.set_column(raw.column_names.index("value"), raw.schema.field("value"), values)
    mine = DebeziumAvroDecoder({"registry": {"url": f"{registry}{API}"}})
    assert decode_without_fingerprints(mine, in_avro) == decode_without_fingerprints(DebeziumJsonDecoder({}), in_json)
