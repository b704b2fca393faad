"""Drops repeated changes in process, for plans that store every change."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from adapters.duckdb.session import to_duckdb_types
from replicator.domain.change import PARTITION, TOPIC, sequence_columns
from replicator.domain.policy.plan import ApplyPlan

from ..duckdb.session import open_session
from ..sql.dialect import DUCKDB
from ..sql.fold import ARRIVAL, COPY, LAST, change_identity, first_select


def drop_duplicates(changes: pa.Table, plan: ApplyPlan, *, counted: bool) -> pa.Table:
    """Keeps the first of the changes with equal key and sequence (without a key: with equal values and
    sequence).

    `counted`: of changes that differ only in their count, keeps as many as one reading of the log contained.
    """
    if not plan.table.sequence or is_ordered(changes, plan):
        return changes
    names = {*change_identity(plan, counted=counted), *sequence_columns(plan.table.sequence), TOPIC, PARTITION} - {COPY}
    narrow = to_duckdb_types(changes.select(sorted(names)))
    narrow = narrow.append_column(ARRIVAL, pa.array(range(changes.num_rows), pa.int64()))
    with open_session() as connection:
        connection.register("changes", narrow)
        first = connection.sql(first_select(plan, DUCKDB, "changes", counted=counted)).to_arrow_table()
    return changes.take(first[LAST])


def is_ordered(changes: pa.Table, plan: ApplyPlan) -> bool:
    """True when every change is above the one before it. Then it is above all earlier changes of its key, too."""
    if changes.num_rows < 2:
        return True
    columns = [changes[n].combine_chunks() for n in sequence_columns(plan.table.sequence)]
    above, equal = pa.scalar(False), pa.scalar(True)
    for column in columns:
        left, right = column[:-1], column[1:]
        above = pc.or_(above, pc.and_(equal, pc.greater(right, left)))
        equal = pc.and_(equal, pc.equal(right, left))
    return bool(pc.all(above).as_py())
