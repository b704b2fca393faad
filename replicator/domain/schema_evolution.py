"""The reaction of a lane to schema changes of its source: pure functions of the schemas and the configuration."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import pyarrow as pa

from .policy import CHANGE_POLICIES, CURRENT_ROW_POLICIES
from .position import Position
from .table import Column, TableSpec

# Compatibility of types: can one hold all values of another?


def can_hold(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """True if every value of `narrow` is also a value of `wide`, unchanged, and different values stay different."""
    if wide == narrow or pa.types.is_null(narrow):
        return True
    if pa.types.is_decimal(wide):
        whole, scale = _count_digits(narrow)
        return whole >= 0 and wide.scale >= scale and wide.precision - wide.scale >= whole
    if pa.types.is_integer(wide) and pa.types.is_integer(narrow):
        is_signed = pa.types.is_signed_integer(wide)
        same_sign = is_signed == pa.types.is_signed_integer(narrow)
        more_bits = wide.bit_width - narrow.bit_width
        return bool(more_bits >= 0 if same_sign else is_signed and more_bits > 0)
    if pa.types.is_floating(wide):
        is_whole = pa.types.is_integer(narrow)
        # The mantissa has to hold a whole number.
        bits = {16: 11, 32: 24, 64: 53}[wide.bit_width] if is_whole else wide.bit_width
        return bool((is_whole or pa.types.is_floating(narrow)) and narrow.bit_width <= bits)
    if pa.types.is_timestamp(wide) and pa.types.is_timestamp(narrow):
        units = ("s", "ms", "us", "ns")
        return bool(wide.tz == narrow.tz and units.index(wide.unit) >= units.index(narrow.unit))
    return bool(pa.types.is_large_string(wide) and pa.types.is_string(narrow))


def _count_digits(narrow: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point; (-1, 0) for types other than exact numbers."""
    if pa.types.is_decimal(narrow):
        return narrow.precision - narrow.scale, narrow.scale
    if pa.types.is_integer(narrow):
        return {8: 3, 16: 5, 32: 10, 64: 20}[narrow.bit_width], 0
    return -1, 0


def has_canonical_text(narrow: pa.DataType) -> bool:
    """True for types of which each value has one text, the same on every engine and in every target."""
    t = pa.types
    return bool(t.is_integer(narrow) or t.is_decimal(narrow) or t.is_boolean(narrow) or t.is_date(narrow))


def can_cover(union: TableSpec, table: TableSpec) -> bool:
    """True if frames of `table` can be frames of `union`. Key and order of changes are the same, and every column of
    `union` can hold the values of its column in `table`."""
    types = {c.name: c.type for c in union.columns}
    same = union.keys == table.keys and union.sequence == table.sequence
    return same and all(c.name in types and can_hold(types[c.name], c.type) for c in table.columns)


class SchemaChangeKind(StrEnum):
    """The kinds of schema changes of a table."""

    ADDED = "added"
    DROPPED = "dropped"
    READDED = "readded"  # it was dropped before, and the target still has it with its old values
    RENAMED = "renamed"  # as declared in `SchemaRules.renames`; otherwise one column was dropped, and another added
    WIDENED = "widened"  # the new type holds every value of the old one
    NARROWED = "narrowed"  # the old type holds every value of the new one
    TYPE_CHANGED = "type_changed"  # neither
    KEY_CHANGED = "key_changed"  # other key columns, a type of a key column that is not wider, or another order of changes
    TABLE_DROPPED = "table_dropped"  # according to a record of the table's own stream


class SchemaChangeMode(StrEnum):
    """The reaction of a lane to a schema change: docs/explanation/schema-changes.md has each mode with each kind."""

    EVOLVE = "evolve"
    TRY_EVOLVE = "try_evolve"
    IGNORE = "ignore"
    FAIL = "fail"
    QUARANTINE = "quarantine"


STOPPING_MODES = (SchemaChangeMode.FAIL, SchemaChangeMode.QUARANTINE)


@dataclass(frozen=True, slots=True)
class SchemaRules:
    """The rules of the configuration. `others`: the mode of kinds that are not in `modes`. `removes`: under `evolve`, a
    column that the source has dropped is removed from the target. `renames`: declared old and new names."""

    modes: Mapping[SchemaChangeKind, SchemaChangeMode] = field(default_factory=dict)
    others: SchemaChangeMode = SchemaChangeMode.EVOLVE
    removes: bool = False
    renames: tuple[tuple[str, str], ...] = ()

    @property
    def description(self) -> str:
        """The rules for people."""
        modes = [f"{kind}: {mode}" for kind, mode in self.modes.items()]
        rules = ", ".join([*modes, f"others: {self.others}"]) if modes else str(self.others)
        removed = ", dropped columns go" if self.removes else ""
        return rules + removed + "".join(f", {old} is renamed {new}" for old, new in self.renames)

    def get_mode(self, kind: SchemaChangeKind) -> SchemaChangeMode:
        """The mode of a kind of change."""
        return self.modes.get(kind, self.others)


