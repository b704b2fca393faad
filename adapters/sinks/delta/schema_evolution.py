"""The columns of a table: rewritten after its source, their versions, and clustering by some of them.

Delta Lake needs column mapping and type widening to rename, widen or remove columns, which not every engine
writes. So the table is rewritten in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable

from replicator.domain.errors import ConfigProblem, DataLoss, Fatal
from replicator.domain.policy.plan import CDC_UNSENT, ApplyPlan
from replicator.domain.schema_evolution import SchemaVersion, TargetReshape, from_json, to_json
from replicator.ports.frames import Lane

from ...delta.folders import Folder
from ...delta.options import config_location, select_columns
from ...delta.table_writer import TableWriter, TargetColumn
from ...delta.tables import STATISTICS, can_have_statistics, columns_with_statistics, read_schema, stored_name
from ...delta.types import storage_type


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The name of a table and its layout columns, which must not change. `end`: for scd2, the column that is
    NULL in open versions."""

    name: str
    layout: tuple[str, ...] = ()
    end: str = ""


def reshape(
    table: DeltaTable,
    reshaping: TargetReshape,
    writer: TableWriter,
    place: TableLayout,
    rewrite: Callable[[DeltaTable, Sequence[TargetColumn]], None] | None = None,
) -> bool:
    """Applies the rest of `reshaping` to the table; False when there is nothing to do. The snapshot is current
    afterwards. `rewrite`: by default the writer's."""
    schema = read_schema(table)
    columns = reshape_columns(schema, reshaping, place.end)
    before = [TargetColumn(f.name, f) for f in schema]
    if columns == before:
        return False
    fields = {column.old_name: column.field for column in columns if not column.emptied}
    for name in place.layout:
        if fields.get(name) != schema.field(name):
            raise Fatal(
                f"column {name!r} of table {place.name}, which decides the layout of its files, has changed",
                next_step="Load the table again under another name with `into`.",
            )
    covered = columns_with_statistics(table)
    same = [k.field.name for k in columns if k.field.name == k.old_name and k.old_name in covered]
    exact = [k.field.name for k in columns if k.field.name in same and can_have_statistics(k.field)]
    if STATISTICS in table.metadata().configuration or exact != same:
        writer.set_properties(table, {STATISTICS: ",".join(exact)})
    (rewrite or writer.rewrite)(table, columns)
    return True


def reshape_columns(schema: pa.Schema, reshaping: TargetReshape, end: str = "") -> list[TargetColumn]:
    """The new columns of a table with this schema."""
    columns = {f.name: TargetColumn(f.name, f) for f in schema}
    for name in (_find_name(n, columns) for n in reshaping.emptied):
        if name in columns:
            columns[name] = replace(columns[name], emptied=True, while_null=end)
    for old, new in reshaping.renames:
        old_name, name = _find_name(old, columns), stored_name(new)
        if old_name in columns and new in reshaping.replaced:
            columns.pop(_find_name(new, columns), None)
        if old_name in columns and name not in columns and new not in columns:
            new_column = replace(columns[old_name], field=columns[old_name].field.with_name(name))
            columns = {name if n == old_name else n: new_column if n == old_name else k for n, k in columns.items()}
    for name in reshaping.removals:
        columns.pop(_find_name(name, columns), None)
    for change in reshaping.types:
        column = columns.get(_find_name(change.name, columns))
        if column is not None and column.field.type.equals(storage_type(change.before.type)):
            field = column.field.with_type(storage_type(change.after.type))
            columns[column.field.name] = replace(column, field=field)
    new_names = dict.fromkeys(schema.names) | {column.old_name: name for name, column in columns.items()}
    renamed = {old: new for old, new in new_names.items() if old != new}
    if CDC_UNSENT in columns:
        columns[CDC_UNSENT] = replace(columns[CDC_UNSENT], renamed=renamed)
    return list(columns.values())


def _find_name(name: str, columns: dict[str, TargetColumn]) -> str:
    return name if name in columns else stored_name(name)


# The schema versions of a lane: one file each, named by number.


def read_versions(folder: Folder) -> list[SchemaVersion]:
    """All versions in `folder`, by number. Files from before there were versions are only for people, and are
    skipped."""
    texts = [folder.load(name) for name in folder.files() if name.removesuffix(".json").isdecimal()]
    try:
        versions = [from_json(record) for record in map(json.loads, texts) if "number" in record]
    except (KeyError, TypeError, ValueError) as damaged:
        raise DataLoss(
            f"a file of {folder} is damaged, so the schemas of the lane are lost",
            next_step="Restore the folder, or remove it: the next schema that the lane reads then becomes its first.",
        ) from damaged
    return sorted(versions, key=lambda version: version.number)


def write_version(folder: Folder, version: SchemaVersion) -> None:
    """Writes or overwrites the file of a version."""
    folder.put(f"{version.number}.json", to_json(version))


# Liquid clustering: its columns, and the statistics that it needs.

WHICH = (
    "rows can only be clustered by text, whole numbers, dates, timestamps and decimals of up to 15 digits. "
    "Names of the columns must consist of letters, digits and underscores"
)


def check_clusters(lane: Lane, plan: ApplyPlan, wanted: Sequence[str]) -> list[str]:
    """The columns of `cluster_by` under the names of the table.

    Raises ConfigProblem for a column that the source does not have, or that cannot be clustered.
    """
    return select_columns(lane, plan, "cluster_by", wanted, fits=can_have_statistics, which=WHICH, stays="clusters")


def refuse_partitioned(table: DeltaTable, lane: Lane) -> None:
    """Raises ConfigProblem when the table has partitions, because Delta does not cluster partitioned tables."""
    if table.metadata().partition_columns:
        raise ConfigProblem(
            f"table {lane.into} is partitioned by {', '.join(table.metadata().partition_columns)}: it cannot be clustered",
            next_step=f"Remove `cluster_by` in {config_location(lane)}, or give the table another name with `into`.",
        )


def find_missing_statistics(table: DeltaTable, clusters: Sequence[str]) -> Mapping[str, str]:
    """The property that a table needs to be clustered by these columns: Delta requires statistics of them."""
    covered = columns_with_statistics(table)
    if set(clusters) <= set(covered):
        return {}
    covered_names = [f.name for f in read_schema(table) if f.name in covered and can_have_statistics(f)]
    return {STATISTICS: ",".join(dict.fromkeys([*clusters, *covered_names]))}
