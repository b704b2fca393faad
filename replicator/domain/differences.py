"""The result of a comparison of a source table with a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import pyarrow as pa

DifferenceKind = Literal["missing", "extra", "different"]


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs. `missing`: only the source has it. `extra`: only the target has it.

    - `key`: the values of the key columns in the target, as plain values.
    - `columns`: by name the expected value and the value in the target, of the columns that differ. For a missing or an
      extra row, all columns; the value of the absent side is None.
    - `reason`: why the row differs, if the pipeline knows it; else empty.
    """

    kind: DifferenceKind
    key: Mapping[str, Any]
    columns: Mapping[str, tuple[Any, Any]]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LaneDiff:
    """The comparison of one lane.

    - `against`: `source` or `log`.
    - `position`: the points of the first and the last split, for people. `commit`: the compared commit of the target.
    - `rows`: compared rows of the source. `missing`, `extra`, `different`: numbers of rows.
    - `differences`: the first of these rows.
    - `not_compared`: what was not compared, and why, in sentences.
    - `begun`: ISO time. `seconds`: the duration.
    - `keys`: the keys of all rows that differ, with the source's names. Empty if the target has other keys than the source.
    """

    lane: str
    table: str
    against: str
    position: tuple[str, str]
    commit: str
    rows: int
    missing: int
    extra: int
    different: int
    differences: tuple[RowDifference, ...]
    not_compared: tuple[str, ...]
    begun: str
    seconds: float
    keys: pa.Table = field(default_factory=lambda: pa.table({}), repr=False, compare=False)

    @property
    def equal(self) -> bool:
        """True if no row differs."""
        return not (self.missing or self.extra or self.different)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        said = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "keys"}
        return {**said, "equal": self.equal, "differences": [asdict(one) for one in self.differences]}
