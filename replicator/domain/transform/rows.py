"""What a lane makes of its table's changes before its policy sees them. `replicator.testing.model.Shaped` says the same, one
change at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from replicator.domain.column_selection import ColumnSelection
from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.expr import Expr
from replicator.domain.sequence_elements import get_element
from replicator.domain.table import Column, TableSpec

from .columns import NO_COLUMN_TRANSFORMS, ColumnTransforms
from .expressions import list_columns, make_unknown_column_error, refuse_condition, to_text

SOFT_DELETE_TEXT = "deleted rows stay, marked"
"""What people are told of soft deletes."""


@dataclass(frozen=True, slots=True)
class RowTransforms:
    """Empty, and false, by default: changes stay as they are. Otherwise, in this order:

    `truncates`, `deletes`: a create or update for which the condition holds is a truncate, else a delete. What a native
    delete or truncate says is not asked: its image is of what was.
    `without_deletes`: deletes and truncates are left out, but for the delete half of a key change.
    `where`: a create or update for which the condition does not hold, be it unknown, is a delete of its row, whatever
    `without_deletes` says; where not `rows_leave` it is left out instead. Of one that is a delete or a truncate by now it is
    not asked. One that did not send a column which the condition names is rejected.
    `sequence_by`: the sequence begins with the elements (`domain.sequence_elements`) of these columns and ends with the
    decoder's own: changes which tie come in the order of the source's log. A change in which one of them is NULL, or
    was not sent, is rejected.
    `columns`: the columns that there are from then on, keys included. What orders changes, or is asked by a condition, need
    not be among them.
    `ignore_null`: an upsert of a row that is there leaves what it holds in these columns, where the upsert's value is NULL.
    `soft_deletes`: a delete leaves the row, so of its values it sends none; its image only tells whose row it is.
    `column_transforms`: what becomes of single columns, last of all: everything else names columns as the source does.
    `has_column_versions`: of each column the newest value counts, whatever came of the others, and in whatever order.
    `target_columns`: the columns are these, with these types, whatever the table has: what it lacks is NULL, what it has
    beside them is left out, and a change with a value that its type does not hold is rejected (of a delete such a value is
    NULL). `renamed`: old names of some of them, under which values may come.
    """

    sequence_by: tuple[str, ...] = ()
    deletes: Expr | None = None
    truncates: Expr | None = None
    columns: ColumnSelection | None = None
    without_deletes: bool = False
    ignore_null: ColumnSelection | None = None
    soft_deletes: bool = False
    has_column_versions: bool = False
    where: Expr | None = None
    rows_leave: bool = True
    column_transforms: ColumnTransforms = NO_COLUMN_TRANSFORMS
    target_columns: tuple[Column, ...] | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self != NO_ROW_TRANSFORMS

    @property
    def description(self) -> tuple[str, ...]:
        """What it says, for people."""
        order, chosen = ", ".join(self.sequence_by), ", ".join(self.columns.names) if self.columns else ""
        found = {
            "truncates by condition": self.truncates is not None,
            "deletes by condition": self.deletes is not None,
            "without deletes": self.without_deletes,
            f"where {to_text(self.where)}" if self.where is not None else "": self.where is not None,
            SOFT_DELETE_TEXT: self.soft_deletes,
            "sequences per column": self.has_column_versions,
            f"in the order of ({order})": self.sequence_by,
            "NULL changes nothing": self.ignore_null,
            f"{'without' if self.columns and self.columns.excluded else 'only'} columns ({chosen})": self.columns,
        }
        return (*(text for text, holds in found.items() if holds), *self.column_transforms.description)

    def apply_to(self, table: TableSpec) -> TableSpec:
        """The table as a policy sees it. ConfigProblem when the shape does not suit it."""
        table = self.widen_table(table)
        asked = (("apply_as_deletes", self.deletes), ("apply_as_truncates", self.truncates), ("where", self.where))
        for key, condition in asked:
            if condition is not None:
                refuse_condition(condition, table, key)
        self._refuse_where(table)
        seen = self._restore_columns(table)
        table = self._apply_target_types(
            self._apply_column_versions(
                self._apply_soft_deletes(self._apply_ignore_null(self._select_columns(self._apply_sequence(table))))
            )
        )
        return self.column_transforms.apply_to(table, seen) if self.column_transforms else table

    def widen_table(self, table: TableSpec) -> TableSpec:
        """The table with the columns that `target_columns` has and it lacks at the end."""
        lacking = tuple(c for c in self.target_columns or () if c.name not in table.column_names)
        return replace(table, columns=(*table.columns, *lacking)) if lacking else table

    def _restore_columns(self, table: TableSpec) -> TableSpec:
        """With all columns, those that it keeps in the types that it keeps."""
        kept = {c.name: c for c in self.target_columns or () if self.columns is None or c.name in self.columns}
        return replace(table, columns=tuple(kept.get(c.name, c) for c in table.columns))

    def _apply_target_types(self, table: TableSpec) -> TableSpec:
        if self.target_columns is None:
            return table
        names = table.column_names
        columns = tuple(c for c in self.target_columns if c.name in names)
        return replace(
            table, columns=columns, ignore_null=tuple(n for n in table.ignore_null if n in {c.name for c in columns})
        )

    def _refuse_where(self, table: TableSpec) -> None:
        named = list_columns(self.where) if self.where is not None else frozenset[str]()
        if named and self.has_column_versions:
            raise ConfigProblem(
                f"table {table.name} has sequences per column, so that one change need not hold what 'where' asks for",
                next_step="Remove 'where', or `partial_updates: by_column`.",
            )
        for name in sorted(named):
            if self.ignore_null is not None and name in self.ignore_null and name not in table.keys:
                raise ConfigProblem(
                    f"'where' of table {table.name} names column {name!r}, in which a NULL changes nothing: what the "
                    "row holds cannot be told from the change",
                    next_step="Name other columns in 'where', or leave this one out of 'ignore_null_updates'.",
                )

    def _apply_column_versions(self, table: TableSpec) -> TableSpec:
        others = {"`deletes: soft`": self.soft_deletes, "'ignore_null_updates' and its lists": self.ignore_null is not None}
        other = next((name for name, said in others.items() if said), None)
        if self.has_column_versions and other:
            raise ConfigProblem(
                f"table {table.name} has sequences per column, with which {other} cannot be",
                next_step=f"Remove {other}, or `partial_updates: by_column`.",
            )
        return replace(table, has_column_versions=self.has_column_versions)

    def _apply_soft_deletes(self, table: TableSpec) -> TableSpec:
        if self.soft_deletes and self.ignore_null is not None:
            raise ConfigProblem(
                f"table {table.name} has soft deletes, and leaves what a row holds where a change says NULL: these two do "
                "not go together",
                next_step="Remove `deletes: soft`, or 'ignore_null_updates' and its lists.",
            )
        return replace(table, soft_deletes=self.soft_deletes)

    def _select_columns(self, table: TableSpec) -> TableSpec:
        if self.columns is None:
            return table
        key = "except_column_list" if self.columns.excluded else "column_list"
        for name in self.columns.names:
            if name not in table.column_names:
                raise make_unknown_column_error(name, table, key)
        for name in table.keys:
            if name not in self.columns:
                raise ConfigProblem(
                    f"'{key}' leaves out {name!r}, a key column of table {table.name}",
                    next_step="Keep the key columns; what identifies a row must be in the target.",
                )
        return replace(table, columns=tuple(c for c in table.columns if c.name in self.columns))

    def _apply_ignore_null(self, table: TableSpec) -> TableSpec:
        if self.ignore_null is None:
            return table
        key = "ignore_null_updates_except_column_list" if self.ignore_null.excluded else "ignore_null_updates_column_list"
        for name in self.ignore_null.names:
            if name not in table.column_names:
                raise make_unknown_column_error(name, table, key)
            if name in table.keys:
                raise ConfigProblem(
                    f"'{key}' names {name!r}, a key column of table {table.name}, which is never NULL",
                    next_step="Name other columns.",
                )
        return replace(table, ignore_null=tuple(c.name for c in table.values if c.name in self.ignore_null))

    def _apply_sequence(self, table: TableSpec) -> TableSpec:
        if not self.sequence_by:
            if table.unordered:
                raise ConfigProblem(
                    f"the records of table {table.name} do not say where in their source's log they are, so that nothing "
                    "tells which change is newer",
                    next_step="Name the columns that order its changes with `sequence_by: [...]`. For the order of their "
                    f"topic write `sequence_by: [{', '.join(table.keys) or 'KEY'}]`, the key, or `tombstones: delete`, with "
                    "which a record without a value deletes the row of its key (docs/debezium.md).",
                )
            return table
        if table.counted:
            raise ConfigProblem(
                f"table {table.name} has no key, and only their place in the log tells rows apart that are alike, so it "
                "cannot have 'sequence_by'",
                next_step="Name its key columns with `keys: [...]`, or remove 'sequence_by'.",
            )
        columns = tuple(_require_ordered_column(name, table) for name in self.sequence_by)
        textual = tuple(i for i, c in enumerate(columns, 1) if (e := get_element(c.type)) and e.is_textual)
        count = len(columns) + table.sequence
        return replace(table, sequence=count, text_elements=textual, ordered_by=columns, by_commit=False, by_tx=False)


NO_ROW_TRANSFORMS = RowTransforms()
"""Changes stay as they are."""


def _require_ordered_column(name: str, table: TableSpec) -> Column:
    if name not in table.column_names:
        raise make_unknown_column_error(name, table, "sequence_by")
    column = table.column(name)
    if get_element(column.type) is None:
        raise ConfigProblem(
            f"'sequence_by' names column {name!r} of table {table.name}, whose type {column.type} has no order that all "
            "engines share",
            next_step="Name columns of whole numbers, decimals, dates, times, text or bytes.",
        )
    return column
