"""A pipeline that is written in Python: a config to which calls with the names of AUTO CDC add flows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path as FilePath
from pathlib import PurePath
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from replicator.application.operations.read_side import read_target
from replicator.domain.errors import ConfigProblem, suggest_name
from replicator.settings import ConfigError, Document, Finding, Loaded, Origin, load_layers
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.configuration import read_document

from .program_run import plan_pipeline, run_pipeline

Columns = Sequence[str]
Keys = Mapping[str, Any]
Names = Mapping[tuple[str | int, ...], str]


class Pipeline:
    """One pipeline: sources, sinks, and the flows between them.

    The keyword parameters are the top-level keys of a config file, with the same values. `tables` has everything that
    flows cannot express (event logs, `append`, declared columns), `defaults` applies to all tables. Relative paths start
    from `root`, by default the working directory. `${NAME}` in a text is replaced from the environment, as in a file.

    `check`, `plan` and `run` check the config. They raise `ConfigError` with all problems, each with its line of the
    program. Other calls only raise it for values that a config cannot contain.
    """

    def __init__(
        self,
        name: str,
        *,
        sources: Mapping[str, Keys],
        sinks: Mapping[str, Keys],
        dead_letters: Keys | None = None,
        engine: Literal["local", "spark"] | None = None,
        tables: Iterable[Keys] = (),
        defaults: Keys | None = None,
        state: str | os.PathLike[str] | None = None,
        limits: Keys | None = None,
        spark: Keys | None = None,
        http: Keys | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        at = find_caller()
        arguments = {
            "pipeline": name,
            "engine": engine,
            "sources": sources,
            "sinks": sinks,
            "dead_letters": dead_letters,
            "defaults": defaults,
            "state": state,
            "limits": limits,
            "spark": spark,
            "http": http,
        }
        data = {key: to_config_value(value, key, at) for key, value in arguments.items() if value is not None}
        entries = to_config_value(list(tables), "tables", at)
        self._set_document(Document({**data, "tables": entries}, {(): at}), FilePath(root or FilePath.cwd()).absolute(), ())

    @classmethod
    def from_config(cls, config: str | os.PathLike[str], env: str | None = None, overrides: Iterable[str] = ()) -> Pipeline:
        """The pipeline of a config file, to which flows can be added. `env` is its overlay, `overrides` are as in `--set`.
        The file need not have `tables`."""
        document, files, root = load_layers(FilePath(config), env, overrides)
        pipeline = cls.__new__(cls)
        pipeline._set_document(document, root, files)
        return pipeline

    def _set_document(self, document: Document, root: FilePath, files: tuple[FilePath, ...]) -> None:
        self._document, self._root, self._files = document, root, files
        self._declared = PipelineSpec()
        self._views: dict[str, str] = {}
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> Pipeline:
        """Inside `with`, the functions of `replicator.pipelines` add to this pipeline."""
        self._leave.append(set_active(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave.pop()()

    def create_streaming_table(
        self,
        name: str,
        *,
        table_properties: Mapping[str, Any] | None = None,
        partition_cols: Columns | None = None,
        cluster_by: Columns | None = None,
        **others: Any,
    ) -> None:
        """Set options of the Delta table `name`, which is exactly the `target` of a flow. Flows create their tables
        themselves, so this call is only needed for options.

        `table_properties`: delta.enableChangeDataFeed and delta.enableDeletionVectors. In the config they are
        `change_data_feed` and `deletion_vectors`, and `partition_cols` is `partition_by`.
        """
        at = find_caller()
        allowed = ("table_properties", "partition_cols", "cluster_by")
        refuse_foreign(others, "create_streaming_table", allowed, TABLE_PARAMETERS, at)
        options = to_options(table_properties or {}, at)
        layout = {"partition_by": partition_cols, "cluster_by": cluster_by}
        self._declared.add_table(name, TableSpecOptions({**_to_keys(layout, f"of table '{name}'", at), **options}, at))

    create_target_table = create_streaming_table
    """The earlier name of the call."""

    def temporary_view(self, function: Callable[[], str] | None = None, *, name: str | None = None) -> Any:
        """A decorator. The function returns `SOURCE.TABLE`. Flows may use the function's name, or `name`, as their `source`
        for it. A view selects no rows or columns; use `where` and `column_list`."""
        at = find_caller()

        def declare(view: Callable[[], str]) -> Callable[[], str]:
            called = name or view.__name__
            if called in self._views:
                raise make_config_error(at, "same_name", f"there is already a view '{called}'")
            self._views[called] = _require_text(view(), f"{called}()", at)
            return view

        return declare if function is None else declare(function)

    def create_auto_cdc_flow(
        self,
        target: str,
        source: str,
        keys: Columns | None = None,
        sequence_by: str | Columns | None = None,
        *,
        ignore_null_updates: bool | None = None,
        apply_as_deletes: str | None = None,
        apply_as_truncates: str | None = None,
        column_list: Columns | None = None,
        except_column_list: Columns | None = None,
        stored_as_scd_type: Literal[1, 2, "1", "2"] | None = None,
        track_history_column_list: Columns | None = None,
        track_history_except_column_list: Columns | None = None,
        name: str | None = None,
        ignore_null_updates_column_list: Columns | None = None,
        ignore_null_updates_except_column_list: Columns | None = None,
        partial_updates: Literal["ordered", "by_column"] | None = None,
        **others: Any,
    ) -> None:
        """Apply the changes of the table `source` to the table `target`. The call is one entry of `to` in the config, with
        the same keys and the same meaning. `partial_updates` only exists in Replicator.

        - `source`: SOURCE.TABLE, a source of the pipeline and the name of a table there, which may be a glob.
        - `target`: SINK.TABLE, or SINK alone for the name of the source table.
        - `keys`, `sequence_by`: not needed if the records contain their key and come from a log.
        - `name`: the name of the flow in `plan`, by default its target.

        Columns and conditions are text.
        """
        at = find_caller()
        flow_keys = {key: value for key, value in locals().items() if key in FLOW_KEYS}
        refuse_foreign(others, "create_auto_cdc_flow", {*FLOW_KEYS, "target", "source", "name"}, FLOW_PARAMETERS, at)
        self._add_flow(target, source, name, flow_keys, at)

    def create_auto_cdc_from_snapshot_flow(
        self,
        target: str,
        source: str,
        keys: Columns,
        stored_as_scd_type: Literal[1, 2, "1", "2"] | None = None,
        *,
        track_history_column_list: Columns | None = None,
        track_history_except_column_list: Columns | None = None,
        name: str | None = None,
        **others: Any,
    ) -> None:
        """Apply the snapshots of the table `source`, one after the other, to the table `target`.

        As `create_auto_cdc_flow`. The source reads snapshots: `{"format": "rows", "transport": "snapshots", "path": ...}`,
        or a database's `dsn` and `table` instead of `path`.
        """
        at = find_caller()
        flow_keys = {key: value for key, value in locals().items() if key in FLOW_KEYS}
        allowed = {*flow_keys, "target", "source", "name"}
        refuse_foreign(others, "create_auto_cdc_from_snapshot_flow", allowed, FLOW_PARAMETERS, at)
        if callable(source):
            raise make_config_error(at, "not_supported", "'source' of a flow from snapshots is a function", WRITE_SNAPSHOTS)
        name_of_source = split_source(_require_text(source, "source", at), at, self._list_names("sources"))[0]
        sources = self._document.data.get("sources") if isinstance(self._document.data, dict) else None
        settings = sources.get(name_of_source) if isinstance(sources, dict) else None
        transport = settings.get("transport") if isinstance(settings, dict) else None
        if transport not in (None, "snapshots"):
            sentence = f"the source '{name_of_source}' has the transport '{transport}', which does not read snapshots"
            raise make_config_error(at, "source", sentence, WRITE_SNAPSHOTS)
        self._add_flow(target, source, name, flow_keys, at)

    def _add_flow(self, target: str, source: str, name: str | None, keys: Keys, at: Origin) -> None:
        name = _require_text(target if name is None else name, "name", at)
        source = _require_text(source, "source", at)
        origin, table = split_source(self._views.get(source, source), at, self._list_names("sources"))
        sink, into = split_target(_require_text(target, "target", at), at, self._list_names("sinks"))
        self._declared.add_flow(FlowSpec(name, origin, table, sink, into, _to_keys(keys, f"of flow '{name}'", at), at))

    def _list_names(self, part: str) -> list[str]:
        """The names of the sources, or of the sinks."""
        entries = self._document.data.get(part) if isinstance(self._document.data, dict) else None
        return list(entries) if isinstance(entries, dict) else []

    def config(self) -> dict[str, Any]:
        """The pipeline as plain data, as in a YAML file. Commands of the program can use it."""
        document, _ = self._write_document()
        return dict(document.data) if isinstance(document.data, dict) else {}

    def check(self) -> Loaded:
        """Check the config without connecting to anything. Returns the settings; their `warnings` name doubtful values."""
        document, _ = self._write_document()
        return read_document(document, self._root, self._files)

    def plan(self, table: str | None = None) -> list[dict[str, Any]]:
        """The plans of all tables that are in the sources now, or of the source table `table`. The items are as in
        `replicator plan --json`, with the name of the lane's flow as `flow`. Applies nothing."""
        document, names = self._write_document()
        return plan_pipeline(read_document(document, self._root, self._files), names, table)

    def run(self, *, until_caught_up: bool = False, stop: threading.Event | None = None) -> dict[str, Any]:
        """Read the sources and write the targets, as `replicator run`. Returns the report of `replicator run --json`.

        The run ends when `stop` is set, or with an interrupt (Ctrl-C). With `until_caught_up` it also ends when everything
        that is available now is applied. The status page is served if the pipeline has `http`.

        Raises `RunFailed` if the run ends in another way or a lane was suspended, `Fenced` while another instance runs,
        and `ConfigError`.
        """
        loaded = self.check()
        served = isinstance(self._document.data, dict) and "http" in self._document.data
        return run_pipeline(loaded, once=until_caught_up, stop=stop, served=served)

    def load_table(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a target, as `replicator.notebook.load_table`."""
        return read_target(ConfiguredComponents(self.check()), name, version=version, as_of=as_of, where=where, limit=limit)

    def _write_document(self) -> tuple[Document, Names]:
        document = deepcopy(self._document)
        return document, self._declared.write_tables(document)


FLOW_KEYS = frozenset(
    {
        "keys",
        "sequence_by",
        "ignore_null_updates",
        "ignore_null_updates_column_list",
        "ignore_null_updates_except_column_list",
        "partial_updates",
        "apply_as_deletes",
        "apply_as_truncates",
        "column_list",
        "except_column_list",
        "stored_as_scd_type",
        "track_history_column_list",
        "track_history_except_column_list",
    }
)
"""Parameters of flows that are keys of a `to` entry."""


def _to_keys(keys: Keys, subject: str, at: Origin) -> dict[str, Any]:
    config = {key: to_config_value(value, f"'{key}' {subject}", at) for key, value in keys.items() if value is not None}
    if config.get("stored_as_scd_type") == "bitemporal":
        raise make_config_error(
            at, "not_supported", f"'stored_as_scd_type' {subject} is 'bitemporal', which is not supported", BITEMPORAL
        )
    return config


def _require_text(value: Any, label: str, at: Origin) -> str:
    if not isinstance(value, str):
        raise make_config_error(at, "type", f"'{label}' of a flow must be text")
    return value


# The calls of AUTO CDC as functions. Each adds to the pipeline of the enclosing `with` block.

_ACTIVE: ContextVar[Pipeline | None] = ContextVar("replicator_pipeline", default=None)


def set_active(pipeline: Pipeline) -> Callable[[], None]:
    """Make the functions add to `pipeline`. Returns a function that undoes this."""
    token = _ACTIVE.set(pipeline)
    return lambda: _ACTIVE.reset(token)


def create_auto_cdc_flow(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_auto_cdc_flow`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    _get_active("create_auto_cdc_flow").create_auto_cdc_flow(*arguments, **parameters)


def create_auto_cdc_from_snapshot_flow(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_auto_cdc_from_snapshot_flow`, for the pipeline of the `with` block. ConfigProblem outside of
    one."""
    _get_active("create_auto_cdc_from_snapshot_flow").create_auto_cdc_from_snapshot_flow(*arguments, **parameters)


def create_streaming_table(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_streaming_table`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    _get_active("create_streaming_table").create_streaming_table(*arguments, **parameters)


def create_target_table(*arguments: Any, **parameters: Any) -> None:
    """As `Pipeline.create_target_table`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    _get_active("create_target_table").create_target_table(*arguments, **parameters)


def temporary_view(*arguments: Any, **parameters: Any) -> Any:
    """As `Pipeline.temporary_view`, for the pipeline of the `with` block. ConfigProblem outside of one."""
    return _get_active("temporary_view").temporary_view(*arguments, **parameters)


def _get_active(call: str) -> Pipeline:
    pipeline = _ACTIVE.get()
    if pipeline is None:
        raise ConfigProblem(
            f"{call}() is called outside of a pipeline",
            next_step="Put it into `with Pipeline(...):`, or call it as a method of the pipeline.",
        )
    return pipeline


# `col`, `expr`, `struct` and `spark.readStream.table`, as programs for AUTO CDC call them.
#
# A config contains text, so these functions return text. Spark's own Columns are refused, since their text cannot be parsed.


def col(name: str) -> str:
    """The column of that name."""
    return name


def expr(text: str) -> str:
    """The condition `text`."""
    return text


def struct(*columns: str) -> list[str]:
    """Several columns as one sequence, compared from left to right."""
    return list(columns)


class StreamReader:
    """The object `spark.readStream` of these programs."""

    def table(self, name: str) -> str:
        """A table of a source, `SOURCE.TABLE`, as the result of a view or as the `source` of a flow."""
        return name


class SparkNames:
    """The object `spark` of these programs. It is not a Spark session, and needs none."""

    readStream = StreamReader()  # noqa: N815 - Spark's name


spark = SparkNames()


# The flows and tables that calls declare, and their conversion to `tables` of a config.

OriginsByPath = dict[tuple[str | int, ...], Origin]


@dataclass(frozen=True)
class FlowSpec:
    """One `to` entry: the arguments of a call, under the names of the config."""

    name: str
    source: str
    match: str
    sink: str
    into: str | None
    keys: Mapping[str, Any]
    at: Origin

    @property
    def target(self) -> str:
        """As the call named it."""
        return self.sink if self.into is None else f"{self.sink}.{self.into}"


@dataclass(frozen=True)
class TableSpecOptions:
    """Options of one target."""

    options: Mapping[str, Any]
    at: Origin


@dataclass
class PipelineSpec:
    """All that was declared, in the order of the calls."""

    flows: list[FlowSpec] = field(default_factory=list)
    tables: dict[str, TableSpecOptions] = field(default_factory=dict)

    def add_flow(self, flow: FlowSpec) -> None:
        """ConfigError when there is a flow of that name."""
        first = next((f for f in self.flows if f.name == flow.name), None)
        if first is not None:
            hint = "give one of them another 'name'" if first.target != flow.target else "give one of them another target"
            raise make_config_error(flow.at, "same_name", f"there is already a flow '{flow.name}', at {first.at}", hint)
        self.flows.append(flow)

    def add_table(self, name: str, table: TableSpecOptions) -> None:
        """ConfigError when the table was declared before."""
        if name in self.tables:
            raise make_config_error(table.at, "same_name", f"table '{name}' is already declared, at {self.tables[name].at}")
        self.tables[name] = table

    def write_tables(self, document: Document) -> dict[tuple[str | int, ...], str]:
        """Add everything to `tables` of the document. Returns the path of each flow's entry with the flow's name.

        All flows from one source table are entries of one table, which the document may already have."""
        targets = {flow.target for flow in self.flows}
        for name, table in self.tables.items():
            if name not in targets:
                named = ", ".join(f"'{target}'" for target in sorted(targets))
                hint = f"there are flows into {named}" if targets else "there is no flow yet"
                raise make_config_error(table.at, "unused_table", f"no flow writes table '{name}'", hint)
        tables = document.data.setdefault("tables", []) if isinstance(document.data, dict) else None
        if not isinstance(tables, list):
            return {}
        names = {}
        for flow in self.flows:
            declared = self.tables.get(flow.target)
            names[_write_entry(tables, flow, declared.options if declared else {}, document.origins)] = flow.name
        return names


def _write_entry(tables: Any, flow: FlowSpec, options: Mapping[str, Any], origins: OriginsByPath) -> tuple[str | int, ...]:
    """Write the entry. Returns its path."""
    wanted = flow.source, flow.match
    keys = [(one.get("source"), one.get("match")) if isinstance(one, dict) else None for one in tables]
    index = keys.index(wanted) if wanted in keys else len(tables)
    if index == len(tables):
        tables.append({"match": flow.match, "source": flow.source})
        origins[("tables", index)] = flow.at
    entries = tables[index].setdefault("to", [])
    if not isinstance(entries, list):
        return ("tables", index, "to")
    into = {} if flow.into is None else {"into": flow.into}
    entries.append({"sink": flow.sink, **into, **flow.keys, **options})
    path = ("tables", index, "to", len(entries) - 1)
    origins[path] = flow.at
    return path


def split_source(source: str, at: Origin, sources: Sequence[str]) -> tuple[str, str]:
    """The parts of `SOURCE.TABLE`."""
    name, dot, table = source.partition(".")
    if not dot or not name or not table:
        example = f"{next(iter(sources), 'shop')}.{source.strip('.') or 'customers'}"
        raise make_config_error(
            at, "source", f"the source '{source}' names no table", f"write SOURCE.TABLE, such as '{example}'"
        )
    return name, table


def split_target(target: str, at: Origin, sinks: Sequence[str]) -> tuple[str, str | None]:
    """The parts of `SINK.TABLE`, or of `SINK` alone. The target then has the name of the source table."""
    name, dot, into = target.partition(".")
    if (dot and not (name and into)) or (not dot and name not in sinks):
        example = f"{next(iter(sinks), 'lake')}.{target.strip('.') or 'customers'}"
        sentence = f"the target '{target}' names no sink of the pipeline"
        raise make_config_error(at, "target", sentence, f"write SINK.TABLE, such as '{example}'")
    return name, into or None


# The arguments of calls as plain data of a config, and errors that name the call like a line of a YAML config.

OWN_PACKAGE = __name__.rpartition(".")[0]


def find_caller() -> Origin:
    """The file and line of the nearest caller outside this package; the file as seen from the working directory."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(OWN_PACKAGE):
        frame = frame.f_back
    file = FilePath(frame.f_code.co_filename)
    folder = FilePath.cwd()
    return Origin(str(file.relative_to(folder) if file.is_relative_to(folder) else file), frame.f_lineno)


def make_config_error(at: Origin, code: str, message: str, suggestion: str = "") -> ConfigError:
    """The error for a problem of one call."""
    return ConfigError([Finding("error", code, message, at.file, at.line, suggestion)])


# Values of a program as the plain data of a YAML file.

MAX_DEPTH = 32
PLAIN_HINT = "import col, expr and struct from replicator.pipelines, or write text: 'id', \"operation = 'DELETE'\""


def to_config_value(value: Any, name: str, at: Origin, depth: int = 0) -> Any:
    """A copy of `value` with mappings as dicts, sequences as lists and paths as text.

    Raises ConfigError for values that a config cannot contain, such as Columns of Spark. The error names the line `at`
    and the value `name`.
    """
    if depth > MAX_DEPTH:
        raise make_config_error(at, "too_large", f"{name} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise make_config_error(at, "key", f"a key in {name} is not text")
        return {str(key): to_config_value(item, f"{name}[{key!r}]", at, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_config_value(item, f"{name}[{index}]", at, depth + 1) for index, item in enumerate(value)]
    kind = type(value).__name__
    step = PLAIN_HINT if kind == "Column" else "write it as text, a number, true or false, a list or a dict"
    raise make_config_error(at, "type", f"{name} is a {kind}, which a config cannot contain", step)


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
    parameters: Mapping[str, Any], call: str, names: Iterable[str], instead: Mapping[str, str], at: Origin
) -> None:
    """Raise for the first of the `parameters` that the call does not have.

    TypeError for an unknown parameter. ConfigError for a parameter of other systems, unless its value is their default.
    """
    for name, value in parameters.items():
        if name not in instead:
            hint = suggest_name(name, names)
            raise TypeError(f"{call}() has no parameter {name!r}{'; ' + hint if hint else ''}")
        if value is not None and value is not False:
            raise make_config_error(at, "not_supported", f"{call}() has no parameter '{name}'", instead[name])


def to_options(properties: Mapping[str, Any], at: Origin) -> dict[str, bool]:
    """Properties of a Delta table as options of its `to` entry."""
    options = {}
    for name, value in properties.items():
        if name not in PROPERTIES:
            hint = suggest_name(name, PROPERTIES) or f"use {' or '.join(PROPERTIES)}"
            raise make_config_error(at, "not_supported", f"the table property {name!r} is not supported", hint)
        if str(value).lower() not in ("true", "false"):
            raise make_config_error(at, "value", f"the table property {name!r} must be true or false")
        options[PROPERTIES[name]] = str(value).lower() == "true"
    return options
