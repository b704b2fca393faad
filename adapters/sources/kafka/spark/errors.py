"""Errors of a query over Kafka as the program's own errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from replicator.domain.errors import DataLoss, Fatal, ReplicatorError
from replicator.domain.remedies import describe_reload_or_skip

from ....kafka.errors import SKIP
from ....spark.errors import translate_error as of_spark

TOO_FAR = "a record has a time more than 292,271 years from 1970, and Spark's Kafka reader cannot read such a time"
STEP = f"Run this source with `engine: local`, or leave the record out with {SKIP} the record."
LOST = ("KAFKA_DATA_LOSS", "failOnDataLoss", "OffsetOutOfRange")


def translate_error(error: Exception) -> ReplicatorError:
    """The program's error for `error`."""
    text = str(error)
    if any(sign in text for sign in LOST):
        return DataLoss("The next records to read are gone from the broker.", next_step=describe_reload_or_skip())
    if "long overflow" in text:
        return Fatal(TOO_FAR, next_step=STEP)
    return of_spark(error, "reading from Kafka")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate Spark's errors with `translate_error`."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise translate_error(error) from error
