"""The policies: each is a pure function from a table to an `ApplyPlan`. `replicator.testing.model` has their meaning once
more, independently.

Other code that branches on a policy:

- The sets of `domain.policy`: `git grep _POLICIES` shows each use.
- Fields of the plan: `fold`, `merge_keys`, `truncates`, `watermark`, `soft_deletes`, `has_column_versions`, `history`
  (stage 3 is `adapters/sql/scd2.py`), and every field of `reconcile`. Engines and sinks branch on them, and so do
  `copied_columns` and `_computed_columns` in `adapters/apply/rows_frame.py`, and `adapters/spark/rows.py`.
- Policies by name: `git grep -E '"(scd1|scd2|append)"' replicator adapters` shows the defaults of the settings, the import
  of connectors, the stores of events, and the lists in `replicator/testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from replicator.domain.change import OP, TIMESTAMP, Op
from replicator.domain.errors import ConfigProblem
from replicator.domain.expr import (
    AllOf,
    AnyOf,
    Coalesce,
    Compare,
    Expr,
    IsNull,
    Lit,
    Not,
    SentValue,
    source,
    target,
    tuple_after,
)
from replicator.domain.patterns import ColumnSelection
from replicator.domain.sequence import get_display_type
from replicator.domain.table import BYTE_ORDER, Column, TableSpec
from replicator.domain.transform.rows import NO_ROW_TRANSFORMS, RowTransforms

from . import CURRENT_ROW_POLICIES
from .late_changes import check_retention
from .plan import (
    CDC_APPLIED_AT,
    CDC_DELETED,
    CDC_DELETED_AT,
    CDC_OP,
    CDC_TS,
    CDC_UNSENT,
    END_AT,
    EVENT_ID,
    START_AT,
    ApplyPlan,
    Clause,
    HistoryPlan,
    ReconcileRule,
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)

IS_DELETE: Expr = Compare("=", source(OP), Lit(Op.DELETE.value))
NOT_DELETE: Expr = Compare("<>", source(OP), Lit(Op.DELETE.value))


def list_bookkeeping_columns(table: TableSpec) -> tuple[Column, ...]:
    """The columns that every target of a policy has after the source's own."""
    return (
        Column(CDC_OP, pa.string()),
        Column(CDC_TS, TIMESTAMP),
        Column(EVENT_ID, pa.string()),
        Column(CDC_APPLIED_AT, TIMESTAMP),
        *list_sequence_columns(table),
    )


def list_sequence_columns(table: TableSpec) -> tuple[Column, ...]:
    """The target's columns for the sequence of each row."""
    names = zip(cdc_sequence_columns(table.sequence), table.sequence_types, strict=True)
    return tuple(Column(name, kind, source_type=BYTE_ORDER if pa.types.is_string(kind) else "") for name, kind in names)


def newer_condition(table: TableSpec) -> Expr:
    """The row to write is newer than the existing row. An existing row without a sequence is older than replication,
    and counts as older."""
    names = cdc_sequence_columns(table.sequence)
    after = tuple_after(tuple(source(n) for n in names), tuple(target(n) for n in names))
    return AnyOf((IsNull(target(names[0])), after))


def scd1(table: TableSpec) -> ApplyPlan:
    """Current rows: the newest change of a key wins; a delete removes the row (hard delete).

    - `TableSpec.ignore_null`: a NULL in these columns does not change an existing row.
    - `TableSpec.soft_deletes`: a deleted row stays, with its values, until an upsert restores it.
    - `TableSpec.has_column_versions`: the newest change of each column wins.
    """
    _refuse_keyless(table, "scd1")
    if table.has_column_versions:
        return _scd1_column_versions(table)
    if table.soft_deletes:
        return _scd1_soft_deletes(table)
    columns = table.columns + list_bookkeeping_columns(table)
    row = tuple((c.name, source(c.name)) for c in columns)
    update = tuple(
        (name, Coalesce(value, target(name)) if name in table.ignore_null else value)
        for name, value in row
        if name not in table.keys
    )
    return ApplyPlan(
        policy="scd1",
        table=table,
        fold="last",
        target=columns,
        reconcile=ReconcileRule(identity=table.keys, guard="newer", complete=True, uses_tombstones=True),
        merge_keys=table.keys,
        clauses=(
            Clause(True, AllOf((newer_condition(table), IS_DELETE)), "delete"),
            Clause(True, AllOf((newer_condition(table), NOT_DELETE)), "update", update),
            Clause(False, NOT_DELETE, "insert", row),
        ),
        truncates=True,
    )


