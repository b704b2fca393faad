"""Dates and times that no target can hold: infinity, years before 1 and after 9999, times from 24:00 on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from .patterns import ColumnSelection
from .transform.columns import MaskKind
from .transform.expressions import list_columns
from .transform.rows import RowTransforms

# The times that every engine and target can store: years 1 to 9999.

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970."""
DAY_MS = 86_400_000
FIRST_MS, LAST_MS = FIRST_DAY * DAY_MS, (LAST_DAY + 1) * DAY_MS - 1
FIRST_US, LAST_US = FIRST_MS * 1_000, LAST_MS * 1_000 + 999
BOUNDS = {"ms": (FIRST_MS, LAST_MS), "us": (FIRST_US, LAST_US)}


def null_out_of_range(stamps: pa.Array) -> pa.Array:
    """`stamps`, in milliseconds or microseconds, with null for times outside the years 1 to 9999."""
    first, last = BOUNDS[stamps.type.unit]
    numbers = stamps.view(pa.int64())
    extremes = pc.min_max(numbers)
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    if least is None or (least >= first and most <= last):
        return stamps
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(inside, stamps, pa.scalar(None, stamps.type))


# The rules of the configuration for other values.

RangeRule = Literal["reject", "null", "clamp"]
"""reject: the change is rejected. null: the value is NULL. clamp: the nearest possible value."""
RangeRules = RangeRule | Mapping[str, RangeRule]
"""One rule for all columns, or rules by column."""
ReadMode = RangeRule | Literal["unread", "text"]
"""unread: no target has the column, so its values reject nothing. text: every target stores its text."""


@dataclass(frozen=True)
class LaneReads:
    """The columns that a lane reads of its table: the `chosen` ones (None: all) except `excluded`, and all in `needs`.
    `texts`: columns of which it stores the text."""

    chosen: ColumnSelection | None
    excluded: frozenset[str]
    needs: frozenset[str]
    texts: frozenset[str] = frozenset()

    def has_column(self, name: str) -> bool:
        """True if the lane reads the column."""
        return name in self.needs or (name not in self.excluded and (self.chosen is None or name in self.chosen))

    def has_text(self, name: str) -> bool:
        """True if the lane reads only the text of the column."""
        return name in self.texts and name not in self.needs


@dataclass(frozen=True)
class OutOfRange:
    """The rules of a table. `lanes`: the columns that its lanes read, if known. `masks`: per column the mask that all
    lanes use in place of its values."""

    rules: RangeRules = "reject"
    lanes: tuple[LaneReads, ...] = ()
    masks: Mapping[str, MaskKind] = field(default_factory=dict)

    def get_mode(self, name: str) -> ReadMode:
        """The way to read values of this column."""
        lanes = [lane for lane in self.lanes if lane.has_column(name)]
        mask = self.masks.get(name)
        if mask == "nothing" or (self.lanes and not lanes):
            return "unread"
        if mask == "fixed":
            return "clamp"  # A mask keeps NULL as NULL, so the value must not be NULL.
        rule = self.rules if isinstance(self.rules, str) else self.rules.get(name, "reject")
        is_text = lanes and mask is None and all(lane.has_text(name) for lane in lanes)
        return "text" if rule == "reject" and is_text else rule


def find_reads(transforms: RowTransforms) -> LaneReads:
    """The columns that a lane with these row transforms reads."""
    rules, conditions = transforms.column_transforms.rules, (transforms.deletes, transforms.truncates, transforms.where)
    expressions = (added.expression for _, added in transforms.column_transforms.additions)
    names = (list_columns(one) for one in (*conditions, *expressions) if one is not None)
    drops = {n for n, rule in rules if rule.drop or (rule.mask and rule.mask.kind in ("nothing", "fixed"))}
    texts = {n for n, rule in rules if rule.cast == pa.string() and rule.mask is None}
    return LaneReads(transforms.columns, frozenset(drops), frozenset(transforms.sequence_by).union(*names), frozenset(texts))
