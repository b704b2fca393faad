"""The comments that mark the tables of lanes and of projections, and the rules of projections' tables in all sinks.

The rules are names, groups, keys, and the errors."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import pyarrow as pa

from replicator.domain.errors import Fatal
from replicator.domain.projection import Projection, ProjectionInput
from replicator.ports.frames import Lane

MADE = "made by replicator for lane "
"""The start of the comment on a target that Replicator created, where tables can have comments. A table without it
existed before, and belongs to another program."""


def ownership_remark(lane: Lane) -> str:
    """The comment for a table that is created for the lane."""
    return f"{MADE}{lane.id} of pipeline {lane.pipeline}"


def is_owned(remark: str | None) -> bool:
    """True when the comment shows that replicator created the table, for any lane."""
    return (remark or "").startswith(MADE)


# Projections.

REFRESH_FULL = "Compute it whole: `replicator refresh --full`."


def table_remark(projection: Projection) -> str:
    """The description of a projection's table, which identifies it."""
    return f"computed by projection {projection.name}"


def foreign_table_error(projection: Projection) -> Fatal:
    """The error for a table with the projection's name that belongs to another program."""
    return Fatal(
        f"table {projection.label} already exists, and projection {projection.name} did not create it",
        next_step=f"Give the projection another table with `into` ({projection.config_line}), or move that one.",
    )


def group_column(projection: Projection, schema: pa.Schema) -> pa.Field:
    """The column of `partition_by` in the table."""
    field = _find_field(schema, projection.partition_by or "")
    if field is None:
        raise Fatal(f"table {projection.label} has no column {projection.partition_by!r}", next_step=REFRESH_FULL)
    return field


def python_type(kind: pa.DataType) -> type | None:
    """The Python type of groups with that Arrow type; None for a type that cannot be a group."""
    python: type | None = None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        python = str
    elif pa.types.is_boolean(kind):
        python = bool
    elif pa.types.is_integer(kind):
        python = int
    elif pa.types.is_date(kind):
        python = date
    return python


def refuse_group_type(projection: Projection, schema: pa.Schema) -> None:
    """Raises Fatal when the type of the column `partition_by` cannot be a group."""
    if projection.partition_by is None:
        return
    field = _find_field(schema, projection.partition_by)
    if field is None or python_type(field.type) is None:
        fault = "is not there" if field is None else f"is {field.type}"
        raise Fatal(
            f"projection {projection.name} is partitioned by {projection.partition_by!r}, which {fault}; only text, whole "
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
    names = {name.lower() for name in columns}
    for name in projection.keys:
        if name.lower() not in names:
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


def _find_field(schema: pa.Schema, name: str) -> pa.Field | None:
    return next((field for field in schema if field.name.lower() == name.lower()), None)
