"""What becomes of dates and times that no target can hold: infinity, years before 1 and after 9999, times from 24:00 on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .chosen import Chosen
from .conditions import columns_of
from .shape import Shape

Rule = Literal["reject", "null", "clamp"]
"""reject: the change. null: the value is NULL. clamp: the nearest value that there is."""
Said = Rule | Mapping[str, Rule]
"""For all columns, or by column."""
Reading = Rule | Literal["unread"]
"""unread: no target has the column, so that whatever it holds rejects nothing."""


@dataclass(frozen=True)
class Reads:
    """What a lane reads of its table: the columns that are `chosen` (None: all) but for those that it `leaves`, and what it
    `needs` besides."""

    chosen: Chosen | None
    leaves: frozenset[str]
    needs: frozenset[str]

    def has(self, name: str) -> bool:
        """The lane looks at the column."""
        return name in self.needs or (name not in self.leaves and (self.chosen is None or name in self.chosen))


@dataclass(frozen=True)
class OutOfRange:
    """The rules of a table. `lanes`: what they read, if that is known. `masked`: columns of which no lane has a value."""

    said: Said = "reject"
    lanes: tuple[Reads, ...] = ()
    masked: frozenset[str] = field(default_factory=frozenset)

    def of(self, name: str) -> Reading:
        """How values of this column are read."""
        if name in self.masked or (self.lanes and not any(lane.has(name) for lane in self.lanes)):
            return "unread"
        return self.said if isinstance(self.said, str) else self.said.get(name, "reject")


def reads_of(shape: Shape) -> Reads:
    """What a lane of this shape reads."""
    conditions = (shape.deletes, shape.truncates, shape.where)
    made = (added.expression for _, added in shape.remade.added)
    named = (columns_of(one) for one in (*conditions, *made) if one is not None)
    left = {n for n, rule in shape.remade.changed if rule.drop or (rule.mask and rule.mask.kind in ("nothing", "fixed"))}
    return Reads(shape.columns, frozenset(left), frozenset(shape.sequence_by).union(*named))
