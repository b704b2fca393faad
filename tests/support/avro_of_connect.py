"""Encodes data as Connect's AvroConverter does, from the output of its JsonConverter. Follows Confluent's
`AvroData.java`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import json_reader, parse_schema, schemaless_writer

from replicator.domain.change import RAW

OWN = "io.confluent.connect.avro"
PLAIN = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float",
    "float32": "float", "double": "double", "float64": "double", "string": "string", "bytes": "bytes",
}  # fmt: skip
LOGICAL = {"Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis"}
PREFIX = "org.apache.kafka.connect.data."


def to_avro_schema(connect: dict[str, Any], named: dict[str, Any] | None = None) -> Any:
    """`AvroData.fromConnectSchema`: a repeated named type is written once, and by its name after that."""
    named = {} if named is None else named
    base = _base(connect, named)
    if not connect.get("optional"):
        return base
    return [base, "null"] if connect.get("default") is not None else ["null", base]


def _base(connect: dict[str, Any], named: dict[str, Any]) -> Any:
    kind, name = connect["type"], connect.get("name")
    if kind == "struct":
        return _record(connect, named)
    if kind == "array":
        out: dict[str, Any] = {"type": "array", "items": to_avro_schema(connect["items"], named)}
    elif kind == "map" and connect["keys"]["type"] == "string" and not connect["keys"].get("optional"):
        out = {"type": "map", "values": to_avro_schema(connect["values"], named)}
    elif kind == "map":
        fields = [{"name": n, "type": to_avro_schema(connect[f"{n}s"], named)} for n in ("key", "value")]
        out = {"type": "array", "items": {"type": "record", "name": "MapEntry", "namespace": OWN, "fields": fields}}
    else:
        out = {"type": PLAIN[kind], **_logical(connect)}
    if kind in ("int8", "int16"):
        out["connect.type"] = kind
    if "version" in connect:
        out["connect.version"] = connect["version"]
    if connect.get("parameters"):
        out["connect.parameters"] = connect["parameters"]
    if "default" in connect:
        out["connect.default"] = connect["default"]
    if name:
        out["connect.name"] = name
    return out["type"] if len(out) == 1 else out


def _logical(connect: dict[str, Any]) -> dict[str, Any]:
    name = (connect.get("name") or "").removeprefix(PREFIX)
    if connect.get("name") == f"{PREFIX}Decimal":
        parameters = connect["parameters"]
        digits = int(parameters.get("connect.decimal.precision", 64))
        return {"scale": int(parameters["scale"]), "precision": digits, "logicalType": "decimal"}
    return {"logicalType": LOGICAL[name]} if f"{PREFIX}{name}" == connect.get("name") and name in LOGICAL else {}


def _record(connect: dict[str, Any], named: dict[str, Any]) -> Any:
    name = connect.get("name") or f"{OWN}.ConnectDefault"
    content = {k: v for k, v in connect.items() if k not in ("field", "optional", "default")}
    if named.setdefault(name, content) is not content:
        assert named[name] == content, f"{name} has two definitions"
        return name
    space, _, own = name.rpartition(".")
    fields = []
    for field in connect["fields"]:
        fields.append({"name": field["field"], "type": to_avro_schema(field, named), **_encode_default(field)})
    out = {"type": "record", "name": own, "namespace": space, "fields": fields}
    if "version" in connect:
        out["connect.version"] = connect["version"]
    return out | ({"connect.name": connect["name"]} if connect.get("name") else {})


def _encode_default(field: dict[str, Any]) -> dict[str, Any]:
    if field.get("default") is None:
        return {"default": None} if field.get("optional") else {}
    if field["type"] == "bytes":
        return {"default": base64.b64decode(field["default"]).decode("latin-1")}
    return {"default": field["default"]}


def to_avro_value(connect: dict[str, Any], value: Any) -> Any:
    """`AvroData.fromConnectData`, for values that the JsonConverter wrote."""
    if value is None:
        return None
    kind = connect["type"]
    if kind == "struct":
        return {f["field"]: to_avro_value(f, value.get(f["field"])) for f in connect["fields"]}
    if kind == "array":
        return [to_avro_value(connect["items"], v) for v in value]
    if kind == "map":
        return _pairs(connect["keys"], connect["values"], value)
    if kind == "bytes":
        return base64.b64decode(value)
    return float(value) if PLAIN[kind] in ("float", "double") else value


def _pairs(keys: dict[str, Any], values: dict[str, Any], value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else value
    found = [(to_avro_value(keys, k), to_avro_value(values, v)) for k, v in pairs]
    if keys["type"] == "string" and not keys.get("optional"):
        return dict(found)
    return [{"key": k, "value": v} for k, v in found]


class Avro:
    """Registers schemas, and encodes records that contain the schema ids."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = SchemaRegistryClient({"url": url})
        self._written: dict[str, Callable[..., bytes]] = {}

    def one(self, text: bytes | None, subject: str) -> bytes | None:
        """A key or value in Avro. Null stays null."""
        if text is None:
            return None
        document = json.loads(text)
        schema = json.dumps(to_avro_schema(document["schema"]))
        if schema not in self._written:
            config = {"auto.register.schemas": True, "subject.name.strategy": lambda *_: subject}
            self._written[schema] = AvroSerializer(self.client, schema, conf=config)
        context = SerializationContext(subject, MessageField.VALUE)
        return self._written[schema](to_avro_value(document["schema"], document["payload"]), context)

    def frame(self, raw: pa.Table) -> pa.Table:
        """A raw frame of JSON records with schemas, encoded in Avro."""
        for name in ("key", "value"):
            texts = zip(raw["topic"].to_pylist(), raw[name].to_pylist(), strict=True)
            column = pa.array([self.one(text, f"{topic}-{name}") for topic, text in texts], pa.binary())
            raw = raw.set_column(raw.column_names.index(name), raw.schema.field(name), column)
        return raw


