"""What becomes of dates and times that no target can hold: infinity, years before 1 and after 9999, times from 24:00 on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from .chosen import Chosen
from .columns import MaskKind
from .conditions import columns_of
from .shape import Shape

Rule = Literal["reject", "null", "clamp"]
"""reject: the change. null: the value is NULL. clamp: the nearest value that there is."""
Said = Rule | Mapping[str, Rule]
"""For all columns, or by column."""
Reading = Rule | Literal["unread", "text"]
"""unread: no target has the column, so that whatever it holds rejects nothing. text: every target has its text."""


@dataclass(frozen=True)
class Reads:
    """What a lane reads of its table: the columns that are `chosen` (None: all) but for those that it `leaves`, and what it
    `needs` besides. `texts`: those of which it has the text."""

    chosen: Chosen | None
    leaves: frozenset[str]
    needs: frozenset[str]
    texts: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        """The lane looks at the column."""
        return name in self.needs or (name not in self.leaves and (self.chosen is None or name in self.chosen))

    def has_text(self, name: str) -> bool:
        """The lane looks at nothing of the column but its text."""
        return name in self.texts and name not in self.needs


@dataclass(frozen=True)
class OutOfRange:
    """The rules of a table. `lanes`: what they read, if that is known. `masks`: by column what all lanes have instead of its
    values."""

    said: Said = "reject"
    lanes: tuple[Reads, ...] = ()
    masks: Mapping[str, MaskKind] = field(default_factory=dict)

    def of(self, name: str) -> Reading:
        """How values of this column are read."""
        lanes = [lane for lane in self.lanes if lane.has(name)]
        mask = self.masks.get(name)
        if mask == "nothing" or (self.lanes and not lanes):
            return "unread"
        if mask == "fixed":
            return "clamp"  # Of NULL a mask makes NULL, and no text.
        rule = self.said if isinstance(self.said, str) else self.said.get(name, "reject")
        is_text = lanes and mask is None and all(lane.has_text(name) for lane in lanes)
        return "text" if rule == "reject" and is_text else rule


def reads_of(shape: Shape) -> Reads:
    """What a lane of this shape reads."""
    conditions = (shape.deletes, shape.truncates, shape.where)
    made = (added.expression for _, added in shape.remade.added)
    named = (columns_of(one) for one in (*conditions, *made) if one is not None)
    left = {n for n, rule in shape.remade.changed if rule.drop or (rule.mask and rule.mask.kind in ("nothing", "fixed"))}
    texts = {n for n, rule in shape.remade.changed if rule.cast == pa.string() and rule.mask is None}
    return Reads(shape.columns, frozenset(left), frozenset(shape.sequence_by).union(*named), frozenset(texts))
