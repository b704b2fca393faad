"""Column transforms of a lane: names, types and values of its target's columns.
`replicator.testing.model_transforms` is an independent model for single changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from replicator.domain.change import OFFSET, OP, PARTITION, TIMESTAMP, TOPIC, TS, TX, refuse_frame_names
from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import Expr
from replicator.domain.table import Column, TableSpec

from .expressions import list_columns, resolve_computed_column, to_text
from .typed_expressions import is_castable, is_hashable, is_injective_cast

METADATA: dict[str, tuple[str, pa.DataType]] = {
    "topic": (TOPIC, pa.string()),
    "partition": (PARTITION, pa.int32()),
    "offset": (OFFSET, pa.int64()),
    "source_time": (TS, TIMESTAMP),
    "transaction": (TX, pa.string()),
    "operation": (OP, pa.string()),
}
"""Metadata of a record by its name in the configuration: the column of the changes frame, and its type."""

MaskKind = Literal["nothing", "fixed", "hmac", "truncate"]


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask for a column's values. NULL stays NULL.

    - `nothing`: NULL.
    - `fixed`: always `text`.
    - `hmac`: HMAC-SHA-256 of the value's text (`erasures.to_key_texts`) under `key`, in 64 hexadecimal digits.
    - `truncate`: the first `length` characters of the value's text, `-`, and the first 16 digits of that HMAC. Equal
      values stay equal, and different values different.

    `aliases`: other names under which records may contain the column.
    """

    kind: MaskKind
    key: bytes = field(default=b"", repr=False)
    length: int = 0
    text: str = ""
    aliases: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    def with_aliases(self, names: Iterable[str]) -> Mask:
        """The same mask for a column with these other names."""
        return replace(self, aliases=frozenset(names))

    def get_masked_type(self, kind: pa.DataType) -> pa.DataType:
        """The type of masked values of this type."""
        return kind if self.kind == "nothing" else pa.string()

    @property
    def is_injective(self) -> bool:
        """True if equal values stay equal, and different values different, so that a key still identifies rows."""
        return self.kind == "hmac"


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The rule for an existing column: drop it, or first mask, then cast, then rename it. `can_be_missing`: records may
    not have the column yet, or no longer."""

    drop: bool = False
    mask: Mask | None = None
    cast: pa.DataType | None = None
    rename: str = ""
    can_be_missing: bool = False


@dataclass(frozen=True, slots=True)
class AddedColumn:
    """A column in addition to the source's own: one of `METADATA`, or an `expression` of the source's columns, or the
    same `constant` in every row."""

    metadata: str = ""
    constant: str | int | float | bool | None = None
    cast: pa.DataType | None = None
    expression: Expr | None = None

    def get_type(self, name: str, table: TableSpec) -> pa.DataType:
        """The type of its values next to the columns of `table`. ConfigProblem if its expression is invalid there, or
        if the cast does not exist."""
        if self.expression is not None:
            kind, type_ = "expression", resolve_computed_column(name, self.expression, table).type
        elif self.metadata:
            kind, type_ = "metadata", METADATA[self.metadata][1]
        else:
            kind, type_ = "constant", pa.scalar(self.constant).type
        if self.cast is not None and not is_castable(type_, self.cast):
            raise ConfigProblem(
                f"the {kind} of column {name!r} of table {table.name} has type {type_}, which cannot be cast to {self.cast}",
                next_step="Choose another type.",
            )
        return self.cast or type_


@dataclass(frozen=True, slots=True)
class ColumnTransforms:
    """Column transforms, by default none (and false). `rules` and `additions` are by name, each in the order of the
    configuration.

    Casts and added values:

    - If the new type cannot hold a value without loss, the change is rejected.
    - In a delete, such a value counts as unchanged; an added one is NULL. The values of a delete describe the past.
    - Truncates have no values, also not added ones.

    Expressions:

    - They use the values that the source sent, not the results of the rules for their columns.
    - If one fails, the change is rejected.
    - In a delete the result is NULL, since its image may not be complete.
    - If a change sent none of the expression's non-key columns, its result is an unchanged value.
    - The result is unknown, and the change is rejected, if a change sent only some of them. The same holds if it sent
      none but changes a key that the expression uses.
    """

    rules: tuple[tuple[str, ColumnRule], ...] = ()
    additions: tuple[tuple[str, AddedColumn], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.additions)

    def get_rule(self, name: str) -> ColumnRule:
        """The rule of a column."""
        return dict(self.rules).get(name, NO_COLUMN_RULE)

    def get_new_name(self, name: str) -> str:
        """The new name of a source column; empty if it is dropped."""
        rule = self.get_rule(name)
        return "" if rule.drop else rule.rename or name

    def get_source_name(self, name: str) -> str:
        """The source's name of a column with this new name."""
        return next((old for old, rule in self.rules if rule.rename == name and not rule.drop), name)

    def transform_columns(self, columns: Sequence[Column]) -> Sequence[Column]:
        """The source columns after their rules, without checking that the rules fit."""
        transformed = []
        for column in columns:
            name, rule = self.get_new_name(column.name), self.get_rule(column.name)
            if not name:
                continue
            kind = rule.cast or (rule.mask.get_masked_type(column.type) if rule.mask else column.type)
            nullable = column.nullable or bool(rule.mask and rule.mask.kind == "nothing")
            # A cast column has exactly that type: its text is plain text, not JSON or a number.
            same = kind == column.type and not rule.mask and not rule.cast
            transformed.append(Column(name, kind, nullable, column.source_type if same else ""))
        return transformed

    def apply_to(self, table: TableSpec, seen: TableSpec | None = None) -> TableSpec:
        """The table after the transforms. ConfigProblem if they do not fit the table. `seen`: the table with the
        columns that column lists leave out; expressions may use them."""
        for name, rule in self.rules:
            if name not in table.column_names:
                if rule.can_be_missing:
                    continue
                raise ConfigProblem(
                    f"'columns' names column {name!r}, which table {table.name} does not have, or which its column lists "
                    "leave out",
                    next_step=f"Its columns are: {', '.join(table.column_names)}. Names are compared exactly. To add a "
                    f"column, set `constant`, `metadata` or `expression`. {DECLARE_STEP}",
                )
            refuse_change(rule, table.column(name), table)
        existing = self.transform_columns(table.columns)
        for name, added in self.additions:
            if added.expression is not None:
                self._refuse_expression(name, list_columns(added.expression), table)
        columns = (*existing, *(Column(name, added.get_type(name, seen or table)) for name, added in self.additions))
        same = next(iter(find_duplicates([column.name for column in columns], table.column_names)), None)
        if same is not None:
            raise ConfigProblem(
                f"'columns' of table {table.name} creates two columns with the name {same!r}",
                next_step="Choose another name.",
            )
        keys, keeping = (tuple(filter(None, map(self.get_new_name, names))) for names in (table.keys, table.ignore_null))
        transformed = replace(table, columns=columns, keys=keys, ignore_null=keeping)
        refuse_frame_names(transformed)
        return transformed

    def _refuse_expression(self, name: str, inputs: frozenset[str], table: TableSpec) -> None:
        """Refuse an expression of masked columns, and one that needs values that a change may not contain."""
        masked = next((one for one in sorted(inputs) if self.get_rule(one).mask is not None), None)
        if masked is not None:
            raise ConfigProblem(
                f"the expression of column {name!r} of table {table.name} is made of {masked!r}, which its target masks",
                next_step="Compute it of other columns, or leave one of the two out.",
            )
        column = next((one for one in sorted(inputs) if one in table.ignore_null), None)
        if column is not None:
            raise ConfigProblem(
                f"the expression of column {name!r} of table {table.name} uses {column!r}, in which a NULL changes nothing. "
                "So a change does not show the row's value",
                next_step=f"Leave {column!r} out of 'ignore_null_updates', or compute the column from other columns.",
            )
        if table.has_column_versions and len(inputs - set(table.keys)) > 1:
            raise ConfigProblem(
                f"table {table.name} has sequences per column, so that one change need not hold all that the "
                f"expression of column {name!r} is made of",
                next_step="Compute it of one column, or remove `partial_updates: by_column`.",
            )

    @property
    def description(self) -> Iterator[str]:
        """The transforms for people, without secrets."""
        for name, rule in self.rules:
            if rule.drop:
                yield f"without {name}"
                continue
            masked = f"{name} masked ({rule.mask.kind})" if rule.mask else name
            typed = f"{masked} as {rule.cast}" if rule.cast else masked
            yield f"{typed} called {rule.rename}" if rule.rename else typed
        for name, added in self.additions:
            if added.expression is not None:
                yield f"{name} as {to_text(added.expression)}"
            else:
                yield f"{name} from {added.metadata}" if added.metadata else f"{name} of one value"