def decode_runs(decoder: Any, raw: pa.Table) -> Iterator[tuple[Any, Any, pa.Table]]:
    """Yields by table and fingerprint, in order of the first records: row numbers, the table without its fingerprint,
    changes."""
    routes = decoder.route(raw).to_pylist()
    for table, fingerprint in dict.fromkeys((r["table"], r["fingerprint"]) for r in routes if r["table"]):
        places = [i for i, r in enumerate(routes) if r["fingerprint"] == fingerprint]
        run = raw.take(places)
        spec = decoder.learn(run, table, fingerprint)
        yield places, replace(spec, fingerprint=""), decoder.decode(run, spec)


def decode_without_fingerprints(decoder: Any, raw: pa.Table) -> Any:
    """Everything that a decoder returns for records, except fingerprints. Schemas may differ in parts that describe no
    value, such as defaults."""
    routes = decoder.route(raw).drop_columns(["fingerprint"]).to_pylist()
    found = [
        (places, spec, changes.schema, repr(changes.to_pylist())) for places, spec, changes in decode_runs(decoder, raw)
    ]
    envelopes = decoder.envelope(raw).drop_columns(["schema_id"]).to_pylist()
    for row in envelopes:  # The spelling of numbers may differ.
        row |= {name: json.loads(row[name] or "null") for name in ("before", "after")}
    return routes, found, repr(envelopes), decoder.marks(raw)


def register_schemas(path: Path, url: str) -> pa.Table:
    """Registers the schemas of a topic that other software wrote, and returns its records."""
    first, *lines = path.read_text().splitlines()
    texts = first.split("^")
    client = Avro(url).client
    ids = [client.register_schema(f"{path.stem}-{i}", Schema(text, "AVRO")) for i, text in enumerate(texts)]
    schemas = [parse_schema(json.loads(text)) for text in texts]

    def frame_record(which: int, text: str) -> bytes | None:
        if not text:
            return None
        out = BytesIO()
        schemaless_writer(out, schemas[which], next(iter(json_reader(StringIO(text), schemas[which]))))
        return b"\0" + ids[which].to_bytes(4, "big") + out.getvalue()

    rows = [
        {"topic": "orders", "partition": 0, "offset": i, "key": frame_record(0, key), "value": frame_record(1, value)}
        for i, (key, _, value) in enumerate(line.partition("^") for line in lines)
    ]
    return pa.Table.from_pylist(rows, RAW)