EVOLVE_ALL = SchemaRules()
"""Every change evolves."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference between two schemas. `column` is its old name, empty for a change of the whole table; `to` is its
    new name, for a rename. `before`, `after`: types, or key columns; empty if there are none."""

    kind: SchemaChangeKind
    column: str = ""
    before: str = ""
    after: str = ""
    to: str = ""

    def __str__(self) -> str:
        name = repr(self.column)
        return {
            SchemaChangeKind.ADDED: f"column {name} ({self.after}) was added",
            SchemaChangeKind.DROPPED: f"column {name} was dropped",
            SchemaChangeKind.READDED: f"column {name}, dropped before, was added again ({self.after})",
            SchemaChangeKind.RENAMED: f"column {name} is called {self.to!r} now{self.before}",
            SchemaChangeKind.WIDENED: f"column {name} was widened from {self.before} to {self.after}",
            SchemaChangeKind.NARROWED: f"column {name} was narrowed from {self.before} to {self.after}",
            SchemaChangeKind.TYPE_CHANGED: f"column {name} changed its type from {self.before} to {self.after}",
            SchemaChangeKind.KEY_CHANGED: f"the {self.column or 'key'} changed from {self.before} to {self.after}",
            SchemaChangeKind.TABLE_DROPPED: "the table was dropped",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class ColumnTypeChange:
    """A target column that needs another type, if it still has the type that was created for `before`."""

    name: str
    before: Column
    after: Column


@dataclass(frozen=True, slots=True)
class TargetReshape:
    """The changes of a target's columns before rows of a schema are written. Finished steps are skipped. In this order:

    - `emptied`: columns whose values become NULL; in an scd2 table only in open versions.
    - `renames` (old and new name), also over a column in `replaced`.
    - `removals`: columns that are not in the plan any more.
    - `types`: new types of columns.
    """

    emptied: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    removals: tuple[str, ...] = ()
    types: tuple[ColumnTypeChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.emptied or self.renames or self.removals or self.types)

    def then(self, other: TargetReshape) -> TargetReshape:
        """Both, one after the other; a renamed column has its new name from then on."""
        names = dict(other.renames)
        types = tuple(replace(t, name=names.get(t.name, t.name)) for t in self.types)
        removals = tuple(name for name in self.removals if name not in {new for _, new in other.renames})
        return TargetReshape(
            (*self.emptied, *other.emptied),
            (*self.replaced, *other.replaced),
            (*self.renames, *(r for r in other.renames if r not in self.renames)),
            tuple(dict.fromkeys((*removals, *other.removals))),
            (*types, *(t for t in other.types if t not in types)),
        )


NO_RESHAPE = TargetReshape()
"""No change of columns."""


@dataclass(frozen=True, slots=True)
class SchemaDecision:
    """The reaction of a lane to the schema of its next records.

    - `columns`: the columns of its table from then on.
    - `stops`: the changes that are not allowed, or not possible; then nothing else counts.
    - `waits`: the lane may continue once an operator accepts the schema.
    - `is_final`: accepting or evolving the schema does not help: the target cannot follow.
    """

    changes: tuple[SchemaChange, ...]
    columns: tuple[Column, ...]
    reshaping: TargetReshape = NO_RESHAPE
    stops: tuple[SchemaChange, ...] = ()
    waits: bool = False
    is_final: bool = False


def list_changes(older: TableSpec, newer: TableSpec, renames: tuple[tuple[str, str], ...] = ()) -> tuple[SchemaChange, ...]:
    """The differences between two schemas of a table, in the order of the columns. The nullability and the order of
    columns do not count. A key that is unknown in `older` may become known."""
    old, new = ({c.name: c for c in table.columns} for table in (older, newer))
    new_names = {a: b for a, b in renames if a in old and a not in new and b in new and b not in old}
    changes = []
    if older.keys and older.keys != newer.keys:
        keys = (", ".join(keys) or "none" for keys in (older.keys, newer.keys))
        changes.append(SchemaChange(SchemaChangeKind.KEY_CHANGED, "", *(f"({key})" for key in keys)))
    if older.sequence != newer.sequence:
        counts = (f"{table.sequence} elements" for table in (older, newer))
        changes.append(SchemaChange(SchemaChangeKind.KEY_CHANGED, "order of its changes", *counts))
    for name, column in old.items():
        if name in new_names:
            changes.append(SchemaChange(SchemaChangeKind.RENAMED, name, to=new_names[name]))
        after = new.get(new_names.get(name, name))
        if after is None:
            changes.append(SchemaChange(SchemaChangeKind.DROPPED, name, before=_describe_column(column)))
        elif (kind := classify_type_change(column, after)) is not None:
            kind = SchemaChangeKind.KEY_CHANGED if name in older.keys and kind is SchemaChangeKind.TYPE_CHANGED else kind
            label = f"type of key column {name!r}" if kind is SchemaChangeKind.KEY_CHANGED else name
            changes.append(SchemaChange(kind, label, _describe_column(column), _describe_column(after)))
    added = (c for c in newer.columns if c.name not in old and c.name not in new_names.values())
    return (*changes, *(SchemaChange(SchemaChangeKind.ADDED, c.name, after=_describe_column(c)) for c in added))


def _describe_column(column: Column) -> str:
    type_name = column.source_type.rpartition(".")[2]
    return f"{column.type} ({type_name})" if type_name else str(column.type)


def classify_type_change(older: Column, newer: Column) -> SchemaChangeKind | None:
    """The kind of a type change; None if both types hold the same values. The source's type name only matters for its
    kind of text (`Column.text_kind`)."""
    if older.type == newer.type:
        if older.text_kind == newer.text_kind:
            return None
        # Plain text holds every kind of text.
        return (
            SchemaChangeKind.WIDENED
            if not newer.text_kind
            else SchemaChangeKind.NARROWED
            if not older.text_kind
            else SchemaChangeKind.TYPE_CHANGED
        )
    if can_hold(newer.type, older.type):
        return SchemaChangeKind.WIDENED
    return SchemaChangeKind.NARROWED if can_hold(older.type, newer.type) else SchemaChangeKind.TYPE_CHANGED


def decide_schema(
    columns: tuple[Column, ...],
    older: TableSpec,
    newer: TableSpec,
    rules: SchemaRules,
    *,
    policy: str = "scd1",
    is_accepted: bool = False,
) -> SchemaDecision:
    """The reaction of a lane with these columns to records under `newer` after records under `older`. `is_accepted`: an
    operator accepted this schema, so changes with a stopping mode evolve."""
    column_names = {c.name for c in columns}
    changes = tuple(
        _add_old_column_note(change, column_names - set(older.column_names))
        for change in list_changes(older, newer, rules.renames)
        if change.kind in (SchemaChangeKind.ADDED, SchemaChangeKind.KEY_CHANGED) or change.column in column_names
    )
    # Columns that were left out before, and need not be any more.
    left_out = (c for c in newer.columns if c.name not in column_names and c.name in older.column_names)
    if rules.get_mode(SchemaChangeKind.ADDED) in (SchemaChangeMode.EVOLVE, SchemaChangeMode.TRY_EVOLVE):
        changes += tuple(SchemaChange(SchemaChangeKind.ADDED, c.name, after=_describe_column(c)) for c in left_out)
    stopping = tuple(c for c in changes if rules.get_mode(c.kind) in STOPPING_MODES and not is_accepted)
    lane_columns = _LaneColumns({c.name: c for c in columns}, newer, rules, policy, accepted=is_accepted or bool(stopping))
    for change in changes:
        lane_columns.apply_change(change)
    if stopping:
        waits = all(rules.get_mode(c.kind) is SchemaChangeMode.QUARANTINE for c in stopping)
        return SchemaDecision(changes, columns, stops=stopping, waits=waits, is_final=bool(lane_columns.stops))
    if lane_columns.stops:
        return SchemaDecision(changes, columns, stops=tuple(lane_columns.stops), is_final=True)
    return SchemaDecision(changes, tuple(lane_columns.columns.values()), lane_columns.reshaping)


def _add_old_column_note(change: SchemaChange, dropped_names: Set[str]) -> SchemaChange:
    """The change, with the effect on a column of that name that was dropped before."""
    if change.kind is SchemaChangeKind.ADDED and change.column in dropped_names:
        return replace(change, kind=SchemaChangeKind.READDED)
    if change.kind is SchemaChangeKind.RENAMED and change.to in dropped_names:
        return replace(change, before=f", and the column {change.to!r} that was dropped before is removed")
    return change


def decide_drop(columns: tuple[Column, ...], rules: SchemaRules, *, accepted: bool = False) -> SchemaDecision:
    """The reaction of a lane with these columns to a drop of its table. Rows stay, since no setting allows their removal.
    `accepted`: as in `decide_schema`."""
    change, mode = SchemaChange(SchemaChangeKind.TABLE_DROPPED), rules.get_mode(SchemaChangeKind.TABLE_DROPPED)
    if mode in STOPPING_MODES and not accepted:
        return SchemaDecision((change,), columns, stops=(change,), waits=mode is SchemaChangeMode.QUARANTINE)
    return SchemaDecision((change,), columns)


class _LaneColumns:
    """A lane's columns while changes are applied one by one."""

    def __init__(
        self, columns: dict[str, Column], newer: TableSpec, rules: SchemaRules, policy: str, *, accepted: bool
    ) -> None:
        self.columns = columns
        self.stops: list[SchemaChange] = []
        self.reshaping = TargetReshape()
        self._newer = newer
        self._rules = rules
        self._policy = policy
        self._accepted = accepted
        self._names: dict[str, str] = {}

    def apply_change(self, change: SchemaChange) -> None:
        mode = self._rules.get_mode(change.kind)
        mode = SchemaChangeMode.EVOLVE if self._accepted and mode in STOPPING_MODES else mode
        if change.kind is SchemaChangeKind.KEY_CHANGED:
            self.stops.append(change)
        elif mode is SchemaChangeMode.IGNORE:
            return
        elif change.kind is SchemaChangeKind.READDED:
            self._add_again(change, mode)
        elif change.kind is SchemaChangeKind.ADDED:
            self.columns[change.column] = replace(self._newer.column(change.column), nullable=True)
        elif change.kind is SchemaChangeKind.RENAMED:
            new = self._names[change.column] = change.to
            if new in self.columns:  # A column of that name was dropped before.
                del self.columns[new]
                self.reshaping = self.reshaping.then(TargetReshape(replaced=(new,)))
            self.columns = {
                new if name == change.column else name: replace(c, name=new) if name == change.column else c
                for name, c in self.columns.items()
            }
            self.reshaping = self.reshaping.then(TargetReshape(renames=((change.column, new),)))
        elif change.kind is SchemaChangeKind.DROPPED:
            if self._rules.removes and mode is SchemaChangeMode.EVOLVE:
                del self.columns[change.column]
                self.reshaping = self.reshaping.then(TargetReshape(removals=(change.column,)))
        else:
            self._retype(change, mode)

    def _add_again(self, change: SchemaChange, mode: SchemaChangeMode) -> None:
        """It is another column of the same name, so the old values are not its values. Rows that are changes keep them,
        and so do versions that have ended."""
        if self._policy not in CHANGE_POLICIES:
            self.reshaping = self.reshaping.then(TargetReshape(emptied=(change.column,)))
        older, newer = self.columns[change.column], self._newer.column(change.column)
        if self._policy in CURRENT_ROW_POLICIES and widen_column(older, newer) is None:
            newer = self.columns[change.column] = replace(newer, nullable=True)
            self.reshaping = self.reshaping.then(TargetReshape(types=(ColumnTypeChange(change.column, older, newer),)))
        else:
            self._retype(change, mode)

    def _retype(self, change: SchemaChange, mode: SchemaChangeMode) -> None:
        name = self._names.get(change.column, change.column)
        older, newer = self.columns[name], self._newer.column(name) if name in self._newer.column_names else None
        if newer is None:
            return  # Its rename was ignored: it has no new values.
        wide = widen_column(older, newer)
        if wide is None:
            if mode is SchemaChangeMode.EVOLVE:
                self.stops.append(change)
            return
        if wide != older:
            self.columns[name] = wide
            self.reshaping = self.reshaping.then(TargetReshape(types=(ColumnTypeChange(name, older, wide),)))


def widen_column(older: Column, newer: Column) -> Column | None:
    """`older` with a type that holds every value of both, all still distinct; None if there is none. Whole numbers,
    decimals, booleans and dates become text if no other type holds the old and the new values. So do two kinds of text."""
    if classify_type_change(older, newer) in (None, SchemaChangeKind.NARROWED):
        return older
    if classify_type_change(older, newer) is SchemaChangeKind.WIDENED:
        return replace(older, type=newer.type, source_type=newer.source_type)
    if pa.types.is_string(newer.type) and pa.types.is_string(older.type):
        return replace(older, source_type="")
    # Floats and times have several texts, so they never become text.
    if _is_text_of(newer, older.type):
        return replace(older, type=newer.type, source_type=newer.source_type)
    return older if _is_text_of(older, newer.type) else None


def _is_text_of(column: Column, narrow: pa.DataType) -> bool:
    """True if the column accepts the text of such values. A column for numbers of any scale accepts only numbers."""
    number = pa.types.is_integer(narrow) or pa.types.is_decimal(narrow)
    fits = number if column.text_kind == "number" else has_canonical_text(narrow) and not column.text_kind
    return pa.types.is_string(column.type) and fits


# The schema versions of a lane, as its sink stores them with the target.

VersionState = Literal["pending", "accepted", "applied"]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One schema of a lane's table.

    - `number`: from 1.
    - `source`: the table as its records were sent. `columns`: the lane's own table under it.
    - `position`: per partition the first offset under it, for the lane. `at`: when the lane read it.
    - `changes`: the differences from the previous version, in words.
    - `dropped`: the schema did not change; the table was dropped there.
    - `emptied`: the columns whose values in the target became NULL, since they were values of a dropped column.
    - `reshaping`: the changes of the target's columns, by the target's names; not stored.
    - `state`: `applied`, `pending` while the lane waits for an operator, `accepted` from then until it has continued.
    """

    number: int
    source: TableSpec
    columns: tuple[Column, ...]
    position: Position
    at: datetime
    changes: tuple[str, ...] = ()
    state: VersionState = "applied"
    dropped: bool = False
    emptied: tuple[str, ...] = ()
    reshaping: TargetReshape = field(default=NO_RESHAPE, compare=False)


def select_new(versions: Sequence[SchemaVersion], stored: Sequence[SchemaVersion]) -> tuple[SchemaVersion, ...]:
    """The versions that are not stored in this state."""
    states = {version.number: version.state for version in stored}
    return tuple(version for version in versions if states.get(version.number) != version.state)


def to_summary(version: SchemaVersion) -> dict[str, Any]:
    """A short description of a version for people. Reports contain it for every lane, so types are left out."""
    return {
        "number": version.number,
        "state": version.state,
        "at": version.at.isoformat(),
        "position": version.position.to_json(),
        "changes": list(version.changes),
    }


def to_json(version: SchemaVersion) -> dict[str, Any]:
    """The JSON form, for `from_json` and for people: types also by name."""
    source = version.source
    return {
        "table": source.name,
        **to_summary(version),
        "keys": list(source.keys),
        "sequence": source.sequence,
        "columns": [_column_to_json(c) for c in source.columns],
        "target": [_column_to_json(c) for c in version.columns],
        "arrow": {"columns": _types_to_text(source.columns), "target": _types_to_text(version.columns)},
        **({"dropped": True} if version.dropped else {}),
        **({"emptied": list(version.emptied)} if version.emptied else {}),
    }


def from_json(data: Mapping[str, Any]) -> SchemaVersion:
    """The version that `to_json` wrote. KeyError, TypeError or ValueError for anything else."""
    columns, target = (_columns_from_json(data[name], data["arrow"][name]) for name in ("columns", "target"))
    return SchemaVersion(
        int(data["number"]),
        TableSpec(str(data["table"]), columns, tuple(map(str, data["keys"])), int(data["sequence"])),
        target,
        Position.from_json(data["position"]),
        datetime.fromisoformat(data["at"]),
        tuple(map(str, data["changes"])),
        data["state"],
        bool(data.get("dropped", False)),
        tuple(map(str, data.get("emptied", ()))),
    )


def _column_to_json(column: Column) -> dict[str, Any]:
    return {"name": column.name, "type": str(column.type), "nullable": column.nullable, "source_type": column.source_type}


def _types_to_text(columns: tuple[Column, ...]) -> str:
    """Type names do not identify every type; Arrow's serialised schema does."""
    return b64encode(pa.schema([pa.field(c.name, c.type) for c in columns]).serialize().to_pybytes()).decode()


def _columns_from_json(data: list[Mapping[str, Any]], types: str) -> tuple[Column, ...]:
    schema = pa.ipc.read_schema(pa.py_buffer(b64decode(types)))
    return tuple(
        Column(str(c["name"]), field.type, bool(c["nullable"]), str(c["source_type"]))
        for c, field in zip(data, schema, strict=True)
    )
