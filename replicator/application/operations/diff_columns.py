"""The columns of a lane's source and target: those that are compared, and those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.policy.expr import Expr
from replicator.domain.policy.policy_names import VERSION_POLICIES
from replicator.domain.table import is_reserved
from replicator.domain.transform.columns import NO_COLUMN_RULE
from replicator.domain.transform.expressions import list_columns
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.comparison import ComparedColumn, KeyRange, SourceSnapshot, TableSplit, TargetSnapshot
from replicator.ports.frames import Lane

from .row_diff import are_comparable


@dataclass
class DiffColumns:
    """The columns of one lane. Fatal if the target lacks a key column.

    - `masked`: columns whose values are masked where records are decoded.
    - `keys`: the key columns, with the names of the target.
    - `not_compared`: sentences about what is not compared, each once.
    """

    lane: Lane
    source: SourceSnapshot
    target: TargetSnapshot
    masked: frozenset[str]
    keys: list[str] = field(init=False)
    not_compared: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lane.policy in VERSION_POLICIES:
            self.exclude("Closed versions are not compared, as the source has none: `--against log` compares them.")
        for name, kind in self.source.unread.items():
            self.exclude(f"{name} is not compared: values of the type {kind} are not read.")
        self.keys = self.rename(self.source.keys)
        for name in self.keys:
            if name not in self.target.columns.names:
                raise Fatal(
                    f"The target of lane {self.lane.id} has no column {name}, which is part of its key.",
                    next_step=f"Build it again: `replicator replay {self.lane.table}`.",
                )

    def exclude(self, sentence: str) -> None:
        """Add a sentence to `not_compared`."""
        self.not_compared[sentence] = None

    def rename(self, names: Sequence[str]) -> list[str]:
        """Columns of the source, with their names in the target."""
        return [self.lane.row_transforms.column_transforms.get_new_name(name) for name in names]

    @property
    def has_other_keys(self) -> bool:
        """True if keys have other values in the target, or in the log."""
        transforms = self.lane.row_transforms.column_transforms
        return any(
            name in self.masked or transforms.get_rule(name).cast is not None or transforms.get_rule(name).mask is not None
            for name in self.source.keys
        )

    def list_summed(self) -> tuple[ComparedColumn, ...] | None:
        """The columns with checksums. None if values of a column have none, or if the lane changes values or rows."""
        transforms, there, kinds = self.lane.row_transforms, set(self.target.columns.names), self.source.kinds
        if self.masked or not is_plain(transforms):
            return None
        rename = transforms.column_transforms.get_new_name
        found = []
        for name, kind in kinds.items():
            if (transforms.columns is not None and name not in transforms.columns) or not rename(name):
                continue
            if kind is None or rename(name) not in there:
                return None
            found.append(ComparedColumn(name, rename(name), kind))
        compared = {*(column.target for column in found), *self.rename(list(self.source.unread))}
        for name in self.target.columns.names:
            if name not in compared and not is_reserved(name):
                self.exclude(f"{name} is not compared: only the target has this column.")
        return tuple(found) if self.target.can_sum(found) else None

    def to_target(self, split: TableSplit) -> TableSplit:
        """The split with the column names of the target."""
        within = split.within
        if within is not None:
            (column,) = self.rename([within.column])
            within = KeyRange(column, within.above, within.upto)
        without = split.without.rename_columns(self.rename(split.without.column_names))
        return TableSplit(split.columns, tuple(self.keys), within, without, split.where)

    def share(self, expected: pa.Table, actual: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Both with the columns that are compared. Expected values have the form of the target's."""
        there = [name for name in actual.column_names if not is_reserved(name)]
        names = [name for name in expected.column_names if not is_reserved(name)] or there
        volatile = list_volatile_columns(self.lane.row_transforms)
        for name in volatile:
            self.exclude(f"{name} is not compared: it describes the record, not the row.")
        unread = {*self.rename(list(self.source.unread))}
        for name in (set(names) ^ set(there)) - unread:
            self.exclude(f"{name} is not compared: only the {'target' if name in there else 'source'} has this column.")
        shared = [name for name in names if name in there and name not in volatile and name not in unread]
        if not expected.num_columns:
            expected = actual.select(shared).schema.empty_table()
        converted = {name: self.target.convert(name, expected[name].combine_chunks()) for name in shared}
        for name in shared:
            wanted, found = converted[name].type, actual[name].type
            if name not in self.keys and not are_comparable(wanted, found):
                self.exclude(f"{name} is not compared: its type is {found} in the target, and {wanted} in the source.")
                del converted[name]
        return self._ignore_nulls(pa.table(converted), actual.select(list(converted)))

    def _ignore_nulls(self, expected: pa.Table, actual: pa.Table) -> tuple[pa.Table, pa.Table]:
        ignored = self.lane.row_transforms.ignore_null
        if ignored is None:
            return expected, actual
        names = [name for name in expected.column_names if name in ignored and name not in self.keys]
        for name in names:
            self.exclude(f"{name} is not compared: a NULL of the source does not change it (`ignore_null_updates`).")
        return expected.drop_columns(names), actual.drop_columns(names)


def refuse_changed_columns(lane: Lane, condition: Expr | None) -> None:
    """ConfigProblem if the lane stores other values in a column of the condition, or has no such column."""
    transforms = lane.row_transforms
    for name in sorted(list_columns(condition)) if condition is not None else ():
        rule = transforms.column_transforms.get_rule(name)
        if rule != NO_COLUMN_RULE or (transforms.columns is not None and name not in transforms.columns):
            raise ConfigProblem(
                f"`--where` names column {name!r}, which lane {lane.id} changes or leaves out ({lane.config_line})",
                next_step="Name other columns, or compare another target with `--sink`.",
            )


def refuse_unknown_columns(snapshot: SourceSnapshot, condition: Expr | None) -> None:
    """ConfigProblem if the source has no column of the condition that can be read."""
    known = snapshot.kinds
    unknown = sorted(list_columns(condition) - known.keys()) if condition is not None else []
    if unknown:
        raise ConfigProblem(
            f"`--where` names column {unknown[0]!r}, which is not among the columns of the source that can be read",
            next_step=f"The columns are: {', '.join(known)}.",
        )


def is_plain(transforms: RowTransforms) -> bool:
    """True if the target has the source's rows and values, with other names at most."""
    changes_rows = transforms.where or transforms.deletes or transforms.truncates or transforms.ignore_null
    rules = transforms.column_transforms
    return not (
        changes_rows
        or transforms.target_columns
        or rules.additions
        or any(rule.cast is not None or rule.mask is not None for _, rule in rules.rules)
    )


def list_volatile_columns(transforms: RowTransforms) -> list[str]:
    """Columns with a value that depends on the record."""
    return [name for name, added in transforms.column_transforms.additions if added.metadata]
