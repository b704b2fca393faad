"""Partitions of a table: suitable columns and values, and the partitions that a batch can match.

Partitions are skipped only when the partition column is part of the key. Then a row stays in its partition as
long as its key does, and the old key of a key change is known. Otherwise the row of a key may be in any
partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t
from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import Lane
from replicator.ports.sink import CheckpointUnsupported

from ..apply.conform import REJECTED, mask_written_rows, out_of_range_reason, reject_rows
from ..sql.reconcile import old_key_columns
from .options import config_location, find_stored_names, select_columns
from .tables import RANDOM_FOLDERS, read_schema
from .types import storage_type

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
LONGEST_NAME = 255
Partitions = Mapping[str, list[object]]
"""Partition columns, and the values to read."""

MOST_LOOKED_FOR = 1000
"""If a batch has more values of a partition column than this, all partitions are read."""


def partition_columns(table: DeltaTable) -> list[str]:
    """The partition columns of the table."""
    return list(table.metadata().partition_columns)


def check_partitions(lane: Lane, plan: ApplyPlan, wanted: Sequence[str]) -> list[str]:
    """The columns of `partition_by` under their stored names.

    Raises ConfigProblem for a column that the source does not have, or whose values cannot name partitions.
    """
    which = "only text, whole numbers, booleans and dates can make partitions"

    def is_usable(field: pa.Field) -> bool:
        return _can_partition(field.type)

    return select_columns(lane, plan, "partition_by", wanted, fits=is_usable, which=which, stays="partitions")


def refuse_other_partitions(table: DeltaTable, lane: Lane, wanted: Sequence[str]) -> None:
    """Raises ConfigProblem when the existing table has other partitions than `wanted`, if any are wanted."""
    columns = partition_columns(table)
    if wanted and set(columns) != set(find_stored_names(wanted, [f.name for f in table.schema().fields])):
        layout = f"is partitioned by {', '.join(columns)}" if columns else "has no partitions"
        raise ConfigProblem(
            f"table {lane.into} already exists and {layout}, but the config has {', '.join(wanted)}",
            next_step=f"Remove `partition_by` in {config_location(lane)}, which uses the table as it is. Or give the table "
            f"another name with `into`; or stop the daemon, remove the folder of the table, and `replicator lanes resync "
            f"{lane.id}`.",
        )


def refuse_foreign_paths(table: DeltaTable, name: str) -> None:
    """Raises Fatal when a file of the table has a path that delta-rs cannot find again when it removes the file."""
    if not partition_columns(table):
        return
    paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    if not all(str(path).isascii() for path in paths):
        raise Fatal(
            f"table {name} has files that another writer put into folders with characters outside ASCII: delta-rs cannot "
            "remove them, so rows would exist twice",
            next_step=f"Rewrite the table with the property {RANDOM_FOLDERS} set to true, or let Replicator write another "
            "one (`into`).",
        )


def split_unnameable(rows: pa.Table, plan: ApplyPlan, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Rows to write whose values can name partitions of `columns`, and the rest as `apply.conform.REJECTED`."""
    rejects = []
    for name in columns:
        if name not in rows.column_names or not t.is_string(rows[name].type):
            continue
        bad = pc.and_(_mask_unnameable(rows[name], name), mask_written_rows(rows, plan))
        if pc.any(bad).as_py():
            rows, bad_rows = reject_rows(rows, plan, bad, unnameable_reason(name))
            rejects.append(bad_rows)
    return rows, pa.concat_tables([REJECTED.empty_table(), *rejects])


def refuse_unnameable(source: DeltaTable, partitions: Sequence[str]) -> None:
    """Raises CheckpointUnsupported when a row of `source` has a text that cannot name one of these partitions."""
    texts = [f.name for f in read_schema(source) if f.name in partitions and t.is_string(f.type)]
    for batch in pa.RecordBatchReader.from_stream(source.scan(columns=texts)) if texts else ():
        for name in texts:
            if pc.any(_mask_unnameable(batch[name].cast(pa.string()), name)).as_py():
                raise CheckpointUnsupported(f"has rows whose text in column {name!r} cannot name a partition")


def _mask_unnameable(value: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    bad = pc.is_in(value, value_set=pa.array(["", NULL_FOLDER]))
    bad = pc.or_(bad, pc.match_substring(value, "\0"))
    return pc.fill_null(pc.or_(bad, pc.greater(pc.binary_length(value), max_text_bytes(name))), False)


def max_text_bytes(name: str) -> int:
    """The maximum length of a text in the partition column `name`. Each byte may become three in the folder's
    name."""
    return (LONGEST_NAME - 1 - 3 * len(name.encode())) // 3


def unnameable_reason(name: str) -> str:
    """The reason for a row whose text cannot name a partition."""
    sentence = f"the text of column {name!r} cannot name a partition: it is empty, too long, or reserved"
    return out_of_range_reason(sentence)


def list_prunable_columns(table: DeltaTable, plan: ApplyPlan) -> list[str]:
    """The columns by which partitions can be skipped, under their stored names."""
    keys = plan.table.keys
    types = {f.name: storage_type(f.type) for f in pa.schema(table.schema().to_arrow())}
    return [name for name in partition_columns(table) if name in keys and _can_partition(types[name])]


def select_few_values(values: Partitions) -> Partitions:
    """The columns by which partitions can be skipped: those with few values and without NULL, which no
    comparison finds."""
    return {name: among for name, among in values.items() if 0 < len(among) <= MOST_LOOKED_FOR and None not in among}


def old_key_column(plan: ApplyPlan, key: str) -> str:
    """The column of a rows frame with this column of the old key."""
    return dict(zip(plan.table.keys, old_key_columns(plan), strict=True))[key]


def _can_partition(stored_type: pa.DataType) -> bool:
    return bool(t.is_string(stored_type) or t.is_integer(stored_type) or t.is_boolean(stored_type) or t.is_date(stored_type))
