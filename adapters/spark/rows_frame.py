"""Turns a folded frame into the rows frame: `adapters.apply.rows_frame` as SQL expressions, for frames on the
executors."""

from __future__ import annotations

from datetime import datetime
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain import change
from replicator.domain.policy.plan import (
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
    cdc_sequence_columns,
    end_sequence_columns,
    last_sequence_columns,
)
from replicator.domain.policy.policies import get_start_type
from replicator.domain.table import TableSpec

from ..arrow.key_change_deletes import can_have_foreign_deletes
from ..sql.reconcile import missing_values_reject, old_key_columns
from .frames import column, keep_parents, quote_name
from .types import spark_type, value_expression


def to_rows(folded: DataFrame, plan: ApplyPlan, applied_at: datetime) -> DataFrame:
    """The rows frame with the columns of `adapters.apply.rows_frame.to_rows`, in Spark's types."""
    made = _bookkeeping_columns(plan, applied_at)
    names = [(c.name, made.get(c.name, column(c.name))) for c in plan.target]
    clears = plan.truncates and not plan.has_column_versions
    rows = folded.filter(column(change.OP) != change.Op.TRUNCATE.value) if clears else folded
    columns = [
        column(change.OP),
        *(value.alias(name) for name, value in names),
        (_needed_names() if plan.table.ignore_null or plan.soft_deletes else column(change.UNCHANGED)).alias(
            change.UNCHANGED
        ),
        column(change.RESET),
        *_old_key_columns(plan),
        *(column(name) for name in change.RECORD_POSITION),
    ]
    return keep_parents(rows.select(columns), folded)


def _needed_names() -> Column:
    """See `adapters.apply.rows_frame._needed_names`."""
    lists = column(change.UNCHANGED)
    spare = sf.array_contains(lists, change.KEEP_EXISTING) & column(change.KEY_CHANGE_DELETE).isNull()
    return sf.when(spare, sf.lit(None)).otherwise(lists)


def _bookkeeping_columns(plan: ApplyPlan, applied_at: datetime) -> dict[str, Column]:
    count = plan.table.sequence
    return {
        CDC_OP: column(change.OP),
        CDC_TS: column(change.TS),
        EVENT_ID: sf.concat_ws("-", *(column(name).cast("string") for name in change.RECORD_POSITION)),
        CDC_APPLIED_AT: sf.timestamp_micros(sf.lit(round(applied_at.timestamp() * 1_000_000))),
        CDC_UNSENT: column(change.UNCHANGED),
        **{
            stored: column(sent)
            for stored, sent in zip(cdc_sequence_columns(count), change.sequence_columns(count), strict=True)
        },
        **(_version_columns(plan.table) if plan.history else {}),
        **(_mark_columns() if plan.soft_deletes else {}),
    }


def _mark_columns() -> dict[str, Column]:
    """See `adapters.apply.rows_frame._mark_columns`."""
    is_delete = column(change.OP) == change.Op.DELETE.value
    lacking = is_delete & column(change.UNCHANGED).isNotNull()
    return {
        CDC_DELETED: sf.when(lacking, sf.lit(None).cast("boolean")).otherwise(is_delete),
        CDC_DELETED_AT: sf.when(is_delete, column(change.TS)),
    }


def _version_columns(table: TableSpec) -> dict[str, Column]:
    """Every change as the version that it would start."""
    count, kinds, kind = table.sequence, table.sequence_types, get_start_type(table)
    lasts = zip(last_sequence_columns(count), change.sequence_columns(count), strict=True)
    return {
        START_AT: column(change.TS) if kind is None else value_expression(column(change.sequence_columns(1)[0]), kind),
        END_AT: sf.lit(None).cast("timestamp" if kind is None else spark_type(kind)),
        **{
            n: sf.lit(None).cast("string" if pa.types.is_string(kind) else "bigint")
            for n, kind in zip(end_sequence_columns(count), kinds, strict=True)
        },
        **{stored: column(sent) for stored, sent in lasts},
    }


def _old_key_columns(plan: ApplyPlan) -> list[Column]:
    pairs = zip(plan.table.keys, old_key_columns(plan), strict=True)
    moved = [(sf.expr(f"{quote_name(change.OLD_KEY)}.{quote_name(key)}"), key, old) for key, old in pairs]
    if not can_have_foreign_deletes(plan):
        return [before.alias(old) for before, _, old in moved]
    return [
        sf.when(column(change.KEY_CHANGE_DELETE), column(key)).otherwise(before).alias(old) for before, key, old in moved
    ]


NAMES = "{names}"


def incomplete_reason() -> Column:
    """The reason why a row cannot be completed, with the text of `sql.reconcile.missing_values_reject`."""
    before, after = str(missing_values_reject([NAMES])).split(NAMES)
    named = sf.concat(sf.lit(before), sf.array_join(column(change.UNCHANGED), ", "), sf.lit(after))
    return sf.when(sf.size(column(change.UNCHANGED)) == 0, sf.lit(str(missing_values_reject([])))).otherwise(named)


def to_rejects(*rejected: DataFrame | None) -> DataFrame | None:
    """The positions of rejected rows, with `_error`; None when there are none."""
    columns = [column(name) for name in (*change.RECORD_POSITION, change.ERROR)]
    known = [frame for frame in rejected if frame is not None]
    if not known:
        return None
    return keep_parents(reduce(DataFrame.unionAll, [frame.select(columns) for frame in known]), *known)
