"""The arguments of calls as plain data of a config, and errors that name the call like a line of a YAML config."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from pathlib import PurePath
from typing import Any

from replicator.domain.errors import suggest_name
from replicator.settings import ConfigError, Finding, Origin

OWN_PACKAGE = __name__.rpartition(".")[0]


def find_caller() -> Origin:
    """The file and line of the nearest caller outside this package; the file as seen from the working directory."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(OWN_PACKAGE):
        frame = frame.f_back
    file = FilePath(frame.f_code.co_filename)
    here = FilePath.cwd()
    return Origin(str(file.relative_to(here) if file.is_relative_to(here) else file), frame.f_lineno)


def make_config_error(at: Origin, code: str, message: str, suggestion: str = "") -> ConfigError:
    """The error for a problem of one call."""
    return ConfigError([Finding("error", code, message, at.file, at.line, suggestion)])


# Values of a program as the plain data of a YAML file.

MAX_DEPTH = 32
PLAIN_HINT = "import col, expr and struct from replicator.pipelines, or write text: 'id', \"operation = 'DELETE'\""


def to_config_value(value: Any, what: str, at: Origin, depth: int = 0) -> Any:
    """A copy of `value` with mappings as dicts, sequences as lists and paths as text.

    Raises ConfigError for values that a config cannot contain, such as Columns of Spark. The error names the line `at`
    and the value `what`.
    """
    if depth > MAX_DEPTH:
        raise make_config_error(at, "too_large", f"{what} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        items = [(_require_key(key, what, at), f"{what}[{key!r}]", item) for key, item in value.items()]
        return {key: to_config_value(item, label, at, depth + 1) for key, label, item in items}
    if isinstance(value, list | tuple):
        return [to_config_value(item, f"{what}[{index}]", at, depth + 1) for index, item in enumerate(value)]
    kind = type(value).__name__
    step = PLAIN_HINT if kind == "Column" else "write it as text, a number, true or false, a list or a dict"
    raise make_config_error(at, "type", f"{what} is a {kind}, which a config cannot contain", step)


def _require_key(key: Any, what: str, at: Origin) -> str:
    if not isinstance(key, str):
        raise make_config_error(at, "key", f"a key in {what} is not text")
    return str(key)


# Parameters of other systems that do not exist here. Each is refused by name, with the option to use instead.

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