DECLARE_STEP = (
    "If the column appears later, or was dropped, declare all columns of the table with `schema: {...}`. If it was renamed, "
    "use `renamed_columns`."
)
NO_COLUMN_RULE = ColumnRule()
NO_COLUMN_TRANSFORMS = ColumnTransforms()


def refuse_change(rule: ColumnRule, column: Column, table: TableSpec) -> None:
    """Raise ConfigProblem for a rule that is impossible for a column of this type, or for a key column."""
    is_key = column.name in table.keys
    if is_key and rule.drop:
        raise _make_column_error(column, table, "leaves out a key column", "Keep it: the target needs the whole key.")
    if is_key and rule.mask and not rule.mask.is_injective:
        raise _make_column_error(
            column,
            table,
            "masks a key column so that different keys become equal",
            "Use `mask: hmac`, which keeps keys different.",
        )
    if rule.mask:
        refuse_mask(rule.mask, column, table)
    kind = rule.mask.get_masked_type(column.type) if rule.mask else column.type
    if rule.cast and not is_castable(kind, rule.cast):
        raise _make_column_error(column, table, f"casts {kind} to {rule.cast}, which is impossible", "Choose another type.")
    if is_key and rule.cast and not is_injective_cast(kind, rule.cast):
        sentence = f"casts a key column from {kind} to {rule.cast}, so that different keys could become equal"
        raise _make_column_error(
            column, table, sentence, "Cast it to text, or to a wider type of numbers, or leave it as it is."
        )


