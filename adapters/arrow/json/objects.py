"""JSON objects with known fields: as generated msgspec structs, or, where a name cannot be a struct's, as raw fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Protocol

import msgspec

from .nodes import Node, nullable

UNSET = msgspec.UNSET
NULL = msgspec.Raw(b"null")


class Objects(Protocol):
    """Reads objects of some fields. `wire` is the type msgspec decodes; `nodes` are the fields, read as it says.

    A field that an object lacks reads as UNSET, a null one as None.
    """

    wire: Any
    nodes: dict[str, Node]

    def values(self, objects: Sequence[Any], name: str) -> list[Any]:
        """That field of every object."""

    def empty(self) -> Any:
        """An object whose fields are all null."""

    def put(self, target: Any, name: str, value: Any) -> None:
        """Set one field of an object."""


class StructObjects(Objects):
    """Objects as instances of a generated struct: the fast way."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self._slots = {name: f"f{i}" for i, name in enumerate(nodes)}
        fields = [(self._slots[n], nullable(node.wire), msgspec.field(default=UNSET, name=n)) for n, node in nodes.items()]
        self.wire = msgspec.defstruct("Fields", fields, gc=False)
        self._getters: dict[str, Callable[[Any], Any]] = {n: attrgetter(slot) for n, slot in self._slots.items()}

    def values(self, objects: Sequence[Any], name: str) -> list[Any]:
        """See `Objects.values`."""
        found = list(map(self._getters[name], objects))
        return [None if v == NULL else v for v in found] if self.nodes[name].wire is msgspec.Raw else found

    def empty(self) -> Any:
        """See `Objects.empty`."""
        return self.wire(*[None] * len(self.nodes))

    def put(self, target: Any, name: str, value: Any) -> None:
        """See `Objects.put`."""
        setattr(target, self._slots[name], value)


class RawObjects(Objects):
    """Objects as dicts of raw fields, for names with quotes, backslashes or control characters."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = {name: _of_raw(node) for name, node in nodes.items()}
        self.wire = dict[str, msgspec.Raw]
        self._none: dict[str, Any] = dict.fromkeys(nodes)

    def values(self, objects: Sequence[Any], name: str) -> list[Any]:
        """See `Objects.values`."""
        return [None if v == NULL else v for v in (o.get(name, UNSET) for o in objects)]

    def empty(self) -> Any:
        """See `Objects.empty`."""
        return dict(self._none)

    def put(self, target: Any, name: str, value: Any) -> None:
        """See `Objects.put`."""
        target[name] = value


def _of_raw(node: Node) -> Node:
    """`node` reading the raw JSON of its values."""
    decode = msgspec.json.Decoder(node.wire).decode

    def build(values: Sequence[Any]) -> Any:
        return node.build([None if v is None else decode(v) for v in values])

    return Node(node.type, msgspec.Raw, build, node.unsent)


def kind_for(names: Iterable[str]) -> Callable[[dict[str, Node]], Objects]:
    """What reads objects with fields of these names, or some of them."""
    return RawObjects if any(c in '\\"' or c < " " for name in names for c in name) else StructObjects
