"""Parameters of other systems that do not exist here. Each is refused by name, with the option to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from replicator.domain.errors import suggest_name
from replicator.settings import Origin

from .caller_origin import make_config_error

FLOW_PARAMETERS: Mapping[str, str] = {
    "system_sequence_by": "leave it out: changes with equal 'sequence_by' are in the order of the source's log",
    "columns_to_update": "use 'ignore_null_updates', or one of its column lists, if NULL means that a value was not sent",
    "once": "use a separate pipeline for the backfill and call run(until_caught_up=True)",
    "spark_conf": "pass options of Spark to the pipeline: Pipeline(..., spark={...})",
    "where": "leave it out: every change of the source's table is applied",
    "flow_name": "use 'name'",
}
TABLE_PARAMETERS: Mapping[str, str] = {
    "comment": "keep it in the code",
    "schema": "leave it out: a target has the columns of its source, or those of the flow's 'column_list'",
    "format": "set it for the sink: sinks={'lake': {'kind': 'delta', ...}}",
    "path": "set it for the sink: sinks={'lake': {'kind': 'delta', 'path': ...}}",
    "spark_conf": FLOW_PARAMETERS["spark_conf"],
    "cluster_by_auto": "name the columns in 'cluster_by'",
    "partition_by": "use 'partition_cols'",
    "row_filter": "create a view for readers",
    "expect_all": "list rejected records with `replicator dlq list`",
    "expect_all_or_drop": "list rejected records with `replicator dlq list`",
    "expect_all_or_fail": "list rejected records with `replicator dlq list`",
}
PROPERTIES: Mapping[str, str] = {
    "delta.enableChangeDataFeed": "change_data_feed",
    "delta.enableDeletionVectors": "deletion_vectors",
}
"""Properties of Delta tables, and the names of their options here."""
WRITE_SNAPSHOTS = (
    "write snapshots into a folder, and set 'transport': 'snapshots' and 'path' in the source; "
    "or 'dsn' and 'table' of a database"
)
BITEMPORAL = "use 2, and add an event log of the table: it stores the arrival time of each change"


def refuse_foreign(
    given: Mapping[str, Any], call: str, known: Iterable[str], instead: Mapping[str, str], at: Origin
) -> None:
    """Raise for the first of the parameters `given` that the call does not have.

    TypeError for an unknown parameter. ConfigError for a parameter of other systems, unless its value is their default.
    """
    for name, value in given.items():
        if name not in instead:
            hint = suggest_name(name, known)
            raise TypeError(f"{call}() has no parameter {name!r}{'; ' + hint if hint else ''}")
        if value is not None and value is not False:
            raise make_config_error(at, "not_supported", f"{call}() has no parameter '{name}'", instead[name])


def to_options(properties: Mapping[str, Any], at: Origin) -> dict[str, bool]:
    """Properties of a Delta table as options of its `to` entry."""
    found = {}
    for name, value in properties.items():
        if name not in PROPERTIES:
            hint = suggest_name(name, PROPERTIES) or f"use {' or '.join(PROPERTIES)}"
            raise make_config_error(at, "not_supported", f"the table property {name!r} is not supported", hint)
        if str(value).lower() not in ("true", "false"):
            raise make_config_error(at, "value", f"the table property {name!r} must be true or false")
        found[PROPERTIES[name]] = str(value).lower() == "true"
    return found
