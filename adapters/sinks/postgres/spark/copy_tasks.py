"""Tasks of a Spark job copy a frame into a staging table of PostgreSQL, each one its own partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from replicator.domain.errors import EnvironmentProblem, Fatal, ReplicatorError, Retryable

from ....spark.types import arrow_schema, from_spark, spark_schema
from ..shared_staging import CopyResult, SharedCopy

REPORT = pa.schema(
    [
        pa.field("part", pa.int32()),
        pa.field("attempt", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("bound", pa.int64()),
        pa.field("truncates", pa.int64()),
        pa.field("rejects", pa.binary()),
        pa.field("failure", pa.string()),
        pa.field("sentence", pa.string()),
        pa.field("next_step", pa.string()),
    ]
)
"""The report of a task to the driver, one row: a `CopyResult` with its rejects as an Arrow stream, or its
failure."""

FAILURES = {kind.__name__: kind for kind in (Retryable, Fatal, EnvironmentProblem)}


def copy_in_tasks(frame: DataFrame, copy: SharedCopy) -> list[CopyResult]:
    """The results of the attempts that Spark counts as successful, one per partition of the frame that has rows."""
    schema = arrow_schema(frame.schema)

    def pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return report_copy(copy, (from_spark(pa.Table.from_batches([batch]), schema) for batch in batches))

    # The copying stage is the last of the job, so each of its tasks has exactly one attempt in the result.
    reports = frame.mapInArrow(pieces, spark_schema(REPORT)).toArrow().to_pylist()
    for row in reports:
        if row["failure"]:
            raise FAILURES[row["failure"]](row["sentence"], next_step=row["next_step"])
    return [_read_report(row) for row in reports]


def report_copy(copy: SharedCopy, pieces: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Runs in a task, and reports an error of the database as a result.

    If the task raised it, Spark would repeat the task for every error, and would show the driver's message,
    which may quote a row.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are copied in the tasks of a job only")
    part, attempt = context.partitionId(), context.taskAttemptId()
    try:
        copy_result = copy.run(pieces, part, attempt)
    except ReplicatorError as error:
        kind = next(name for name, kind in reversed(FAILURES.items()) if isinstance(error, kind))
        yield _to_report({"failure": kind, "sentence": error.sentence, "next_step": error.next_step})
        return
    if copy_result is not None:
        counts = {name: getattr(copy_result, name) for name in ("part", "attempt", "rows", "bound", "truncates")}
        yield _to_report({**counts, "rejects": _write_rejects(copy_result.rejects)})


def _to_report(row: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{**dict.fromkeys(REPORT.names), **row}], REPORT)


def _write_rejects(rejects: pa.Table | None) -> bytes | None:
    if rejects is None:
        return None
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rejects.schema) as stream:
        stream.write_table(rejects)
    return bytes(out.getvalue())


def _read_report(row: dict[str, object]) -> CopyResult:
    counts: dict[str, int] = {name: int(str(row[name])) for name in ("part", "attempt", "rows", "bound", "truncates")}
    rejects = row["rejects"]
    return CopyResult(**counts, rejects=None if rejects is None else pa.ipc.open_stream(rejects).read_all())
