"""Translates Spark's errors into errors of this program. Temporary errors are listed by name; all others are
fatal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from replicator.domain.errors import ConfigProblem, DecoderDied, EnvironmentProblem, Fatal, ReplicatorError, Retryable

from ..delta.errors import RESTORE, FileGone
from ..object_store.options import KEYS

ASK = "Check `endpoint` and `region` under `storage` of the sink."
CAUSE = re.compile(r"^(?:Caused by: |: )?((?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b.*)$", re.MULTILINE)
PASSING = (
    "ExecutorLostFailure",
    "FetchFailed",
    "executor heartbeat timed out",
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "java.net.ConnectException",
    "java.net.SocketTimeoutException",
    "No space left on device",
    "java.io.IOException",
    "ConcurrentModificationException",
    "cancelled as part of cancellation of all jobs",
    "org.apache.hadoop.fs.s3a.AWSClientIOException",
    "software.amazon.awssdk.core.exception.SdkClientException",
    # A Hive metastore that does not answer the first request, or a later one.
    "Unable to instantiate org.apache.hadoop.hive.ql.metadata.SessionHiveMetaStoreClient",
    "org.apache.thrift.transport.TTransportException",
)
"""A lost executor or server, a full disk, or another writer that committed first."""
OF_STORES = (
    (("s3a.UnknownStoreException",), "the bucket of a sink does not exist", "Create it, or correct `path` of the sink."),
    (
        ("AccessDeniedException: s3a://", "s3a.auth.NoAuthWithAWSException", "s3a.auth.NoAwsCredentialsException"),
        "the object store of a sink refuses access",
        f"Check {KEYS}.",
    ),
    (("s3a.AWSRedirectException", "s3a.AWSBadRequestException"), "the object store of a sink cannot answer", ASK),
)
"""Errors of an object store that do not recover by themselves, by the exceptions of Hadoop's file system."""
OWN = re.compile(r"^(?:\S*\.)?(ConfigProblem|EnvironmentProblem|Retryable): (.+)$", re.MULTILINE)
"""An error of this program on an executor."""
OWN_KINDS: dict[str, type[ReplicatorError]] = {
    kind.__name__: kind for kind in (ConfigProblem, EnvironmentProblem, Retryable)
}
GONE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] .*?(\w+:/\S+)\. ")
"""A missing data file of a table version, by its location, with escaped characters."""
DIED = "Python worker exited unexpectedly"
NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)".*?: error=(?:2|13), ')
"""A program that does not exist or may not be run. Other reasons, such as memory, may pass."""
STOPPED = ("Cannot call methods on a stopped SparkContext", "SparkContext was shut down")


def translate_error(error: Exception, doing: str) -> ReplicatorError:  # noqa: PLR0911  (a case each)
    """The error to raise instead of `error`, which occurred while `doing`. It never contains a row's values."""
    text = str(error)
    if isinstance(error, Py4JNetworkError) or any(sign in text for sign in STOPPED):
        return EnvironmentProblem(
            f"the Spark driver's JVM ended while {doing}", next_step="Start again: the lanes resume at their positions."
        )
    if messages := OWN.findall(text):
        kind, message = messages[-1]
        return OWN_KINDS[kind](message)
    if DIED in text:
        return DecoderDied(
            f"a Python worker of Spark ended while {doing}",
            next_step="Start again. If it happens repeatedly, the record that causes it is rejected.",
        )
    if match := NO_PROGRAM.search(text):
        return EnvironmentProblem(
            f"a machine of Spark cannot run {match[1]} while {doing}",
            next_step="Install it on every machine of the cluster. `spark.pyspark.python` names the Python to run.",
        )
    # The class of the last cause in a Java stack trace, or the first line. Messages may quote data, so they are left out.
    causes = CAUSE.findall(text)
    first_line = text.strip().split("\n", 1)[0]
    cause = causes[-1].split(":", 1)[0].rsplit(".", 1)[-1] if causes else first_line.split(":", 1)[0]
    cause = cause[:200]
    if match := GONE.search(text):
        return FileGone(f"a data file is gone while {doing}: {unquote(match[1])}", next_step=RESTORE)
    for signs, sentence, step in OF_STORES:
        if any(sign in text for sign in signs):
            return EnvironmentProblem(f"{sentence} while {doing}: {cause}", next_step=step)
    if any(sign in text for sign in PASSING):
        return Retryable(f"Spark could not continue while {doing}: {cause}")
    return Fatal(f"Spark failed while {doing}: {cause}", next_step="The daemon's log with -v and the Spark UI say more.")


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Raises the result of `translate_error` for an error of Spark or of its JVM."""
    try:
        yield
    except ReplicatorError:
        raise
    except (Py4JJavaError, Py4JError, Py4JNetworkError, PySparkException, ConnectionError) as error:
        raise translate_error(error, doing) from error
