"""Errors of object stores as errors of the program: a table."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from adapters.delta.errors import FileGone, is_damage, translate_error, translate_errors
from adapters.object_store.options import translate_store_error
from replicator.domain.errors import EnvironmentProblem, Fatal, Retryable

ASKED = "Generic S3 error: Error performing GET https://s3.x/bucket?list-type=2 in 4ms, after 3 retries - "
REFUSED = "Server returned non-2xx status code: {}: <Error><Code>{}</Code><Key>AKIDSECRET</Key></Error>"

TABLE = [
    (REFUSED.format("404 Not Found", "NoSuchBucket"), EnvironmentProblem, "the bucket of the lake does not exist"),
    (REFUSED.format("404 Not Found", "NoSuchKey"), EnvironmentProblem, "a file of the lake is not in the object store"),
    (REFUSED.format("403 Forbidden", "AccessDenied"), EnvironmentProblem, "refuses access to the lake (AccessDenied)"),
    (REFUSED.format("403 Forbidden", "SignatureDoesNotMatch"), EnvironmentProblem, "(SignatureDoesNotMatch)"),
    ("Server returned non-2xx status code: 403 Forbidden: ", EnvironmentProblem, "refuses access to the lake (403)"),
    (REFUSED.format("301 Moved Permanently", "PermanentRedirect"), EnvironmentProblem, "cannot answer for the lake"),
    (REFUSED.format("400 Bad Request", "AuthorizationHeaderMalformed"), EnvironmentProblem, "cannot answer for the lake"),
    (REFUSED.format("503 Slow Down", "SlowDown"), Retryable, "does not answer as it should (SlowDown)"),
    (REFUSED.format("429 Too Many Requests", "TooManyRequests"), Retryable, "(TooManyRequests)"),
    (REFUSED.format("500 Internal Server Error", "InternalError"), Retryable, "(InternalError)"),
    (
        "HTTP error: error sending request: tcp connect error (os error 111)",
        Retryable,
        "cannot be reached",
    ),
    ("HTTP error: error sending request: dns error", Retryable, "cannot be reached"),
    ("HTTP error: operation timed out", Retryable, "cannot be reached"),
    ("HTTP error: builder error", EnvironmentProblem, "the endpoint of the lake cannot be used"),
    ("HTTP error: error sending request (http://169.254.169.254/latest)", EnvironmentProblem, "there are no credentials"),
]


@pytest.mark.parametrize(("text", "kind", "said"), TABLE)
def test_error_of_a_store_is_translated(text, kind, said):
    found = translate_store_error(ASKED + text, "the lake")
    assert type(found) is kind and said in found.sentence
    assert "AKIDSECRET" not in str(found)
    assert bool(found.next_step) == (kind is EnvironmentProblem)
    assert type(translate_error(OSError(ASKED + text), "t")) is kind
    assert not is_damage(DeltaError(ASKED + text))


def test_other_errors_are_not_translated():
    assert translate_store_error("Not a directory (os error 20)", "the lake") is None
    assert type(translate_error(DeltaError("no such thing"), "t")) is Fatal


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_missing_file_descriptors_are_not_reported_as_a_full_disk(number: int) -> None:
    error = translate_error(OSError(number, "Too many open files"), "t")
    assert isinstance(error, Retryable)
    assert "file descriptor" in error.sentence and "disk" not in str(error) and "ulimit -n" in error.next_step


def test_errors_of_reads_are_translated_and_other_errors_of_arrow_are_not() -> None:
    read = "C Data interface error: External error: Parquet error: Object Store error: Generic LocalFileSystem error: {}"
    with pytest.raises(Retryable, match="file descriptor"), translate_errors("t"):
        raise pa.ArrowInvalid(read.format("Unable to open file part-0.parquet: Too many open files (os error 24)"))
    with pytest.raises(FileGone, match="part-0"), translate_errors("t"):
        raise pa.ArrowInvalid(read.format("Object at location part-0.parquet not found: No such file (os error 2)"))
    with pytest.raises(pa.ArrowInvalid, match="Integer value"), translate_errors("t"):
        raise pa.ArrowInvalid("Integer value out of bounds")
