"""The meaning of column transforms, one change at a time. Part of the definition in `model`; it uses no plan and no
engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from .model import Change


class UnrepresentableValue(Exception):
    """A value without a lossless form in its new type, or an expression without a value."""


class NoValue(Enum):
    """Why a computed column has no value."""

    UNSENT = "not sent"
    NOTHING = "rejected"


@dataclass(frozen=True)
class ModelComputedColumn:
    """A computed column: its input columns, and its function. UnrepresentableValue if there is no value."""

    inputs: frozenset[str]
    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class ModelColumnTransforms:
    """Transforms of single columns.

    - `dropped`: columns to leave out. `names`: new names of columns. `values`: functions of column values.
    - `added`: columns from the metadata of a change. A truncate has none.
    - `computed`: columns from the values of the change, as sent:
      - If no input but key columns was sent, the column is unchanged.
      - If only some inputs were sent, or there is no value, the change is rejected.
      - If no input was sent and the key change affects an input, the change is rejected.
      - In a delete the column is NULL.

    A change with an unrepresentable value is rejected. In a delete, that value counts as unchanged, or is NULL in an
    added column. NULL stays NULL, and unchanged values stay unchanged.
    """

    dropped: frozenset[str] = frozenset()
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Callable[[Change], Any]] = field(default_factory=dict)
    computed: Mapping[str, ModelComputedColumn] = field(default_factory=dict)

    def list_columns(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The columns after the transforms."""
        return (*self.list_keys(names), *self.added, *self.computed)

    def list_keys(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The remaining source columns, with their new names."""
        return tuple(self.names.get(name, name) for name in names if name not in self.dropped)

    def transform_change(self, change: Change, keys: tuple[str, ...], came: Change | None = None) -> Change | None:
        """The change for the policy; None if it is rejected. `keys`: their names in the source. `came`: the change
        with the dropped columns."""
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
