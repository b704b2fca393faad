"""Values of private columns as records have them, gathered by column and masked together.

They are read as decoding reads them, so that what is stored of a value is what was decoded of it, whatever its type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from replicator.domain.casting import is_hashable
from replicator.domain.columns import Mask
from replicator.domain.out_of_range import Reading as HowOutOfRange

from ..json import decimals
from ..json.faults import FAILURES, UNREADABLE, Unfit
from ..json.nodes import Node
from ..masks import masked
from ..out_of_range import lenient
from .columns import build_column
from .schema import ConnectSchema
from .types import holds_decimals, node_of
from .unsent import Placeholders

Object = dict[str, Any]
"""An object whose values are JSON (`msgspec.Raw`), or objects of that kind."""
NULL = msgspec.Raw(b"null")
UNFIT = (msgspec.Raw(b"{}"), msgspec.Raw(b"0"), msgspec.Raw(b'"\\ud800"'))
"""In place of what is no value of its column, the first that is none either: it is rejected as that was."""


class Reading:
    """How values of one column are read: by the first of these nodes that can."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = nodes
        self._ways = [(node, msgspec.json.Decoder(node.wire).decode) for node in nodes]

    def read(self, tokens: Sequence[msgspec.Raw]) -> tuple[Iterable[tuple[Node, list[int], list[Any]]], list[int]]:
        """What the nodes read, by their places, and the places of what none can read."""
        node, decode = self._ways[0]
        try:
            return [(node, list(range(len(tokens))), [decode(token) for token in tokens])], []
        except UNREADABLE:
            return self._one_by_one(tokens)

    def _one_by_one(self, tokens: Sequence[msgspec.Raw]) -> tuple[Iterable[tuple[Node, list[int], list[Any]]], list[int]]:
        found: list[tuple[Node, list[int], list[Any]]] = [(node, [], []) for node in self._nodes]
        bad = []
        for place, token in enumerate(tokens):
            for (_, decode), (_, places, values) in zip(self._ways, found, strict=True):
                try:
                    values.append(decode(token))
                except UNREADABLE:
                    continue
                places.append(place)
                break
            else:
                bad.append(place)
        return [one for one in found if one[1]], bad

    @cached_property
    def of_header(self) -> Reading:
        """The same in a header, where Connect's usual converter writes decimals as numbers."""
        return Reading(decimals.or_number(self._nodes[0]))

    @cached_property
    def unfit(self) -> msgspec.Raw:
        """JSON that is no value of the column's own type: what cannot be read at all, before what only has no place. In a
        deleted row the latter counts as not sent."""
        node, decode = self._ways[0]
        for is_value in (decode, lambda token: node.build([decode(token)])):
            for token in UNFIT[:-1]:
                try:
                    is_value(token)
                except (*FAILURES, *UNREADABLE):
                    return token
        return UNFIT[-1]


def _as_written(values: Sequence[Any]) -> pa.Array:
    """Text as it is, and anything else as its JSON."""
    texts = (None if value is None else bytes(value) for value in values)
    told = [msgspec.json.decode(text, type=str) if text and text[:1] == b'"' else text and text.decode() for text in texts]
    return pa.array(told, pa.string())


UNTYPED = Reading(Node(pa.string(), msgspec.Raw, _as_written, "raw"))
"""Of values of which nobody knows the type, and of those that have no one text: lanes stop there, and what is stored is
masked all the same."""


def by_schema(said: Mapping[str, Any], mask: Mask, how: HowOutOfRange = "reject") -> Reading:
    """How values are read that have this schema of Connect. `how`: what becomes of those that have no place."""
    try:
        schema = msgspec.convert(said, ConnectSchema)
        nodes = [node_of(schema)]
        if holds_decimals(schema):
            nodes.append(node_of(schema, numeric=True))
    except (Unfit, msgspec.ValidationError):
        return UNTYPED
    return by_nodes([lenient(node, how) for node in nodes], mask)


def by_nodes(nodes: Sequence[Node], mask: Mask) -> Reading:
    """How values are read by these nodes, the usual one first."""
    needs_text = mask.kind in ("hmac", "truncate")
    return UNTYPED if needs_text and not is_hashable(nodes[0].type) else Reading(*nodes)


@dataclass
class Cells:
    """The values of one column, and where they are."""

    name: str
    reading: Reading
    mask: Mask
    images: list[Object] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """The places of those that count as not sent where they do not fit: of deleted rows, outside their keys."""

    def mask_them(self, placeholders: Placeholders) -> None:
        """Set every value to what its mask keeps of it."""
        tokens = [image[self.name] for image in self.images]
        found, bad = self.reading.read(tokens)
        for place in bad:
            self.images[place][self.name] = self._unfit
        for node, places, values in found:
            built = build_column(node, values, self.name, placeholders)
            for place, kept in zip(places, self._kept(built.array), strict=True):
                self.images[place][self.name] = kept
            for number in built.unsent:
                place = places[number]
                self.images[place][self.name] = self._unsent(tokens[place], placeholders)
            for number in built.errors:
                place = places[number]
                self.images[place][self.name] = self._unsent(NULL, placeholders) if place in self.lost else self._unfit

    @property
    def _unfit(self) -> msgspec.Raw:
        return self.reading.unfit if self.mask.kind == "nothing" else UNFIT[0]

    def _kept(self, values: pa.Array) -> Iterable[msgspec.Raw]:
        if self.mask.kind in ("nothing", "fixed"):
            same = NULL if self.mask.kind == "nothing" else msgspec.Raw(msgspec.json.encode(self.mask.text))
            return [same] * len(values)
        encode: Callable[[Any], bytes] = msgspec.json.encode
        return [msgspec.Raw(encode(text)) for text in masked(pa.chunked_array([values]), self.mask).to_pylist()]

    def _unsent(self, token: msgspec.Raw, placeholders: Placeholders) -> msgspec.Raw:
        """What tells that a value was not sent, in a column of the type that it is stored with. `token`: what told it."""
        if self.mask.kind == "nothing":
            return token
        said = bytes(token)
        is_one = said[:1] == b'"' and placeholders.is_text(msgspec.json.decode(said, type=str))
        return token if is_one else msgspec.Raw(msgspec.json.encode(placeholders.text))


class Tokens:
    """Gathers values, and masks those of one column together."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._cells: dict[tuple[str, Reading, Mask], Cells] = {}

    def add(
        self, image: Object, masks: Mapping[str, Mask], readings: Mapping[str, Reading], keys: Collection[str] | None
    ) -> None:
        """The values of an object, which are set when all are `done`. `keys`: the key's columns, for a row that is
        deleted."""
        for name, mask in masks.items():
            if name not in image or bytes(image[name]) == b"null":
                continue
            reading = readings.get(name, UNTYPED)
            cells = self._cells.setdefault((name, reading, mask), Cells(name, reading, mask))
            if keys is not None and name not in keys:
                cells.lost.add(len(cells.images))
            cells.images.append(image)

    def done(self) -> None:
        """Set all of them."""
        for cells in self._cells.values():
            cells.mask_them(self._placeholders)
        self._cells.clear()
