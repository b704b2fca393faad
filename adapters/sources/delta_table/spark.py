"""The source for rows of a Delta table on Spark's executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.position import Span
from replicator.ports.frames import Batch

from ...spark.errors import translate_error
from ...spark.frames import cache_with_size, flat_map_frame, quote_name
from ...spark.session import split_options
from ...spark.types import spark_schema
from ..delta_reader import WindowSize
from .options import RowsOptions
from .source import RowWindow, TableRows
from .splits import RowSplit, read_records

TASK_ROWS = 65_536
TASKS_PER_CORE = 4


class SparkTableRows(TableRows[DataFrame]):
    """`TableRows` with `pyspark.sql.DataFrame` as frames.

    The driver reads the table's log, and footers of change data files. Executors open the files and build the records. So
    both need access to the folder; access options for object stores are sent to them. The bytes of a batch are known only
    after reading: `batch_bytes` limits the following batches.
    """

    def __init__(self, options: RowsOptions, path: str, spark: SparkSession) -> None:
        super().__init__(options, path)
        self._spark = spark
        self._nothing = spark.createDataFrame([], spark_schema(RAW))

    def load(self, window: RowWindow, pace: WindowSize) -> Batch[DataFrame]:  # noqa: ARG002
        """One job, whose records are cached in Spark's storage."""
        span = self.to_span(window)
        if not window.pieces:
            return self.empty_batch(span)
        try:
            frame, count, size = cache_with_size(
                self._read_records([piece for one in window.pieces for piece in one.split(TASK_ROWS)])
            )
        except (Py4JError, PySparkException) as error:
            window.refuse_missing(self._table.name)
            raise translate_error(error, f"reading the table {self._table.root}") from error
        return Batch(frame, span, count, size, self.identity())

    def empty_batch(self, span: Span) -> Batch[DataFrame]:
        """A batch without records."""
        return Batch(self._nothing, span, 0, 0, self.identity())

    def _read_records(self, pieces: Sequence[RowSplit]) -> DataFrame:
        """The records of the splits, in their order: each task reads consecutive splits."""
        tasks = min(len(pieces), TASKS_PER_CORE * self._spark.sparkContext.defaultParallelism)
        numbers = self._spark.range(0, len(pieces), 1, tasks)
        # Not one table per split: unpacked rows may need far more memory than the file.
        return flat_map_frame(numbers, lambda some: _read_splits([pieces[i] for i in some["id"].to_pylist()]), RAW)


class RowsSparkSource(SparkTableRows):
    """`SparkTableRows` of the table in the options; its options, and `spark`."""

    def __init__(self, options: Mapping[str, object]) -> None:
        own, spark = split_options(options)
        read = RowsOptions.read(own)
        super().__init__(read, read.path or find_folder(spark, read.table or ""), spark)


def _read_splits(pieces: Sequence[RowSplit]) -> Iterator[pa.Table]:
    return (some for piece in pieces for some in read_records(piece))


def find_folder(spark: SparkSession, table: str) -> str:
    """The folder of a catalog table `[catalog.]schema.table`. Raises EnvironmentProblem if it does not exist,
    ConfigProblem if it is not a Delta table or is in an object store."""
    name = ".".join(quote_name(part) for part in table.split("."))
    try:
        found = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]
    except AnalysisException as error:
        raise EnvironmentProblem(
            f"Spark's catalog has no table {table} that can be described: {error.getCondition()}",
            next_step="Start the pipeline that writes the table first, or correct 'table' of the source.",
        ) from error
    except (Py4JError, PySparkException) as error:
        raise translate_error(error, f"looking up the table {table}") from error
    url = urlsplit(found["location"])
    if found["format"] != "delta" or url.scheme not in ("", "file"):
        what = f"lies on {url.scheme}://" if found["format"] == "delta" else f"is kept as {found['format']}"
        raise ConfigProblem(
            f"The table {table} {what}, which this source does not read by its name.",
            next_step="Give the URL of a Delta table as 'path', and what reaches it as 'storage'.",
        )
    return unquote(url.path)
