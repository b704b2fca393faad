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

from replicator.domain.out_of_range import ReadMode as HowOutOfRange
from replicator.domain.transform.casts import is_hashable
from replicator.domain.transform.columns import Mask

from ...arrow import decimals
from ...arrow.masks import mask_values
from ...arrow.out_of_range_values import make_lenient
from ...arrow.record_errors import FAILURES, UNREADABLE, ValueMisfit
from ...arrow.value_readers import ValueReader
from .columns import build_column
from .schema import ConnectSchema
from .types import find_reader, holds_decimals
from .unchanged_values import Placeholders

Object = dict[str, Any]
"""An object whose values are JSON (`msgspec.Raw`), or objects of that kind."""
NULL = msgspec.Raw(b"null")
UNFIT = (msgspec.Raw(b"{}"), msgspec.Raw(b"0"), msgspec.Raw(b'"\\ud800"'))
"""In place of what is no value of its column, the first that is none either: it is rejected as that was."""


class TokenReader:
    """How values of one column are read: by the first of these nodes that can."""

    def __init__(self, *nodes: ValueReader) -> None:
        self._nodes = nodes
        self._ways = [(node, msgspec.json.Decoder(node.wire).decode) for node in nodes]

    def read(self, tokens: Sequence[msgspec.Raw]) -> tuple[Iterable[tuple[ValueReader, list[int], list[Any]]], list[int]]:
        """What the nodes read, by their places, and the places of what none can read."""
        node, decode = self._ways[0]
        try:
            return [(node, list(range(len(tokens))), [decode(token) for token in tokens])], []
        except UNREADABLE:
            return self._read_one_by_one(tokens)

    def _read_one_by_one(
        self, tokens: Sequence[msgspec.Raw]
    ) -> tuple[Iterable[tuple[ValueReader, list[int], list[Any]]], list[int]]:
        found: list[tuple[ValueReader, list[int], list[Any]]] = [(node, [], []) for node in self._nodes]
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
    def for_headers(self) -> TokenReader:
        """The same in a header, where Connect's usual converter writes decimals as numbers."""
        return TokenReader(decimals.accept_numbers(self._nodes[0]))

    @cached_property
    def misfit_token(self) -> msgspec.Raw:
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


def _to_text(values: Sequence[Any]) -> pa.Array:
    """Text as it is, and anything else as its JSON."""
    texts = (None if value is None else bytes(value) for value in values)
    told = [msgspec.json.decode(text, type=str) if text and text[:1] == b'"' else text and text.decode() for text in texts]
    return pa.array(told, pa.string())


UNTYPED = TokenReader(ValueReader(pa.string(), msgspec.Raw, _to_text, "raw"))
"""Of values of which nobody knows the type, and of those that have no one text: lanes stop there, and what is stored is
masked all the same."""


def make_schema_reader(said: Mapping[str, Any], mask: Mask, how: HowOutOfRange = "reject") -> TokenReader:
    """How values are read that have this schema of Connect. `how`: what becomes of those that have no place."""
    try:
        schema = msgspec.convert(said, ConnectSchema)
        nodes = [find_reader(schema)]
        if holds_decimals(schema):
            nodes.append(find_reader(schema, numeric=True))
    except (ValueMisfit, msgspec.ValidationError):
        return UNTYPED
    return make_reader([make_lenient(node, how) for node in nodes], mask)


def make_reader(nodes: Sequence[ValueReader], mask: Mask) -> TokenReader:
    """How values are read by these nodes, the usual one first."""
    needs_text = mask.kind in ("hmac", "truncate")
    return UNTYPED if needs_text and not is_hashable(nodes[0].type) else TokenReader(*nodes)


@dataclass
class TokenCells:
    """The values of one column, and where they are."""

    name: str
    reader: TokenReader
    mask: Mask
    images: list[Object] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """The places of those that count as not sent where they do not fit: of deleted rows, outside their keys."""

    def mask_values(self, placeholders: Placeholders) -> None:
        """Set every value to what its mask keeps of it."""
        tokens = [image[self.name] for image in self.images]
        found, bad = self.reader.read(tokens)
        for place in bad:
            self.images[place][self.name] = self._misfit_token
        for node, places, values in found:
            built = build_column(node, values, self.name, placeholders)
            for place, kept in zip(places, self._mask_tokens(built.array), strict=True):
                self.images[place][self.name] = kept
            for number in built.unchanged:
                place = places[number]
                self.images[place][self.name] = self._unchanged_token(tokens[place], placeholders)
            for number in built.errors:
                place = places[number]
                self.images[place][self.name] = (
                    self._unchanged_token(NULL, placeholders) if place in self.lost else self._misfit_token
                )

    @property
    def _misfit_token(self) -> msgspec.Raw:
        return self.reader.misfit_token if self.mask.kind == "nothing" else UNFIT[0]

    def _mask_tokens(self, values: pa.Array) -> Iterable[msgspec.Raw]:
        if self.mask.kind in ("nothing", "fixed"):
            same = NULL if self.mask.kind == "nothing" else msgspec.Raw(msgspec.json.encode(self.mask.text))
            return [same] * len(values)
        encode: Callable[[Any], bytes] = msgspec.json.encode
        return [msgspec.Raw(encode(text)) for text in mask_values(pa.chunked_array([values]), self.mask).to_pylist()]

    def _unchanged_token(self, token: msgspec.Raw, placeholders: Placeholders) -> msgspec.Raw:
        """What tells that a value was not sent, in a column of the type that it is stored with. `token`: what told it."""
        if self.mask.kind == "nothing":
            return token
        said = bytes(token)
        is_one = said[:1] == b'"' and placeholders.is_text(msgspec.json.decode(said, type=str))
        return token if is_one else msgspec.Raw(msgspec.json.encode(placeholders.text))


class TokenMasker:
    """Gathers values, and masks those of one column together."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._cells: dict[tuple[str, TokenReader, Mask], TokenCells] = {}

    def add(
        self, image: Object, masks: Mapping[str, Mask], readings: Mapping[str, TokenReader], keys: Collection[str] | None
    ) -> None:
        """The values of an object, which are set when all are `mask_all`. `keys`: the key's columns, for a row that is
        deleted."""
        for name, mask in masks.items():
            if name not in image or bytes(image[name]) == b"null":
                continue
            reading = readings.get(name, UNTYPED)
            cells = self._cells.setdefault((name, reading, mask), TokenCells(name, reading, mask))
            if keys is not None and name not in keys:
                cells.lost.add(len(cells.images))
            cells.images.append(image)

    def mask_all(self) -> None:
        """Set all of them."""
        for cells in self._cells.values():
            cells.mask_values(self._placeholders)
        self._cells.clear()
