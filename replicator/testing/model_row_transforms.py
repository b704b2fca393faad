"""What a lane makes of its table's changes before its policy takes them: a part of the definition that `model` is, one
change at a time, and like it without a word of plans and engines."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .model import Change, Outcome, Policy, Row
from .model_column_transforms import ModelColumnTransforms

Condition = Callable[[Mapping[str, Any], frozenset[str]], bool | None]
"""Asked of an image and the names of what was not sent, which is unknown; None where the answer is unknown."""


@dataclass(frozen=True)
class ModelRowTransforms:
    """What a lane makes of its table's changes before its policy takes them; nothing by default.

    `truncates`, `deletes`: creates, updates and reads for which it holds are truncates, or else deletes. `sequence_by`: the
    columns whose values come before the log's own elements in the sequence; versions show the first of them. `stored`: how a
    target keeps these values, by column, where it does not keep them as they are. `columns`: those that there are from then
    on, all when None. `without_deletes`: neither deletes nor truncates, but for the delete half of a key change.
    `ignore_null`: columns in which the NULL of a create, update or read leaves what the row holds. `soft_deletes`: the
    policy leaves what is deleted, marked. `has_column_versions`: it has a sequence for each column. `where`: creates,
    updates and reads for which it does not hold are deletes or, where not `rows_leave`, left out; `condition_columns` are
    the columns that it looks at, and one that did not send them all is rejected. `column_transforms`: what becomes of
    single columns, last of all.
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
        """The policy, taking changes as the lane wants them; `keys`: as the source calls them."""
        return TransformingPolicy(policy, self, keys)

    def list_names(self, columns: tuple[str, ...], keys: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns and the keys that there are then."""
        columns = tuple(name for name in columns if self.columns is None or name in self.columns)
        return (
            (columns, keys)
            if self.column_transforms is None
            else (self.column_transforms.list_columns(columns), self.column_transforms.list_keys(keys))
        )


class TransformingPolicy:
    """A policy that takes changes as the lane wants them.

    A change without a value in a column of `sequence_by`, be it NULL or not sent, is rejected: it has no place in the order.
    What is left out for being a delete need not have one.
    """

    def __init__(self, policy: Policy, wanted: ModelRowTransforms, keys: tuple[str, ...] = ()) -> None:
        self.policy = policy
        self.wanted = wanted
        self.keys = keys

    def apply_change(self, change: Change) -> Outcome:
        """As the class says."""
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
        """The rows of the policy, with the sequence as a target keeps it."""
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