def _scd1_soft_deletes(table: TableSpec) -> ApplyPlan:
    columns = (
        *table.columns,
        *list_bookkeeping_columns(table),
        Column(CDC_DELETED, pa.bool_()),
        Column(CDC_DELETED_AT, TIMESTAMP),
    )
    row = tuple((c.name, source(c.name)) for c in columns)
    update = tuple((name, value) for name, value in row if name not in table.keys)
    mark = tuple(
        (name, Lit(True) if name == CDC_DELETED else value) for name, value in update if name not in table.column_names
    )
    without_values = IsNull(source(CDC_DELETED))
    return ApplyPlan(
        policy="scd1",
        table=table,
        fold="last",
        target=columns,
        reconcile=ReconcileRule(identity=table.keys, guard="newer", complete=True, uses_tombstones=True),
        merge_keys=table.keys,
        clauses=(
            Clause(True, AllOf((newer_condition(table), without_values)), "update", mark),
            Clause(True, AllOf((newer_condition(table), Not(without_values))), "update", update),
            Clause(False, Not(without_values), "insert", row),
        ),
        truncates=True,
    )


def _scd1_column_versions(table: TableSpec) -> ApplyPlan:
    """`_cdc_unsent` names the columns that no change has set since the row exists: they are NULL."""
    values = tuple(replace(c, nullable=True) if c.name not in table.keys else c for c in table.columns)
    columns = (*values, *list_bookkeeping_columns(table), Column(CDC_UNSENT, pa.list_(pa.string())))
    always = {*table.keys, CDC_APPLIED_AT, CDC_UNSENT}
    update = tuple(
        (c.name, source(c.name) if c.name in always else SentValue(c.name)) for c in columns if c.name not in table.keys
    )
    identity = (*table.keys, *cdc_sequence_columns(table.sequence))
    return ApplyPlan(
        policy="scd1",
        table=table,
        fold="none",
        target=columns,
        reconcile=ReconcileRule(identity=identity, guard="absent", complete=False, uses_tombstones=False),
        merge_keys=table.keys,
        clauses=(
            Clause(True, IS_DELETE, "delete"),
            Clause(True, NOT_DELETE, "update", update),
            Clause(False, NOT_DELETE, "insert", tuple((c.name, source(c.name)) for c in columns)),
        ),
        truncates=True,
    )


def append(table: TableSpec) -> ApplyPlan:
    """Every change as a row, in order. A repeated change is a duplicate: it has the same sequence and the same key, or
    without a key the same values. `_cdc_unsent` names the columns with unchanged values, which are NULL. If the
    sequence ends in a count (`TableSpec.counted`), changes that differ only in it are as many as one reading of the log
    returned."""
    columns = (*table.columns, *list_bookkeeping_columns(table), Column(CDC_UNSENT, pa.list_(pa.string())))
    identity = (*(table.keys or table.column_names), *cdc_sequence_columns(table.sequence))
    return ApplyPlan(
        policy="append",
        table=table,
        fold="none",
        target=columns,
        reconcile=ReconcileRule(
            identity=identity, guard="absent", complete=False, uses_tombstones=False, counted=table.counted
        ),
        merge_keys=(),
        clauses=(Clause(False, AllOf(()), "insert", tuple((c.name, source(c.name)) for c in columns)),),
        truncates=False,
    )


def scd2(table: TableSpec, untracked: Collection[str] = ()) -> ApplyPlan:
    """Every version of every row, by sequence and not by arrival. `_cdc_seq_*` is the start of a version,
    `_cdc_end_seq_*` its end (NULL while it is open); `__START_AT` and `__END_AT` show them (`get_start_type`). An
    upsert that only changes `untracked` columns starts no version; `_cdc_last_seq_*` is the last upsert of a
    version. `_cdc_unsent` names the columns whose value was copied from the version before."""
    _refuse_keyless(table, "scd2")
    count = table.sequence
    ends = [
        replace(c, name=n)
        for names in (end_sequence_columns(count), last_sequence_columns(count))
        for c, n in zip(list_sequence_columns(table), names, strict=True)
    ]
    columns = (
        *table.columns,
        *list_bookkeeping_columns(table),
        Column(START_AT, get_start_type(table) or TIMESTAMP),
        Column(END_AT, get_start_type(table) or TIMESTAMP),
        *ends,
        Column(CDC_UNSENT, pa.list_(pa.string())),
    )
    identity = (*table.keys, *cdc_sequence_columns(count))
    row = tuple((c.name, source(c.name)) for c in columns)
    values = [c.name for c in table.values]
    return ApplyPlan(
        policy="scd2",
        table=table,
        fold="none",
        target=columns,
        reconcile=ReconcileRule(identity=identity, guard="absent", complete=False, uses_tombstones=False),
        merge_keys=identity,
        clauses=(
            Clause(True, IS_DELETE, "delete"),
            Clause(True, NOT_DELETE, "update", tuple((name, value) for name, value in row if name not in identity)),
            Clause(False, NOT_DELETE, "insert", row),
        ),
        truncates=True,
        history=HistoryPlan(
            tracked=tuple(n for n in values if n not in untracked), untracked=tuple(n for n in values if n in untracked)
        ),
    )


