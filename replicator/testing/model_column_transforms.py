"""What a lane makes of single columns: a part of the definition that `model` is, one change at a time, and like it without a
word of plans and engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from .model import Change


class UnrepresentableValue(Exception):
    """A value that its new type cannot hold without loss, or that there is none of."""


class NoValue(Enum):
    """What there is to say of a computed column where there is no value."""

    UNSENT = "not sent"
    NOTHING = "rejected"


@dataclass(frozen=True)
class ModelComputedColumn:
    """What a column is computed of, and how. Raises Unfit where there is no value."""

    inputs: frozenset[str]
    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class ModelColumnTransforms:
    """`dropped`: columns that are left out. `values`: what becomes of the values of a column. `names`: the new name of a
    column. `added`: what a change says of a column that there is beside the source's own; a truncate says nothing.

    `computed`: such a column that is made of what the change sent, as it sent it. A change that sent nothing of that, but
    for the key, did not send the column. One that sent a part of it is rejected, as is one without a value, and one that
    sent nothing of it and moves a row whose key it is made of. Of a delete the column is NULL.

    A change with a value that is unfit is rejected; of a delete that value counts as not sent, or is NULL if it was added.
    NULL stays NULL, and what was not sent stays that.
    """

    dropped: frozenset[str] = frozenset()
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Callable[[Change], Any]] = field(default_factory=dict)
    computed: Mapping[str, ModelComputedColumn] = field(default_factory=dict)

    def list_columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The columns that there are then."""
        return (*self.list_keys(names), *self.added, *self.computed)

    def list_keys(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the source's columns that are left, as they are called then."""
        return tuple(self.names.get(name, name) for name in names if name not in self.dropped)

    def transform_change(self, change: Change, keys: tuple[str, ...], came: Change | None = None) -> Change | None:
        """The change as its policy takes it; None when it is rejected. `keys`: as the source calls them. `came`: with the
        columns that are left out."""
        image, unsent = {}, {self.names.get(n, n) for n in change.unsent if n not in self.dropped}
        for name, value in change.image.items():
            if name in self.dropped:
                continue
            try:
                image[self.names.get(name, name)] = self._transform_value(name, None if name in change.unsent else value)
            except UnrepresentableValue:
                if change.op != "d":
                    return None
                unsent.add(self.names.get(name, name))
        for name, said in self.added.items() if change.op != "t" else ():
            try:
                image[name] = said(change)
            except UnrepresentableValue:
                if change.op != "d":
                    return None
                image[name] = None
        for name, computing in self.computed.items() if change.op != "t" else ():
            told = None if change.op == "d" else self._compute(came or change, computing, keys)
            if told is NoValue.NOTHING:
                return None
            image[name] = None if told is NoValue.UNSENT else told
            unsent |= {name} if told is NoValue.UNSENT else set()
        old = change.moved_from and tuple(map(self._transform_value, keys, change.moved_from))
        made = frozenset({*self.added, *self.computed})
        return replace(change, image=image, unsent=frozenset(unsent), moved_from=old, computed=made)

    def _compute(self, came: Change, computing: ModelComputedColumn, keys: tuple[str, ...]) -> Any:
        lacking, of_keys = computing.inputs & came.unsent, computing.inputs & set(keys)
        if lacking:
            moves = came.moved_from is not None and of_keys
            return NoValue.UNSENT if lacking == computing.inputs - of_keys and not moves else NoValue.NOTHING
        try:
            return computing.value(came.image)
        except UnrepresentableValue:
            return NoValue.NOTHING

    def _transform_value(self, name: str, value: Any) -> Any:
        return value if value is None or name not in self.values else self.values[name](value)
