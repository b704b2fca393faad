"""From a folded frame to the rows frame, as SQL expressions: `adapters.sql.rows` for frames that stay on the executors."""

from __future__ import annotations

from datetime import datetime
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replicator.domain import change
from replicator.domain.plan import (
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
from replicator.domain.policies import started_as
from replicator.domain.table import TableSpec

from ..arrow.departures import looks
from ..sql.repair import from_columns, not_sent
from .elements import shown
from .frames import column, derived, quoted
from .types import spark_type

POSITION = (change.TOPIC, change.PARTITION, change.OFFSET)


def to_rows(folded: DataFrame, plan: ApplyPlan, applied_at: datetime) -> DataFrame:
    """The rows frame, with the columns that `adapters.sql.rows.to_rows` promises, in the types in which values travel."""
    made = _bookkeeping(plan, applied_at)
    names = [(c.name, made.get(c.name, column(c.name))) for c in plan.target]
    clears = plan.truncates and not plan.by_column
    rows = folded.filter(column(change.OP) != change.Op.TRUNCATE.value) if clears else folded
    columns = [
        column(change.OP),
        *(value.alias(name) for name, value in names),
        (_needed() if plan.table.keeping or plan.soft_deletes else column(change.UNSENT)).alias(change.UNSENT),
        column(change.RESET),
        *_old_key(plan),
        *(column(name) for name in POSITION),
    ]
    return derived(rows.select(columns), folded)


def _needed() -> Column:
    """As `adapters.sql.rows._needed`."""
    lists = column(change.UNSENT)
    spare = sf.array_contains(lists, change.IF_THERE) & column(change.MOVED_TO).isNull()
    return sf.when(spare, sf.lit(None)).otherwise(lists)


def _bookkeeping(plan: ApplyPlan, applied_at: datetime) -> dict[str, Column]:
    count = plan.table.sequence
    return {
        CDC_OP: column(change.OP),
        CDC_TS: column(change.TS),
        EVENT_ID: sf.concat_ws("-", *(column(name).cast("string") for name in POSITION)),
        CDC_APPLIED_AT: sf.timestamp_micros(sf.lit(round(applied_at.timestamp() * 1_000_000))),
        CDC_UNSENT: column(change.UNSENT),
        **{
            stored: column(sent)
            for stored, sent in zip(cdc_sequence_columns(count), change.sequence_columns(count), strict=True)
        },
        **(_as_version(plan.table) if plan.history else {}),
        **(_marked() if plan.soft_deletes else {}),
    }


def _marked() -> dict[str, Column]:
    """As `adapters.sql.rows._marked`."""
    is_delete = column(change.OP) == change.Op.DELETE.value
    lacking = is_delete & column(change.UNSENT).isNotNull()
    return {
        CDC_DELETED: sf.when(lacking, sf.lit(None).cast("boolean")).otherwise(is_delete),
        CDC_DELETED_AT: sf.when(is_delete, column(change.TS)),
    }


def _as_version(table: TableSpec) -> dict[str, Column]:
    """Every change as the version that it would begin."""
    count, kinds, kind = table.sequence, table.sequence_types, started_as(table)
    lasts = zip(last_sequence_columns(count), change.sequence_columns(count), strict=True)
    return {
        START_AT: column(change.TS) if kind is None else shown(column(change.sequence_columns(1)[0]), kind),
        END_AT: sf.lit(None).cast("timestamp" if kind is None else spark_type(kind)),
        **{
            n: sf.lit(None).cast("string" if pa.types.is_string(kind) else "bigint")
            for n, kind in zip(end_sequence_columns(count), kinds, strict=True)
        },
        **{stored: column(sent) for stored, sent in lasts},
    }


def _old_key(plan: ApplyPlan) -> list[Column]:
    pairs = zip(plan.table.keys, from_columns(plan), strict=True)
    moved = [(sf.expr(f"{quoted(change.MOVED_FROM)}.{quoted(key)}"), key, old) for key, old in pairs]
    if not looks(plan):
        return [before.alias(old) for before, _, old in moved]
    return [sf.when(column(change.MOVED_TO), column(key)).otherwise(before).alias(old) for before, key, old in moved]


NAMES = "{names}"


def incomplete() -> Column:
    """The reason of a row that cannot be completed, as `sql.repair.not_sent` says it."""
    before, after = str(not_sent([NAMES])).split(NAMES)
    named = sf.concat(sf.lit(before), sf.array_join(column(change.UNSENT), ", "), sf.lit(after))
    return sf.when(sf.size(column(change.UNSENT)) == 0, sf.lit(str(not_sent([])))).otherwise(named)


def as_rejects(*rejected: DataFrame | None) -> DataFrame | None:
    """Rejected rows by their places, with `_error`; None where there can be none."""
    columns = [column(name) for name in (*POSITION, change.ERROR)]
    known = [frame for frame in rejected if frame is not None]
    if not known:
        return None
    return derived(reduce(DataFrame.unionAll, [frame.select(columns) for frame in known]), *known)
