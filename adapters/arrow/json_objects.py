"""JSON objects with known fields, as generated msgspec structs, or raw fields for names that structs do not allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from .value_readers import ValueReader, make_nullable

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
        found = list(map(self._getters[name], objects))
        return [None if v == NULL else v for v in found] if self.nodes[name].wire is msgspec.Raw else found

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
