"""What becomes of dates and times that no target can hold: infinity, years before 1 and after 9999, times from 24:00 on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from .column_selection import ColumnSelection
from .transform.columns import MaskKind
from .transform.expressions import list_columns
from .transform.rows import RowTransforms

RangeRule = Literal["reject", "null", "clamp"]
"""reject: the change. null: the value is NULL. clamp: the nearest value that there is."""
RangeRules = RangeRule | Mapping[str, RangeRule]
"""For all columns, or by column."""
ReadMode = RangeRule | Literal["unread", "text"]
"""unread: no target has the column, so that whatever it holds rejects nothing. text: every target has its text."""


@dataclass(frozen=True)
class LaneReads:
    """What a lane reads of its table: the columns that are `chosen` (None: all) but for those that it `excluded`, and what
    it `needs` besides. `texts`: those of which it has the text."""

    chosen: ColumnSelection | None
    excluded: frozenset[str]
    needs: frozenset[str]
    texts: frozenset[str] = frozenset()

    def has_column(self, name: str) -> bool:
        """The lane looks at the column."""
        return name in self.needs or (name not in self.excluded and (self.chosen is None or name in self.chosen))

    def has_text(self, name: str) -> bool:
        """The lane looks at nothing of the column but its text."""
        return name in self.texts and name not in self.needs


@dataclass(frozen=True)
class OutOfRange:
    """The rules of a table. `lanes`: what they read, if that is known. `masks`: by column what all lanes have instead of its
    values."""

    rules: RangeRules = "reject"
    lanes: tuple[LaneReads, ...] = ()
    masks: Mapping[str, MaskKind] = field(default_factory=dict)

    def get_mode(self, name: str) -> ReadMode:
        """How values of this column are read."""
        lanes = [lane for lane in self.lanes if lane.has_column(name)]
        mask = self.masks.get(name)
        if mask == "nothing" or (self.lanes and not lanes):
            return "unread"
        if mask == "fixed":
            return "clamp"  # Of NULL a mask makes NULL, and no text.
        rule = self.rules if isinstance(self.rules, str) else self.rules.get(name, "reject")
        is_text = lanes and mask is None and all(lane.has_text(name) for lane in lanes)
        return "text" if rule == "reject" and is_text else rule


def find_reads(shape: RowTransforms) -> LaneReads:
    """What a lane of this shape reads."""
    conditions = (shape.deletes, shape.truncates, shape.where)
    made = (added.expression for _, added in shape.column_transforms.additions)
    named = (list_columns(one) for one in (*conditions, *made) if one is not None)
    left = {
        n for n, rule in shape.column_transforms.rules if rule.drop or (rule.mask and rule.mask.kind in ("nothing", "fixed"))
    }
    texts = {n for n, rule in shape.column_transforms.rules if rule.cast == pa.string() and rule.mask is None}
    return LaneReads(shape.columns, frozenset(left), frozenset(shape.sequence_by).union(*named), frozenset(texts))
