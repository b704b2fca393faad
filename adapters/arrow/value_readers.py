"""Readers of scalar values: the JSON type, the Arrow type and the conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import RejectCode

from .record_errors import Build, ValueMisfit

SPECIAL_FLOATS = {name: float(name) for name in ("NaN", "Infinity", "-Infinity")}


@dataclass(frozen=True)
class ValueReader:
    """Reads values with one schema. `wire` is the type that msgspec decodes (without null), `build` builds the array.

    `placeholder`: the form of Debezium's placeholder for unchanged values (`decoders.debezium.changes.Placeholders`).
    `out_of_range_text`: returns the text of a date or time that `type` cannot hold, for values that are not text.
    """

    type: pa.DataType
    wire: Any
    build: Build
    placeholder: str = ""
    out_of_range_text: Callable[[Any], str] | None = None

    def with_type(self, arrow: pa.DataType) -> ValueReader:
        """A reader like this one for arrays of `arrow`, the type of another version of the schema."""
        if self.type == arrow:
            return self
        return ValueReader(arrow, self.wire, lambda values: cast_values(self.build(values), arrow), self.placeholder)


def plain_reader(arrow: pa.DataType, wire: Any, placeholder: str = "") -> ValueReader:
    """Reader of values that Arrow accepts as they are."""
    return ValueReader(arrow, wire, lambda values: pa.array(values, arrow), placeholder)


def cast_values(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    """`values` in another type. An array of nulls is null in any type, even if there is no cast."""
    return pa.nulls(len(values), arrow) if values.null_count == len(values) else values.cast(arrow)


def integer_reader(arrow: pa.DataType) -> ValueReader:
    """Reader of integers. Arrow refuses integers that do not fit the type."""
    return plain_reader(arrow, int)


def text_reader() -> ValueReader:
    """Reader of strings."""
    return plain_reader(pa.string(), str, "text")


def binary_reader() -> ValueReader:
    """Reader of base64 text as bytes."""
    return plain_reader(pa.binary(), bytes, "bytes")


def boolean_reader() -> ValueReader:
    """Reader of booleans."""
    return plain_reader(pa.bool_(), bool)


def float_reader(arrow: pa.DataType) -> ValueReader:
    """Reader of JSON numbers, and of the strings NaN, Infinity and -Infinity."""

    def build(values: Sequence[Any]) -> pa.Array:
        try:
            wide = pa.array(values, pa.float64())
        except (pa.ArrowException, TypeError):
            wide = pa.array([_parse_special(v) for v in values], pa.float64())
        narrow = wide.cast(arrow)
        if arrow != pa.float64() and _check_finite(wide) != _check_finite(narrow):
            raise ValueMisfit(RejectCode.OUT_OF_RANGE, "holds a number too large for a 32-bit float")
        return narrow

    return ValueReader(arrow, float | str, build, "text")


def _parse_special(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in SPECIAL_FLOATS:
        raise ValueMisfit(RejectCode.MALFORMED, "holds text where a number belongs")
    return SPECIAL_FLOATS[value]


def _check_finite(values: pa.Array) -> int:
    return int(pc.sum(pc.is_finite(values)).as_py() or 0)


def make_nullable(wire: Any) -> Any:
    """The type of `wire`, null, or a missing value. Raw JSON includes null (the text `null`)."""
    return wire | msgspec.UnsetType if wire is msgspec.Raw else wire | None | msgspec.UnsetType


def make_element(wire: Any) -> Any:
    """The type of `wire` or null, as an element of an array or map."""
    return wire if wire is msgspec.Raw else wire | None


# JSON objects with known fields, as generated msgspec structs, or raw fields for names that structs do not allow.


UNSET = msgspec.UNSET
NULL = msgspec.Raw(b"null")


class ObjectReader(Protocol):
    """Reads objects with known fields. `wire` is the type that msgspec decodes; `nodes` are the readers of its fields.

    A missing field reads as UNSET, a null one as None.
    """

    wire: Any
    nodes: dict[str, ValueReader]

    def values(self, objects: Sequence[Any], name: str) -> list[Any]:
        """That field of every object."""

    def empty(self) -> Any:
        """An object whose fields are all null."""

    def put(self, target: Any, name: str, value: Any) -> None:
        """Set one field of an object."""


class StructObjectReader(ObjectReader):
    """Objects as instances of a generated struct. The fast way."""

    def __init__(self, nodes: dict[str, ValueReader]) -> None:
        self.nodes = nodes
        self._slots = {name: f"f{i}" for i, name in enumerate(nodes)}
        fields = [
            (self._slots[n], make_nullable(node.wire), msgspec.field(default=UNSET, name=n)) for n, node in nodes.items()
        ]
        self.wire = msgspec.defstruct("Fields", fields, gc=False)
        self._getters: dict[str, Callable[[Any], Any]] = {n: attrgetter(slot) for n, slot in self._slots.items()}

    def values(self, objects: Sequence[Any], name: str) -> list[Any]:
        tokens = list(map(self._getters[name], objects))
        return [None if v == NULL else v for v in tokens] if self.nodes[name].wire is msgspec.Raw else tokens

    def empty(self) -> Any:
        return self.wire(*[None] * len(self.nodes))

    def put(self, target: Any, name: str, value: Any) -> None:
        setattr(target, self._slots[name], value)


class RawObjectReader(ObjectReader):
    """Objects as dicts of raw fields, for names with quotes, backslashes or control characters."""

    def __init__(self, nodes: dict[str, ValueReader]) -> None:
        self.nodes = {name: _raw_reader(node) for name, node in nodes.items()}
        self.wire = dict[str, msgspec.Raw]
        self._none: dict[str, Any] = dict.fromkeys(nodes)

    def values(self, objects: Sequence[Any], name: str) -> list[Any]:
        return [None if v == NULL else v for v in (o.get(name, UNSET) for o in objects)]

    def empty(self) -> Any:
        return dict(self._none)

    def put(self, target: Any, name: str, value: Any) -> None:
        target[name] = value


def _raw_reader(node: ValueReader) -> ValueReader:
    """A reader like `node` for the raw JSON of its values."""
    decode = msgspec.json.Decoder(node.wire).decode

    def build(values: Sequence[Any]) -> Any:
        return node.build([None if v is None else decode(v) for v in values])

    return ValueReader(node.type, msgspec.Raw, build, node.placeholder)


def choose_objects(names: Iterable[str]) -> Callable[[dict[str, ValueReader]], ObjectReader]:
    """The reader class for objects with fields of these names, or some of them."""
    return RawObjectReader if any(c in '\\"' or c < " " for name in names for c in name) else StructObjectReader
