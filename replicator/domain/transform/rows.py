"""Row transforms of a lane: changes before the policy. `replicator.testing.model_transforms` is an independent
model for single changes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import Expr
from replicator.domain.patterns import ColumnSelection
from replicator.domain.sequence import get_element
from replicator.domain.table import Column, TableSpec

from .columns import NO_COLUMN_TRANSFORMS, ColumnTransforms
from .expressions import list_columns, make_unknown_column_error, refuse_condition, to_text

SOFT_DELETE_TEXT = "deleted rows stay, marked"
"""The description of soft deletes for people."""


@dataclass(frozen=True, slots=True)
class RowTransforms:
    """Transforms of whole changes, by default none (and false). An upsert is a create, update or read. In this order:

    - `truncates`, `deletes`: an upsert for which the condition holds is a truncate, otherwise a delete. Deletes and
      truncates of the source are not tested, since their images describe the past.
    - `without_deletes`: deletes and truncates are dropped, except the delete half of a key change.
    - `where`: an upsert for which the condition is false or unknown is a delete of its row, even with
      `without_deletes`. Without `rows_leave` it is dropped instead. Changes that are already deletes or truncates are
      not tested. An upsert that did not send a column of the condition is rejected.
    - `sequence_by`: the sequence begins with the elements (`domain.sequence`) of these columns, and ends with
      the decoder's own. Ties are therefore in the order of the source's log. A change in which one of them is NULL, or
      was not sent, is rejected.
    - `columns`: the remaining columns, including keys. Columns in a condition or in `sequence_by` need not be among
      them.
    - `ignore_null`: a NULL in these columns does not change an existing row.
    - `soft_deletes`: a delete keeps the row, so it sends no values; its image only identifies the row.
    - `has_column_versions`: the newest value of each column wins, in any order of arrival.
    - `target_columns`: exactly these columns, with these types. A missing column is NULL, all others are dropped. A
      change with a value that does not fit its type is rejected; in a delete the value is NULL. `renamed`: old names of
      some of them, under which values may arrive.
    - `column_transforms`: rules for single columns, last. Everything else uses the source's names.
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
        """The transforms for people."""
        order, names = ", ".join(self.sequence_by), ", ".join(self.columns.names) if self.columns else ""
        texts = {
            "truncates by condition": self.truncates is not None,
            "deletes by condition": self.deletes is not None,
            "without deletes": self.without_deletes,
            f"where {to_text(self.where)}" if self.where is not None else "": self.where is not None,
            SOFT_DELETE_TEXT: self.soft_deletes,
            "sequences per column": self.has_column_versions,
            f"in the order of ({order})": self.sequence_by,
            "NULL changes nothing": self.ignore_null,
            f"{'without' if self.columns and self.columns.excluded else 'only'} columns ({names})": self.columns,
        }
        return (*(text for text, holds in texts.items() if holds), *self.column_transforms.description)

    def apply_to(self, table: TableSpec) -> TableSpec:
        """The table as the policy sees it. ConfigProblem if the transforms do not fit the table."""
        table = self.widen_table(table)
        conditions = (("apply_as_deletes", self.deletes), ("apply_as_truncates", self.truncates), ("where", self.where))
        for key, condition in conditions:
            if condition is not None:
                refuse_condition(condition, table, key)
        inputs = list_columns(self.where) if self.where is not None else frozenset[str]()
        if inputs and self.has_column_versions:
            raise ConfigProblem(
                f"table {table.name} has `partial_updates: by_column`, so a change may lack the columns of 'where'",
                next_step="Remove 'where', or `partial_updates: by_column`.",
            )
        for name in sorted(inputs):
            if self.ignore_null is not None and name in self.ignore_null and name not in table.keys:
                raise ConfigProblem(
                    f"'where' of table {table.name} names column {name!r}, in which a NULL changes nothing. So a change "
                    "does not show the row's value",
                    next_step="Name other columns in 'where', or leave this one out of 'ignore_null_updates'.",
                )
        # All columns; those that stay have their types in `target_columns`.
        declared = {c.name: c for c in self.target_columns or () if self.columns is None or c.name in self.columns}
        seen = replace(table, columns=tuple(declared.get(c.name, c) for c in table.columns))
        table = self._apply_row_rules(self._apply_ignore_null(self._select_columns(self._apply_sequence(table))))
        if self.target_columns is not None:
            columns = tuple(c for c in self.target_columns if c.name in table.column_names)
            names = {c.name for c in columns}
            table = replace(table, columns=columns, ignore_null=tuple(n for n in table.ignore_null if n in names))
        return self.column_transforms.apply_to(table, seen) if self.column_transforms else table

    def widen_table(self, table: TableSpec) -> TableSpec:
        """The table, with missing columns of `target_columns` at the end."""
        lacking = tuple(c for c in self.target_columns or () if c.name not in table.column_names)
        return replace(table, columns=(*table.columns, *lacking)) if lacking else table

    def _apply_row_rules(self, table: TableSpec) -> TableSpec:
        """The table with soft deletes and column versions, neither of which can be combined with the others."""
        if self.soft_deletes and self.ignore_null is not None:
            raise ConfigProblem(
                f"table {table.name} has both soft deletes and 'ignore_null_updates', which cannot be combined",
                next_step="Remove `deletes: soft`, or 'ignore_null_updates' and its lists.",
            )
        others = {"`deletes: soft`": self.soft_deletes, "'ignore_null_updates' and its lists": self.ignore_null is not None}
        other = next((name for name, is_set in others.items() if is_set), None)
        if self.has_column_versions and other:
            raise ConfigProblem(
                f"table {table.name} has `partial_updates: by_column`, which cannot be combined with {other}",
                next_step=f"Remove {other}, or `partial_updates: by_column`.",
            )
        return replace(table, soft_deletes=self.soft_deletes, has_column_versions=self.has_column_versions)

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
                    next_step="Keep the key columns: the target needs the whole key.",
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
                    f"the records of table {table.name} contain no position in their source's log, so the order of its "
                    "changes is unknown",
                    next_step="Name the columns that order its changes with `sequence_by: [...]`. For the order of the "
                    f"topic set `sequence_by: [{', '.join(table.keys) or 'KEY'}]`, the key. Or set `tombstones: delete`: "
                    "then a record without a value also deletes the row of its key (docs/reference/debezium.md).",
                )
            return table
        if table.counted:
            raise ConfigProblem(
                f"table {table.name} has no key, so it cannot have 'sequence_by': only the position in the log "
                "distinguishes equal rows",
                next_step="Name its key columns with `keys: [...]`, or remove 'sequence_by'.",
            )
        columns = tuple(_require_ordered_column(name, table) for name in self.sequence_by)
        textual = tuple(i for i, c in enumerate(columns, 1) if (e := get_element(c.type)) and e.is_textual)
        count = len(columns) + table.sequence
        return replace(table, sequence=count, text_elements=textual, ordered_by=columns, by_commit=False, by_tx=False)


NO_ROW_TRANSFORMS = RowTransforms()
"""No change is transformed."""


def _require_ordered_column(name: str, table: TableSpec) -> Column:
    if name not in table.column_names:
        raise make_unknown_column_error(name, table, "sequence_by")
    column = table.column(name)
    if get_element(column.type) is None:
        raise ConfigProblem(
            f"'sequence_by' names column {name!r} of table {table.name}. Its type {column.type} has no order that all "
            "engines share",
            next_step="Name columns of whole numbers, decimals, dates, times, text or bytes.",
        )
    return column
