"""Values in records, and their replacements."""

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
    """The role of an image in its record: the new row, the deleted row, or other values."""

    ROW = "row"
    DELETED = "deleted"
    BESIDE = "beside"


class ValueWriter(Protocol):
    """Reads and writes values in records of a format. One object for all records of one layout."""

    columns: Collection[str]
    """The columns whose values it can read."""

    def array(self, name: str, values: Sequence[Any]) -> pa.Array:
        """Values of a column as an Arrow array; None is null. Raises one of `arrow.record_errors.FAILURES`."""
        ...

    def texts(self, values: Sequence[Any]) -> pa.Array:
        """Values of any column as the texts in the record; None is null. Raises the same errors as `array`."""
        ...

    def is_null(self, value: Any) -> bool:
        """True if a value is NULL."""
        ...

    def to_value(self, text: str | None) -> Any:
        """The value for a text, or for null."""
        ...


class Image(NamedTuple):
    """Values of one row: `fields` by name, which are replaced. `prefix`: the prefix of their names."""

    fields: dict[str, Any]
    role: Role
    prefix: str = ""


class OpenRecord(NamedTuple):
    """A record whose values can be replaced. `keys`: the key's columns. `close` returns the record's bytes."""

    images: Sequence[Image]
    writer: ValueWriter
    keys: Collection[str]
    close: Callable[[], bytes]


@dataclass
class MaskedCells:
    """The values of one column in several records."""

    writer: ValueWriter
    name: str
    mask: Mask
    places: list[int] = field(default_factory=list)
    images: list[tuple[Image, bool]] = field(default_factory=list)
    """The flag is true if an invalid value makes its record a reject."""

    def mask_values(self) -> Mapping[int, Reject]:
        """Replace every value by its masked value. Returns rejects by index of their record."""
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
        """Values with the type of the column, if that type has a unique text; otherwise the texts as written. Lanes stop
        at such a column, but the stored records are masked all the same."""
        if self.name in self.writer.columns:
            array = self.writer.array(self.name, values)
            if is_hashable(array.type):
                return array
        return self.writer.texts(values)


class ValueMasker:
    """Collects the values of records, and masks those of one column at once."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, str], MaskedCells] = {}

    def add(self, place: int, record: OpenRecord, masks: Mapping[str, Mask]) -> None:
        """Add the values of a record at an index."""
        for image in record.images:
            for name, mask in masks.items():
                if image.prefix + name in image.fields:
                    known = self._cells.setdefault((id(record.writer), name), MaskedCells(record.writer, name, mask))
                    is_key = name in record.keys
                    known.places.append(place)
                    known.images.append((image, image.role is Role.ROW or is_key))

    def mask_all(self) -> Mapping[int, Reject]:
        """Replace all values. Returns for each rejected record, by index, its first error."""
        errors: dict[int, Reject] = {}
        for cells in self._cells.values():
            for place, reject in cells.mask_values().items():
                errors.setdefault(place, reject)
        return errors