def get_start_type(table: TableSpec) -> pa.DataType | None:
    """The type of `__START_AT` if it shows the first column of `sequence_by`; None if it shows a time."""
    return get_display_type(table.ordered_by[0].type) if table.ordered_by else None


def _refuse_keyless(table: TableSpec, policy: str) -> None:
    if not table.keys:
        raise ConfigProblem(
            f"table {table.name} has no key, which policy {policy} needs",
            next_step="Name its key columns with `keys: [...]`, or set `policy: append` for this table, and restart.",
        )


def _list_untracked(table: TableSpec, tracked: ColumnSelection) -> list[str]:
    for name in tracked.names:
        if name not in table.column_names or name in table.keys:
            key = "track_history_except_column_list" if tracked.excluded else "track_history_column_list"
            fault = "is a key column of table" if name in table.keys else "is no column of table"
            raise ConfigProblem(
                f"'{key}' names {name!r}, which {fault} {table.name}",
                next_step=f"Name columns besides the key: {', '.join(c.name for c in table.values)}.",
            )
    return [c.name for c in table.values if c.name not in tracked]


POLICIES: dict[str, Callable[[TableSpec], ApplyPlan]] = {"scd1": scd1, "append": append, "scd2": scd2}


def refuse_floating_keys(table: TableSpec) -> None:
    """Raise ConfigProblem for a key of floating-point numbers, which cannot identify rows. 0.0 equals -0.0 in some
    engines only, NaN is not a number, and a value computed elsewhere may differ in its last digit."""
    floating = next((k for k in table.keys if pa.types.is_floating(table.column(k).type)), None)
    if floating is not None:
        raise ConfigProblem(
            f"the key of table {table.name} has the column {floating!r} of floating-point numbers",
            next_step="Name another key with `keys`, or set `policy: append`, which needs none.",
        )


def plan_for(
    policy: str,
    table: TableSpec,
    watermark: timedelta | None = None,
    row_transforms: RowTransforms = NO_ROW_TRANSFORMS,
    *,
    tracked: ColumnSelection | None = None,
    retention: timedelta | None = None,
) -> ApplyPlan:
    """The plan of `policy` for `table` after its row transforms.

    `tracked`: the columns whose change starts a version, by default all. `retention`: how long tombstones are kept, if
    the policy uses them. ConfigProblem if:

    - the policy is unknown, or does not fit the table, the watermark or the row transforms
    - the row transforms do not fit the table
    - a tracked column does not exist
    - the retention is too short
    """
    if policy not in POLICIES:
        raise ConfigProblem(f"unknown policy {policy!r}", next_step=f"Use one of: {', '.join(sorted(POLICIES))}.")
    table = row_transforms.apply_to(table)
    table.refuse_reserved_names()
    table.refuse_keys_alike()
    plan = scd2(table, _list_untracked(table, tracked)) if tracked and policy == "scd2" else POLICIES[policy](table)
    if plan.merge_keys:
        refuse_floating_keys(table)
    if watermark is not None and plan.merge_keys:
        raise ConfigProblem(
            f"table {table.name} has a watermark, which policy {policy} does not support",
            next_step="Remove 'watermark', or set `policy: append`.",
        )
    if row_transforms.has_column_versions and policy not in CURRENT_ROW_POLICIES:
        raise ConfigProblem(
            f"table {table.name} has `partial_updates: by_column`, which policy {policy} does not support",
            next_step="Remove `partial_updates: by_column`, or set `policy: scd1`.",
        )
    if row_transforms.ignore_null is not None and policy not in CURRENT_ROW_POLICIES:
        raise ConfigProblem(
            f"table {table.name} has 'ignore_null_updates', which policy {policy} does not support: it never updates a row",
            next_step="Remove 'ignore_null_updates' and its lists, or set `policy: scd1`.",
        )
    if row_transforms.soft_deletes and policy not in CURRENT_ROW_POLICIES:
        raise ConfigProblem(
            f"table {table.name} has soft deletes, which policy {policy} does not support: it keeps deleted rows anyway",
            next_step="Remove `deletes: soft`, or set `policy: scd1`.",
        )
    if row_transforms.truncates is not None and not plan.truncates:
        raise ConfigProblem(
            f"table {table.name} has 'apply_as_truncates', but policy {policy} does not support truncates",
            next_step="Remove 'apply_as_truncates', or set `policy: scd1`.",
        )
    if row_transforms.truncates is not None and plan.history is not None and plan.table.ordered_by:
        raise ConfigProblem(
            f"table {table.name} has both 'sequence_by' and 'apply_as_truncates'. With 'sequence_by', '__END_AT' of a "
            "history holds values of that column, but such a truncate ends versions at a time",
            next_step="Remove 'apply_as_truncates' or 'sequence_by', or set `policy: scd1`.",
        )
    kept_for = check_retention(policy, retention) if plan.reconcile.uses_tombstones else None
    return replace(plan, watermark=watermark, row_transforms=row_transforms, retention=kept_for)