def refuse_mask(mask: Mask, column: Column, table: TableSpec) -> None:
    """Raise ConfigProblem for a column whose values have no text."""
    if mask.kind in ("hmac", "truncate") and not is_hashable(column.type):
        sentence = f"masks values of type {column.type}, which can be written in several ways"
        raise _make_column_error(column, table, sentence, "Use `mask: nothing`, `mask: fixed`, or drop the column.")


class UnknownMask(ConfigProblem):
    """A mask names a `column` that records of the table do not have, so its values would not be masked."""

    def __init__(self, column: str, table: TableSpec) -> None:
        super().__init__(
            f"'columns' names column {column!r}, which table {table.name} does not have",
            next_step=f"Its columns are: {', '.join(table.column_names)}. Names are compared exactly. {DECLARE_STEP}",
        )
        self.column = column


def refuse_unknown_masks(masks: Mapping[str, Mask], table: TableSpec, declared: Collection[str]) -> None:
    """Raise UnknownMask for a mask whose column is not in the records of `table`. Exceptions: the table declares the
    column, which may appear later or be gone; or the records have it under another name."""
    for name, mask in masks.items():
        if not {name, *mask.aliases}.intersection(table.column_names) and name not in declared:
            raise UnknownMask(name, table)


def _make_column_error(column: Column, table: TableSpec, sentence: str, next_step: str) -> ConfigProblem:
    return ConfigProblem(f"'columns' of table {table.name} {sentence}: {column.name!r}", next_step=next_step)


def find_duplicates(names: Sequence[str], before: Iterable[str]) -> list[str]:
    """The names that several columns have now, except the source's own columns `before`."""
    now, own = (Counter(map(str.casefold, columns)) for columns in (names, before))
    return [name for name in names if now[name.casefold()] > max(1, own[name.casefold()])]
