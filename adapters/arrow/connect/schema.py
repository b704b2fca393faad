"""Avro schemas as Connect's AvroConverter writes them, to the schemas of Connect that they were made from.

| Avro | Connect |
| --- | --- |
| boolean, int, long, float, double, bytes, string | boolean, int32, int64, float, double, bytes, string |
| int with `connect.type` int8 or int16 | int8, int16 |
| `connect.name`, `connect.version`, `connect.parameters`, `connect.default` | name, version, parameters, default |
| `logicalType` date, time-millis, timestamp-millis, decimal | Connect's Date, Time, Timestamp, Decimal, if not named |
| enum; fixed | string; bytes |
| a union of null and one more | that, optional |
| array of records `MapEntry`; map | map; map with keys of text |
| record | struct, of that name unless it is Connect's own for one without a name |

Anything else (unions of several types, recursive schemas, records without fields) Connect's converter does not write of
tables: it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicator.domain.errors import RejectCode

from ..json.faults import Unfit
from .nodes import Mend, Node, array_of, map_of, number, pairs_of, record_of

PRIMITIVES = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}
NARROW = ("int8", "int16")
CONNECT = "org.apache.kafka.connect.data"
LOGICAL = {
    ("int", "date"): f"{CONNECT}.Date",
    ("int", "time-millis"): f"{CONNECT}.Time",
    ("long", "timestamp-millis"): f"{CONNECT}.Timestamp",
    ("bytes", "decimal"): f"{CONNECT}.Decimal",
    ("fixed", "decimal"): f"{CONNECT}.Decimal",
}
NO_PRECISION = 64
"""The precision that the converter writes for a decimal that has none."""
OWN = "io.confluent.connect.avro."
NAMELESS = f"{OWN}ConnectDefault"
MAP_ENTRY = f"{OWN}MapEntry"
LONGEST_NAME = 1_024
NODES, NODES_PER_COLUMN = 1_024, 16
"""How many types a schema may have, those it names again counted each time."""
AROUND = 8
"""How much deeper an event is nested than its row."""


def refused(sentence: str, code: str = RejectCode.MALFORMED) -> Unfit:
    """Why a schema cannot be read."""
    return Unfit(code, f"its Avro schema {sentence}")


class Translation:
    """Reads one schema. `columns` and `depth`: what a record may have."""

    def __init__(self, columns: int, depth: int) -> None:
        self._left = NODES + NODES_PER_COLUMN * columns
        self._depth = depth + AROUND
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._open: list[str] = []
        self._made = 0

    def node(self, said: Any, namespace: str = "", depth: int = 0) -> Node:
        """What a type of the schema stands for. Raises Unfit for one that is refused."""
        self._left -= 1
        if self._left < 0:
            raise refused("has more types than a record may have", RejectCode.TOO_LARGE)
        if depth > self._depth:
            raise refused("is nested too deeply", RejectCode.TOO_LARGE)
        if isinstance(said, list):
            return self._union(said, namespace, depth)
        if isinstance(said, str):
            return self._of_name(said, {}, namespace, depth)
        if not isinstance(said, dict) or "type" not in said:
            raise refused("has a type that is none")
        kind = said["type"]
        if not isinstance(kind, str):
            return self.node(kind, namespace, depth + 1)
        return self._of_name(kind, said, namespace, depth)

    def _of_name(self, kind: str, said: Mapping[str, Any], namespace: str, depth: int) -> Node:
        if kind in PRIMITIVES:
            return self._primitive(kind, said)
        if kind == "array":
            return self._array(said, namespace, depth)
        if kind == "map":
            items = self.node(said.get("values"), namespace, depth + 1)
            return map_of(items, self._described("map", said, ""))
        if kind in ("record", "enum", "fixed"):
            return self._definition(kind, said, namespace, depth)
        return self._again(kind, namespace, depth)

    def _primitive(self, kind: str, said: Mapping[str, Any]) -> Node:
        narrow = said.get("connect.type")
        connect = self._described(narrow if kind == "int" and narrow in NARROW else PRIMITIVES[kind], said, kind)
        return Node(kind, connect, number if kind in ("float", "double") else None)

    def _described(self, connect: str, said: Mapping[str, Any], kind: str, name: str | None = None) -> dict[str, Any]:
        """A schema of Connect with the name, version and parameters that `said` gives it."""
        out: dict[str, Any] = {"type": connect, "optional": False}
        logical = LOGICAL.get((kind, str(said.get("logicalType"))))
        name = said.get("connect.name") or logical or name
        if isinstance(name, str):
            out["name"] = name
        if "connect.default" in said:
            out["default"] = said["connect.default"]
        if isinstance(said.get("connect.version"), int):
            out["version"] = said["connect.version"]
        parameters = said.get("connect.parameters")
        found = {str(k): str(v) for k, v in parameters.items()} if isinstance(parameters, dict) else {}
        if logical == LOGICAL["bytes", "decimal"] == name:
            found = _digits(said) | found
        return out | ({"parameters": found} if found else {})

    def _union(self, said: list[Any], namespace: str, depth: int) -> Node:
        others = [one for one in said if one != "null"]
        if len(others) != 1 or len(said) > 2 or isinstance(others[0], list):
            raise refused("has a union of something else than null and one type")
        node = self.node(others[0], namespace, depth)
        if len(said) == 1:
            return Node([node.avro], node.connect, node.mend, node.nests)
        union = ["null", node.avro] if said[0] == "null" else [node.avro, "null"]
        return Node(union, node.connect | {"optional": True}, _unless_null(node.mend), node.nests)

    def _array(self, said: Mapping[str, Any], namespace: str, depth: int) -> Node:
        items = self.node(said.get("items"), namespace, depth + 1)
        fields = {field["field"]: field for field in items.connect.get("fields", ())}
        if items.is_pair and fields.keys() == {"key", "value"}:
            return pairs_of(items, fields, self._described("map", said, ""))
        return array_of(items, self._described("array", said, ""))

    def _definition(self, kind: str, said: Mapping[str, Any], namespace: str, depth: int) -> Node:
        name = said.get("name")
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise refused(f"has a {kind} without a name, or with too long a one")
        space = said.get("namespace", namespace) if "." not in name else name.rpartition(".")[0]
        full = name if "." in name or not space else f"{space}.{name}"
        if full in self._open:
            raise refused("is recursive")
        self._named[full] = (said, namespace)
        self._open.append(full)
        try:
            return self._of_definition(kind, said, full, str(space or ""), depth)
        finally:
            self._open.pop()

    def _again(self, name: str, namespace: str, depth: int) -> Node:
        """A type that was defined before, under its name."""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = full if full in self._named else name
        if found in self._open:
            raise refused("is recursive")
        if found not in self._named:
            raise refused(f"names the type {name[:60]!r}, which it does not define")
        said, space = self._named[found]
        return self._definition(str(said["type"]), said, space, depth)

    def _of_definition(self, kind: str, said: Mapping[str, Any], full: str, space: str, depth: int) -> Node:
        self._made += 1
        mine = {"type": kind, "name": f"t{self._made}"}
        if kind == "enum":
            symbols = said.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(one, str) for one in symbols):
                raise refused("has an enum without symbols")
            return Node(mine | {"symbols": symbols}, self._described("string", said, kind, full))
        if kind == "fixed":
            size = said.get("size")
            if not isinstance(size, int) or size < 1:
                raise refused("has a fixed without a size")
            return Node(mine | {"size": size}, self._described("bytes", said, kind, full))
        fields = self._fields(said.get("fields"), space, depth)
        connect = self._described("struct", said, kind, None if full.startswith(NAMELESS) else full)
        is_pair = full == MAP_ENTRY or said.get("connect.internal.type") == "MapEntry"
        return record_of(mine, fields, connect, is_pair=is_pair)

    def _fields(self, said: Any, space: str, depth: int) -> dict[str, Node]:
        if not isinstance(said, list) or not said:
            raise refused("has a record without fields")
        out: dict[str, Node] = {}
        for field in said:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or len(name) > LONGEST_NAME:
                raise refused("has a field without a name, or with too long a one")
            if name in out:
                raise refused("names a field twice")
            out[name] = self.node(field.get("type"), space, depth + 1)
        return out


def _digits(said: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a decimal, as Connect has them."""
    scale, precision = said.get("scale", 0), said.get("precision", NO_PRECISION)
    known = {} if precision == NO_PRECISION else {"connect.decimal.precision": str(precision)}
    return {"scale": str(scale), **known}


def _unless_null(mend: Mend | None) -> Mend | None:
    return None if mend is None else lambda value: None if value is None else mend(value)
