"""Parameters that calls of other systems have and that mean nothing here: each refused by its name, with what to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from replicator.domain.suggestions import suggest_name
from replicator.settings import Origin

from .caller_origin import make_config_error

FLOW_PARAMETERS: Mapping[str, str] = {
    "system_sequence_by": "leave it out: changes that agree in 'sequence_by' come in the order of the source's log",
    "columns_to_update": "say 'ignore_null_updates', or one of its column lists, where NULL means that a value was not sent",
    "once": "make a pipeline of its own for the backfill and call run(until_caught_up=True)",
    "spark_conf": "give options of Spark to the pipeline: Pipeline(..., spark={...})",
    "where": "leave it out: every change of the source's table is applied",
    "flow_name": "write 'name'",
}
TABLE_PARAMETERS: Mapping[str, str] = {
    "comment": "keep it in the code",
    "schema": "leave it out: a target has the columns of its source, or those of the flow's 'column_list'",
    "format": "the sink says it: sinks={'lake': {'kind': 'delta', ...}}",
    "path": "the sink says it: sinks={'lake': {'kind': 'delta', 'path': ...}}",
    "spark_conf": FLOW_PARAMETERS["spark_conf"],
    "cluster_by_auto": "name the columns in 'cluster_by'",
    "partition_by": "write 'partition_cols'",
    "row_filter": "give readers a view",
    "expect_all": "read what was rejected with `replicator dlq list`",
    "expect_all_or_drop": "read what was rejected with `replicator dlq list`",
    "expect_all_or_fail": "read what was rejected with `replicator dlq list`",
}
PROPERTIES: Mapping[str, str] = {
    "delta.enableChangeDataFeed": "change_data_feed",
    "delta.enableDeletionVectors": "deletion_vectors",
}
"""Properties of Delta tables, and the option that each of them is here."""
WRITE_SNAPSHOTS = (
    "write snapshots into a folder and say 'transport': 'snapshots' and its 'path' in the source; "
    "or 'dsn' and 'table' of a database"
)
BITEMPORAL = "say 2, and give the table an event log beside its history: that keeps when each change arrived"


def refuse_foreign(
    given: Mapping[str, Any], call: str, known: Iterable[str], instead: Mapping[str, str], at: Origin
) -> None:
    """Raise for the first of the parameters `given` that the call does not have.

    TypeError for one that nobody has; ConfigError for one that other systems have, unless it says what their default says.
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
            hint = suggest_name(name, PROPERTIES) or f"there are {' and '.join(PROPERTIES)}"
            raise make_config_error(at, "not_supported", f"the table property {name!r} is not set here", hint)
        if str(value).lower() not in ("true", "false"):
            raise make_config_error(at, "value", f"the table property {name!r} must be true or false")
        found[PROPERTIES[name]] = str(value).lower() == "true"
    return found
