"""Values of records, and what is written in their places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from replicator.domain.errors import Reject
from replicator.domain.transform.casts import is_hashable
from replicator.domain.transform.columns import Mask

from ...arrow.masks import mask_values
from ...arrow.record_errors import build_or_reject


class Role(Enum):
    """What an image of a record is: the row that it brings, the row that is deleted, or something beside these."""

    ROW = "row"
    DELETED = "deleted"
    BESIDE = "beside"


class ValueWriter(Protocol):
    """How a format has values in records. One object for all records of one layout."""

    columns: Collection[str]
    """The columns whose values it can read."""

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column, None for null, as Arrow values. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """Values of any column, None for null, as the texts that they are written in. Raises as `array`."""
        ...

    def is_null(self, value: Any) -> bool:
        """Whether a value is none."""
        ...

    def to_value(self, text: str | None) -> Any:
        """A text, or null, as a value."""
        ...


class Image(NamedTuple):
    """Values of one row: `fields` by their names, which are set anew. `prefix`: what the names begin with."""

    fields: dict[str, Any]
    role: Role
    prefix: str = ""


class OpenRecord(NamedTuple):
    """A record whose values can be set. `keys`: the key's columns. `close`: what the record is then."""

    images: Sequence[Image]
    writer: ValueWriter
    keys: Collection[str]
    close: Callable[[], bytes]


@dataclass
class MaskedCells:
    """The values of one column of several records."""

    writer: ValueWriter
    name: str
    mask: Mask
    places: list[int] = field(default_factory=list)
    images: list[tuple[Image, bool]] = field(default_factory=list)
    """With whether a value that does not fit makes a reject of its record."""

    def mask_values(self) -> Mapping[int, Reject]:
        """Set every value to what its mask keeps of it; why a record is a reject, by its place."""
        values = [image.fields[image.prefix + self.name] for image, _ in self.images]
        given = [None if self.writer.is_null(value) else value for value in values]
        texts, bad = self._mask_texts(given)
        for (image, _), value, text in zip(self.images, given, texts, strict=True):
            if value is not None:
                image.fields[image.prefix + self.name] = self.writer.to_value(text)
        return {self.places[i]: reject for i, reject in bad.items() if self.images[i][1]}

    def _mask_texts(self, given: list[Any]) -> tuple[Sequence[str | None], Mapping[int, Reject]]:
        if self.mask.kind in ("nothing", "fixed"):
            text = self.mask.text if self.mask.kind == "fixed" else None
            return [text] * len(given), {}
        array, bad = build_or_reject(self._read_array, given, f"column {self.name!r}")
        return mask_values(pa.chunked_array([array]), self.mask).to_pylist(), bad

    def _read_array(self, values: Sequence[Any]) -> pa.Array:
        """Of a type without one text as they are written: lanes stop there, and what is stored is masked all the same."""
        if self.name in self.writer.columns:
            array = self.writer.array(self.name, values)
            if is_hashable(array.type):
                return array
        return self.writer.texts(values)


class ValueMasker:
    """Gathers the values of records, and masks those of one column together."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, str], MaskedCells] = {}

    def add(self, place: int, record: OpenRecord, masks: Mapping[str, Mask]) -> None:
        """The values of a record at a place."""
        for image in record.images:
            for name, mask in masks.items():
                if image.prefix + name in image.fields:
                    known = self._cells.setdefault((id(record.writer), name), MaskedCells(record.writer, name, mask))
                    is_key = name in record.keys
                    known.places.append(place)
                    known.images.append((image, image.role is Role.ROW or is_key))

    def mask_all(self) -> Mapping[int, Reject]:
        """Set all values; why a record is a reject, by its place: the first reason."""
        errors: dict[int, Reject] = {}
        for cells in self._cells.values():
            for place, reject in cells.mask_values().items():
                errors.setdefault(place, reject)
        return errors
