"""Spark errors, and which of them are retryable."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException

from adapters.delta.errors import FileGone
from adapters.spark.errors import translate_errors
from replicator.domain.errors import DecoderDied, EnvironmentProblem, Fatal, Retryable

HIVE = "org.apache.hadoop.hive.ql.metadata.HiveException: "


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        # As a metastore at an address where nobody listens is told.
        (f"{HIVE}java.lang.RuntimeException: Unable to instantiate {HIVE[:35]}SessionHiveMetaStoreClient", Retryable),
        (f"{HIVE}org.apache.thrift.transport.TTransportException: java.net.SocketException: Broken pipe", Retryable),
        (f"{HIVE}MetaException(message:shop.db is not a directory or unable to create one)", Fatal),
    ],
)
def test_unreachable_metastore_is_retryable(said, kind):
    with pytest.raises(kind, match="naming a table"), translate_errors("naming a table"):
        raise AnalysisException(said)


@pytest.mark.parametrize("kind", [Retryable, EnvironmentProblem])
def test_own_errors_of_executors_keep_their_kind(kind):
    said = f"Job aborted.\n  File x, line 1\nreplicator.domain.errors.{kind.__name__}: the registry is away\n\tat java"
    with pytest.raises(kind, match=r"^the registry is away$"), translate_errors("routing a batch"):
        raise PythonException(said)


def test_crashed_worker_is_not_retryable():
    """Spark reports it with the broken connection as the cause, which alone would be retryable."""
    said = "SparkException: Python worker exited unexpectedly (crashed)\n\tat x\nCaused by: java.io.IOException: x"
    with (
        pytest.raises(DecoderDied, match="a Python worker of Spark ended while decoding"),
        translate_errors("decoding a batch"),
    ):
        raise PythonException(said)


@pytest.mark.parametrize(
    ("reason", "kind", "told"),
    [
        ("error=2, No such file or directory", EnvironmentProblem, "a machine of Spark cannot run /x/python3 while"),
        ("error=12, Cannot allocate memory", Retryable, "could not continue while"),
    ],
)
def test_missing_python_is_not_retryable(reason, kind, told):
    """As Spark reports an executor without the configured Python."""
    said = f'Lost task 0.1: java.io.IOException: Cannot run program "/x/python3": {reason}\nCaused by: java.io.IOException'
    with pytest.raises(kind, match=told), translate_errors("decoding a batch"):
        raise PythonException(said)


def test_missing_file_is_reported():
    """As Spark tells it of a file whose folder has a blank in its name. A lane looks whether its table has moved on."""
    said = (
        "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file file:/a%20lake/t/0.snappy.parquet. File "
        "does not exist. It is possible\n\tat x\nCaused by: java.io.FileNotFoundException: File file:/a lake/t/0 does not"
    )
    named = r"^a data file is gone while writing t: file:/a lake/t/0\.snappy\.parquet\. Restore it"
    with pytest.raises(FileGone, match=named), translate_errors("writing t"):
        raise PythonException(said)
