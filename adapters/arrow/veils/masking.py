"""Values of records, and what is written in their places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from replicator.domain.casting import is_hashable
from replicator.domain.columns import Mask
from replicator.domain.errors import Reject

from ..json.faults import fit
from ..masks import masked


class Role(Enum):
    """What an image of a record is: the row that it brings, the row that is deleted, or something beside these."""

    ROW = "row"
    DELETED = "deleted"
    BESIDE = "beside"


class Writes(Protocol):
    """How a format has values in records. One object for all records of one layout."""

    columns: Collection[str]
    """The columns whose values it can read."""

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column, None for null, as Arrow values. Raises one of `json.faults.FAILURES`."""
        ...

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """Values of any column, None for null, as the texts that they are written in. Raises as `array`."""
        ...

    def is_null(self, value: Any) -> bool:
        """Whether a value is none."""
        ...

    def written(self, text: str | None) -> Any:
        """A text, or null, as a value."""
        ...


class Image(NamedTuple):
    """Values of one row: `fields` by their names, which are set anew. `prefix`: what the names begin with."""

    fields: dict[str, Any]
    role: Role
    prefix: str = ""


class Opened(NamedTuple):
    """A record whose values can be set. `keys`: the key's columns. `close`: what the record is then."""

    images: Sequence[Image]
    writes: Writes
    keys: Collection[str]
    close: Callable[[], bytes]


@dataclass
class Cells:
    """The values of one column of several records."""

    writes: Writes
    name: str
    mask: Mask
    places: list[int] = field(default_factory=list)
    images: list[tuple[Image, bool]] = field(default_factory=list)
    """With whether a value that does not fit makes a reject of its record."""

    def mask_them(self) -> Mapping[int, Reject]:
        """Set every value to what its mask keeps of it; why a record is a reject, by its place."""
        values = [image.fields[image.prefix + self.name] for image, _ in self.images]
        given = [None if self.writes.is_null(value) else value for value in values]
        texts, bad = self._texts(given)
        for (image, _), value, text in zip(self.images, given, texts, strict=True):
            if value is not None:
                image.fields[image.prefix + self.name] = self.writes.written(text)
        return {self.places[i]: reject for i, reject in bad.items() if self.images[i][1]}

    def _texts(self, given: list[Any]) -> tuple[Sequence[str | None], Mapping[int, Reject]]:
        if self.mask.kind in ("nothing", "fixed"):
            text = self.mask.text if self.mask.kind == "fixed" else None
            return [text] * len(given), {}
        array, bad = fit(self._array, given, f"column {self.name!r}")
        return masked(pa.chunked_array([array]), self.mask).to_pylist(), bad

    def _array(self, values: Sequence[Any]) -> pa.Array:
        """Of a type without one text as they are written: lanes stop there, and what is stored is masked all the same."""
        if self.name in self.writes.columns:
            array = self.writes.array(self.name, values)
            if is_hashable(array.type):
                return array
        return self.writes.texts(values)


class Masking:
    """Gathers the values of records, and masks those of one column together."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, str], Cells] = {}

    def add(self, place: int, record: Opened, masks: Mapping[str, Mask]) -> None:
        """The values of a record at a place."""
        for image in record.images:
            for name, mask in masks.items():
                if image.prefix + name in image.fields:
                    known = self._cells.setdefault((id(record.writes), name), Cells(record.writes, name, mask))
                    is_key = name in record.keys
                    known.places.append(place)
                    known.images.append((image, image.role is Role.ROW or is_key))

    def done(self) -> Mapping[int, Reject]:
        """Set all values; why a record is a reject, by its place: the first reason."""
        errors: dict[int, Reject] = {}
        for cells in self._cells.values():
            for place, reject in cells.mask_them().items():
                errors.setdefault(place, reject)
        return errors
