"""Pipelines written in Python instead of YAML, with the names that users of AUTO CDC know.

>>> from replicator import pipelines as dp
>>> staff = dp.Pipeline("staff", sources={...}, sinks={...}, dead_letters={...})
>>> staff.create_auto_cdc_flow(target="lake.employees", source="staff.employees", keys=["id"], sequence_by="sequenceNum")
>>> staff.run(until_caught_up=True)

A pipeline in code is a config: the same document, the same rules, and the same program that runs it.
"""

from replicator.settings import ConfigError

from .pipeline import (
    Pipeline,
    col,
    create_auto_cdc_flow,
    create_auto_cdc_from_snapshot_flow,
    create_streaming_table,
    create_target_table,
    expr,
    spark,
    struct,
    temporary_view,
)
from .program_run import RunFailed

__all__ = [
    "ConfigError",
    "Pipeline",
    "RunFailed",
    "col",
    "create_auto_cdc_flow",
    "create_auto_cdc_from_snapshot_flow",
    "create_streaming_table",
    "create_target_table",
    "expr",
    "spark",
    "struct",
    "temporary_view",
]
