"""The meaning of row transforms, one change at a time. Part of the definition in `model`; it uses no plan and no
engine."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .model import Change, Outcome, Policy, Row
from .model_column_transforms import ModelColumnTransforms

Condition = Callable[[Mapping[str, Any], frozenset[str]], bool | None]
"""Called with an image and the names of unchanged columns, whose values are unknown. None if the result is unknown."""


@dataclass(frozen=True)
class ModelRowTransforms:
    """The row transforms of a lane; by default none.

    - `truncates`, `deletes`: conditions for creates, updates and reads that are truncates, or else deletes.
    - `sequence_by`: columns whose values come before the log's elements in the sequence. Versions show the first of
      them.
    - `stored`: by column, the form in which a target stores these values, if it differs.
    - `columns`: the columns to keep; all when None.
    - `without_deletes`: no deletes and truncates, except delete halves of key changes.
    - `ignore_null`: columns in which a NULL of an upsert keeps the row's value.
    - `soft_deletes`: the policy marks deleted rows. `has_column_versions`: the policy has a sequence per column.
    - `where`: creates, updates and reads that do not match are deletes, or, unless `rows_leave`, filtered.
    - `condition_columns`: the columns of `where`. A change that did not send all of them is rejected.
    - `column_transforms`: applied last.
    """

    truncates: Condition | None = None
    deletes: Condition | None = None
    sequence_by: tuple[str, ...] = ()
    stored: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    columns: Container[str] | None = None
    without_deletes: bool = False
    ignore_null: Container[str] = ()
    soft_deletes: bool = False
    has_column_versions: bool = False
    where: Condition | None = None
    condition_columns: frozenset[str] = frozenset()
    rows_leave: bool = True
    column_transforms: ModelColumnTransforms | None = None

    def wrap_policy(self, policy: Policy, keys: tuple[str, ...] = ()) -> Policy:
        """The policy with these transforms before it. `keys`: their names in the source."""
        return TransformingPolicy(policy, self, keys)

    def list_names(self, columns: tuple[str, ...], keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns and keys after the transforms."""
        columns = tuple(name for name in columns if self.columns is None or name in self.columns)
        return (
            (columns, keys)
            if self.column_transforms is None
            else (self.column_transforms.list_columns(columns), self.column_transforms.list_keys(keys))
        )


class TransformingPolicy:
    """A policy with row transforms before it.

    A change with a NULL or missing value in a column of `sequence_by` has no position in the order, and is rejected.
    A filtered delete needs no such value.
    """

    def __init__(self, policy: Policy, wanted: ModelRowTransforms, keys: tuple[str, ...] = ()) -> None:
        self.policy = policy
        self.wanted = wanted
        self.keys = keys

    def apply_change(self, change: Change) -> Outcome:
        op = self._find_operation(change)
        if self.wanted.without_deletes and (op == "t" or (op == "d" and not change.moved_to)):
            return Outcome.FILTERED
        if self.wanted.where is not None and op in ("c", "u", "r"):
            if self.wanted.condition_columns & change.unsent:
                return Outcome.REJECTED
            if self.wanted.where(change.image, change.unsent) is not True:
                if not self.wanted.rows_leave:
                    return Outcome.FILTERED
                op = "d"
        sent = {name: value for name, value in change.image.items() if name not in change.unsent}
        places = tuple(sent.get(name) for name in self.wanted.sequence_by)
        if None in places:
            return Outcome.REJECTED
        became = op != change.op
        taken = replace(
            change,
            op=op,
            sequence=(*places, *change.sequence),
            image={} if op == "t" else {name: v for name, v in change.image.items() if self._is_there(name)},
            unsent=frozenset() if op == "t" else frozenset(filter(self._is_there, change.unsent)),
            moved_from=None if became else change.moved_from,
            ignore_null=self.wanted.ignore_null,
            at=places[0] if places else None,
        )
        made = (
            taken
            if self.wanted.column_transforms is None
            else self.wanted.column_transforms.transform_change(taken, self.keys, change)
        )
        return Outcome.REJECTED if made is None else self.policy.apply_change(made)

    def _find_operation(self, change: Change) -> str:
        for op, condition in (("t", self.wanted.truncates), ("d", self.wanted.deletes)):
            if change.op in ("c", "u", "r") and condition is not None and condition(change.image, change.unsent):
                return op
        return change.op

    def _is_there(self, name: str) -> bool:
        return self.wanted.columns is None or name in self.wanted.columns

    def table(self) -> list[Row]:
        """The rows of the policy, with the sequence in its stored form."""
        kept = {
            f"{prefix}_{i}": self.wanted.stored[name]
            for i, name in enumerate(self.wanted.sequence_by, 1)
            for prefix in ("_cdc_seq", "_cdc_end_seq", "_cdc_last_seq")
            if name in self.wanted.stored
        }
        return [
            row | {name: stored(row[name]) for name, stored in kept.items() if row.get(name) is not None}
            for row in self.policy.table()
        ]
