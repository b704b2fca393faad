"""Options of the DuckDB sink. `replicator check` imports this module, so it must not import `duckdb`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from replicator.ports.adapter_options import SinkOptions
from replicator.ports.options import ConfigPath


class DuckDbOptions(SinkOptions):
    """Tables in one DuckDB file."""

    what: ClassVar[str] = "a DuckDB sink"
    assumed: ClassVar[Mapping[str, Any]] = {"kind": "duckdb"}
    has_table_options: ClassVar[bool] = False

    kind: Literal["duckdb"]
    path: ConfigPath
    """The DuckDB file."""
