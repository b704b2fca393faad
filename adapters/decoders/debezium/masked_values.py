"""Values of private columns in records, collected by column and masked at once.

They are read like decoded values, so the stored value equals the decoded value for every type.
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
from .types import find_schema_reader, holds_decimals
from .unchanged_values import Placeholders

Object = dict[str, Any]
"""An object whose values are JSON (`msgspec.Raw`) or such objects."""
NULL = msgspec.Raw(b"null")
UNFIT = (msgspec.Raw(b"{}"), msgspec.Raw(b"0"), msgspec.Raw(b'"\\ud800"'))
"""Invalid tokens that replace invalid values. The first one that is invalid for a column is used, so that its record is
rejected like the original."""


class TokenReader:
    """Reads values of one column, with the first node that can."""

    def __init__(self, *nodes: ValueReader) -> None:
        self._nodes = nodes
        self._ways = [(node, msgspec.json.Decoder(node.wire).decode) for node in nodes]

    def read(self, tokens: Sequence[msgspec.Raw]) -> tuple[Iterable[tuple[ValueReader, list[int], list[Any]]], list[int]]:
        """The values that each node read, with their indices, and the indices of unreadable values."""
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
        """The reader for header values: Connect's usual header converter writes decimals as numbers."""
        return TokenReader(decimals.accept_numbers(self._nodes[0]))

    @cached_property
    def misfit_token(self) -> msgspec.Raw:
        """JSON that is invalid for the column. Unreadable JSON comes before values that are only out of range, because in
        a deleted row the latter count as unchanged."""
        node, decode = self._ways[0]
        for is_value in (decode, lambda token: node.build([decode(token)])):
            for token in UNFIT[:-1]:
                try:
                    is_value(token)
                except (*FAILURES, *UNREADABLE):
                    return token
        return UNFIT[-1]


def _to_text(values: Sequence[Any]) -> pa.Array:
    """Text as it is, other values as their JSON."""
    texts = (None if value is None else bytes(value) for value in values)
    told = [msgspec.json.decode(text, type=str) if text and text[:1] == b'"' else text and text.decode() for text in texts]
    return pa.array(told, pa.string())


UNTYPED = TokenReader(ValueReader(pa.string(), msgspec.Raw, _to_text, "raw"))
"""Reader for values of unknown types and for types without a unique text. Lanes stop at such a column, but the stored
records are masked all the same."""


def make_schema_reader(said: Mapping[str, Any], mask: Mask, how: HowOutOfRange = "reject") -> TokenReader:
    """The reader of values with this Connect schema. `how`: the treatment of values out of range."""
    try:
        schema = msgspec.convert(said, ConnectSchema)
        nodes = [find_schema_reader(schema)]
        if holds_decimals(schema):
            nodes.append(find_schema_reader(schema, numeric=True))
    except (ValueMisfit, msgspec.ValidationError):
        return UNTYPED
    return make_reader([make_lenient(node, how) for node in nodes], mask)


def make_reader(nodes: Sequence[ValueReader], mask: Mask) -> TokenReader:
    """The reader that uses these nodes, the most likely one first."""
    needs_text = mask.kind in ("hmac", "truncate")
    return UNTYPED if needs_text and not is_hashable(nodes[0].type) else TokenReader(*nodes)


@dataclass
class TokenCells:
    """The values of one column, with the objects that contain them."""

    name: str
    reader: TokenReader
    mask: Mask
    images: list[Object] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Indices of values in deleted rows outside the key: invalid ones count as unchanged."""

    def mask_values(self, placeholders: Placeholders) -> None:
        """Replace every value by its masked value."""
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
        """The placeholder for an unchanged value in a column of the stored type. `token`: the original placeholder."""
        if self.mask.kind == "nothing":
            return token
        said = bytes(token)
        is_one = said[:1] == b'"' and placeholders.is_text(msgspec.json.decode(said, type=str))
        return token if is_one else msgspec.Raw(msgspec.json.encode(placeholders.text))


class TokenMasker:
    """Collects values, and masks those of one column at once."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._cells: dict[tuple[str, TokenReader, Mask], TokenCells] = {}

    def add(
        self, image: Object, masks: Mapping[str, Mask], readings: Mapping[str, TokenReader], keys: Collection[str] | None
    ) -> None:
        """Add the values of an object, which `mask_all` replaces. `keys`: the key's columns, for a deleted row."""
        for name, mask in masks.items():
            if name not in image or bytes(image[name]) == b"null":
                continue
            reading = readings.get(name, UNTYPED)
            cells = self._cells.setdefault((name, reading, mask), TokenCells(name, reading, mask))
            if keys is not None and name not in keys:
                cells.lost.add(len(cells.images))
            cells.images.append(image)

    def mask_all(self) -> None:
        """Replace all collected values."""
        for cells in self._cells.values():
            cells.mask_values(self._placeholders)
        self._cells.clear()
