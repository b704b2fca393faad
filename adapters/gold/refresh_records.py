"""The record of a refresh in its commit, and the table of a projection; the errors of both."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import date
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction

from replicator.domain.errors import Fatal
from replicator.domain.projection import Groups, Projection, ProjectionInput, RefreshRecord
from replicator.domain.table import Column

from ..delta.commits import RECENT, USER_METADATA
from ..delta.folders import Folder
from ..delta.tables import create_table, open_table
from ..sql.dialect import Dialect

RECORD = "replicatorRefresh"
"""The key of the record in a commit, or in a writer's commit metadata."""

REFRESH_FULL = "Compute it whole: `replicator refresh --full`."
LEAVE_ROWS = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "ADD COLUMN", "CREATE TABLE"})
"""Operations of others that leave the rows of the last refresh unchanged."""


def app_id(projection: Projection) -> str:
    """The application of a projection's transactions."""
    return f"replicator/projection/{projection.name}"


def table_remark(projection: Projection) -> str:
    """The description of a projection's table, which identifies it."""
    return f"computed by projection {projection.name}"


def read_last_record(table: DeltaTable) -> RefreshRecord | None:
    """The record of the last refresh; None if another program wrote rows since."""
    for entry in _read_commits(table):
        said = _parse_record(entry)
        if said is not None:
            return RefreshRecord.from_json(said)
        if entry.get("operation") not in LEAVE_ROWS:
            return None
    return None


def _read_commits(table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Commits, the last one first. Nearly always it is the wanted one, and reading a commit is expensive."""
    yield from table.history(1)
    yield from table.history(RECENT)[1:]


def _parse_record(entry: dict[str, Any]) -> dict[str, Any] | None:
    text = entry.get(RECORD)
    if text is None and RECORD in str(entry.get(USER_METADATA)):
        text = json.loads(entry[USER_METADATA])[RECORD]
    found: dict[str, Any] | None = json.loads(text) if isinstance(text, str) else text
    return found


def commit_properties(table: DeltaTable, projection: Projection, record: RefreshRecord) -> CommitProperties:
    """The properties of the commit after this snapshot, for delta-rs, which must not retry by itself."""
    transaction = Transaction(app_id(projection), next_number(table, projection), int(time.time() * 1000))
    said = {RECORD: json.dumps(record.to_json())}
    return CommitProperties(custom_metadata=said, max_commit_retries=0, app_transactions=[transaction])


def next_number(table: DeltaTable, projection: Projection) -> int:
    """The number of the next refresh after this snapshot."""
    return (table.transaction_version(app_id(projection)) or 0) + 1


def refuse_others(table: DeltaTable, projection: Projection) -> None:
    """Raises Fatal for a table that no refresh of the projection created."""
    if table.metadata().description != table_remark(projection):
        raise foreign_table_error(projection)


def foreign_table_error(projection: Projection) -> Fatal:
    """The error for a table with the projection's name that belongs to another program."""
    return Fatal(
        f"table {projection.label} already exists, and projection {projection.name} did not create it",
        next_step=f"Give the projection another table with `into` ({projection.config_line}), or move that one.",
    )


def _find_field(schema: pa.Schema, name: str) -> pa.Field | None:
    return next((field for field in schema if field.name.lower() == name.lower()), None)


def create_target(folder: Folder, projection: Projection, schema: pa.Schema, first: Iterable[str]) -> DeltaTable:
    """Creates the projection's table, without rows."""
    columns = tuple(Column(field.name, field.type) for field in schema)
    create_table(
        folder, projection.into, columns, settings={}, partition_by=[], first=[*first], remark=table_remark(projection)
    )
    return open_table(folder)


def group_column(projection: Projection, schema: pa.Schema) -> pa.Field:
    """The column of `partition_by` in the table."""
    found = _find_field(schema, projection.partition_by or "")
    if found is None:
        raise Fatal(f"table {projection.label} has no column {projection.partition_by!r}", next_step=REFRESH_FULL)
    return found


def groups_filter(column: str, groups: Groups, dialect: Dialect) -> str:
    """The condition that a row belongs to one of the groups."""
    return groups_filter_on(dialect.quote_name(column), groups, dialect)


def groups_filter_on(name: str, groups: Groups, dialect: Dialect) -> str:
    """`groups_filter` for an SQL expression."""
    texts = ", ".join(sorted(group_literal(value, dialect) for value in groups if value is not None))
    parts = [f"{name} IN ({texts})"] if texts else []
    parts += [f"{name} IS NULL"] if None in groups else []
    return " OR ".join(parts) or "false"


def group_literal(value: Any, dialect: Dialect) -> str:
    """A group's value in a condition."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    return dialect.text(value) if isinstance(value, str) else f"CAST('{value.isoformat()}' AS DATE)"


def python_type(kind: pa.DataType) -> type | None:
    """The Python type of groups with that Arrow type; None for a type that cannot be a group."""
    found: type | None = None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = str
    elif pa.types.is_boolean(kind):
        found = bool
    elif pa.types.is_integer(kind):
        found = int
    elif pa.types.is_date(kind):
        found = date
    return found


def refuse_group_type(projection: Projection, schema: pa.Schema) -> None:
    """Raises Fatal when the type of the column `partition_by` cannot be a group."""
    if projection.partition_by is None:
        return
    field = _find_field(schema, projection.partition_by)
    if field is None or python_type(field.type) is None:
        what = "is not there" if field is None else f"is {field.type}"
        raise Fatal(
            f"projection {projection.name} is partitioned by {projection.partition_by!r}, which {what}; only text, whole "
            "numbers, booleans and dates make groups",
            next_step=f"Cast it in the query, or choose another column ({projection.config_line}).",
        )


def other_columns_error(projection: Projection) -> Fatal:
    """The error for rows of some groups with other columns than the table."""
    return Fatal(f"the query of {projection.name} has other columns than its table", next_step=REFRESH_FULL)


def missing_input_error(projection: Projection, one: ProjectionInput) -> Fatal:
    """The error for an input that does not exist yet."""
    return Fatal(
        f"projection {projection.name} reads {one.label}, which does not exist yet",
        next_step="Run the pipeline that writes it first.",
    )


def refuse_missing_keys(projection: Projection, columns: Iterable[str]) -> None:
    """Raises Fatal when the rows of a query lack columns of `keys`."""
    there = {name.lower() for name in columns}
    for name in projection.keys:
        if name.lower() not in there:
            raise Fatal(
                f"the query of projection {projection.name} gives no column {name!r}, which is among its keys",
                next_step=f"Correct `keys` ({projection.config_line}), or the query.",
            )


def repeated_keys_error(projection: Projection) -> Fatal:
    """The error for several rows with the same key."""
    return Fatal(
        f"the query of projection {projection.name} gives several rows with the same {', '.join(projection.keys)}",
        next_step=f"Correct the query, or `keys` ({projection.config_line}).",
    )
