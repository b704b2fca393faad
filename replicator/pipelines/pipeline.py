"""A pipeline that is written in Python: a config to which calls with the names of AUTO CDC add flows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from pathlib import Path as FilePath
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from replicator.application.operations.read_side import read_target
from replicator.settings import Document, Loaded, Origin, load_layers
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.configuration import read_document

from . import functions
from .parameters import (
    BITEMPORAL,
    FLOW_PARAMETERS,
    TABLE_PARAMETERS,
    WRITE_SNAPSHOTS,
    find_caller,
    make_config_error,
    refuse_foreign,
    to_config_value,
    to_options,
)
from .pipeline_spec import FlowSpec, PipelineSpec, TableSpecOptions, split_source, split_target
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
        given = {
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
        data = {key: to_config_value(value, key, at) for key, value in given.items() if value is not None}
        there = to_config_value(list(tables), "tables", at)
        self._set_document(Document({**data, "tables": there}, {(): at}), FilePath(root or FilePath.cwd()).absolute(), ())

    @classmethod
    def from_config(cls, config: str | os.PathLike[str], env: str | None = None, overrides: Iterable[str] = ()) -> Pipeline:
        """The pipeline of a config file, to which flows can be added. `env` is its overlay, `overrides` are as in `--set`.
        The file need not have `tables`."""
        document, files, root = load_layers(FilePath(config), env, overrides)
        made = cls.__new__(cls)
        made._set_document(document, root, files)
        return made

    def _set_document(self, document: Document, root: FilePath, files: tuple[FilePath, ...]) -> None:
        self._document, self._root, self._files = document, root, files
        self._declared = PipelineSpec()
        self._views: dict[str, str] = {}
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> Pipeline:
        """Inside `with`, the functions of `replicator.pipelines` add to this pipeline."""
        self._leave.append(functions.set_active(self))
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
        known = ("table_properties", "partition_cols", "cluster_by")
        refuse_foreign(others, "create_streaming_table", known, TABLE_PARAMETERS, at)
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
        said = {key: value for key, value in locals().items() if key in FLOW_KEYS}
        refuse_foreign(others, "create_auto_cdc_flow", {*FLOW_KEYS, "target", "source", "name"}, FLOW_PARAMETERS, at)
        self._add_flow(target, source, name, said, at)

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
        said = {key: value for key, value in locals().items() if key in FLOW_KEYS}
        known = {*said, "target", "source", "name"}
        refuse_foreign(others, "create_auto_cdc_from_snapshot_flow", known, FLOW_PARAMETERS, at)
        if callable(source):
            raise make_config_error(at, "not_supported", "'source' of a flow from snapshots is a function", WRITE_SNAPSHOTS)
        named = split_source(_require_text(source, "source", at), at, self._list_names("sources"))[0]
        transport = self._get_transport(named)
        if transport not in (None, "snapshots"):
            sentence = f"the source '{named}' has the transport '{transport}', which does not read snapshots"
            raise make_config_error(at, "source", sentence, WRITE_SNAPSHOTS)
        self._add_flow(target, source, name, said, at)

    def _get_transport(self, source: str) -> str | None:
        named = self._document.data.get("sources") if isinstance(self._document.data, dict) else None
        found = named.get(source) if isinstance(named, dict) else None
        return found.get("transport") if isinstance(found, dict) else None

    def _add_flow(self, target: str, source: str, name: str | None, said: Keys, at: Origin) -> None:
        name = _require_text(target if name is None else name, "name", at)
        source = _require_text(source, "source", at)
        origin, table = split_source(self._views.get(source, source), at, self._list_names("sources"))
        sink, into = split_target(_require_text(target, "target", at), at, self._list_names("sinks"))
        self._declared.add_flow(FlowSpec(name, origin, table, sink, into, _to_keys(said, f"of flow '{name}'", at), at))

    def _list_names(self, part: str) -> list[str]:
        """The names of the sources, or of the sinks."""
        named = self._document.data.get(part) if isinstance(self._document.data, dict) else None
        return list(named) if isinstance(named, dict) else []

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


def _to_keys(keys: Keys, of: str, at: Origin) -> dict[str, Any]:
    said = {key: to_config_value(value, f"'{key}' {of}", at) for key, value in keys.items() if value is not None}
    if said.get("stored_as_scd_type") == "bitemporal":
        raise make_config_error(
            at, "not_supported", f"'stored_as_scd_type' {of} is 'bitemporal', which is not supported", BITEMPORAL
        )
    return said


def _require_text(value: Any, what: str, at: Origin) -> str:
    if not isinstance(value, str):
        raise make_config_error(at, "type", f"'{what}' of a flow must be text")
    return value
