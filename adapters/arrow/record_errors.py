"""Errors and limits of single records, on the way to a `domain.errors.Reject`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.patterns import find_best

Build = Callable[[Sequence[Any]], pa.Array]
"""Builds an array from the decoded values of a column (None for null). Raises one of FAILURES for an invalid value."""

FAILURES = (pa.ArrowException, msgspec.MsgspecError, ValueError, TypeError, OverflowError, AttributeError, RecursionError)
"""Errors that building an array from hostile values may raise."""

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError)
"""Errors that decoding hostile bytes as JSON may raise."""


class DecodedValues(NamedTuple):
    """The decoded value of each text, and the errors by index."""

    values: list[Any]
    errors: dict[int, Reject]


class ValueMisfit(ValueError):
    """A record or value that cannot be represented. Never contains the value."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reject = Reject(code, sentence)


def malformed_reject(sentence: str) -> Reject:
    """The reject of bytes that do not match their format."""
    return Reject(RejectCode.MALFORMED, sentence)


def null_key_reject(column: str, table: str, names: Collection[str] = ()) -> Reject:
    """The reject of a record with a null or missing key column. `names`: the columns of a record that lacks it."""
    alike = next((name for name in names if _printable_name(name) == _printable_name(column)), None)
    problem = "null or missing" if alike is None else f"missing, and the record has {alike!r} instead"
    return Reject(RejectCode.NULL_KEY, f"key column {column!r} of table {table} is {problem}")


def _printable_name(name: str) -> str:
    return name.strip().casefold()


def unreadable_reject(error: Exception) -> Reject:
    """The reject of undecodable bytes. Decoders' own texts contain JSON types and paths, and bytes only by position."""
    if isinstance(error, ValueMisfit):
        return error.reject
    if isinstance(error, RecursionError):
        return Reject(RejectCode.TOO_LARGE, "the record is nested too deeply")
    if isinstance(error, UnicodeError):
        return malformed_reject("the record holds bytes that are not UTF-8")
    if isinstance(error, msgspec.ValidationError):
        return malformed_reject(f"a value has another type than its schema says: {error}")
    return malformed_reject("the record is not JSON")


def build_or_reject(build: Build, values: list[Any], subject: str) -> tuple[pa.Array, dict[int, Reject]]:
    """The array of `values`, with null for invalid values, and their errors by index."""
    try:
        return build(values), {}
    except FAILURES:
        bad = _find_misfits(build, values, 0, subject)
    mended = list(values)
    for index in bad:
        mended[index] = None
    try:
        return build(mended), bad
    except FAILURES:
        # Each value is valid alone, but not all together: the form of one value may decide how the others are
        # read.
        return pa.concat_arrays([build([value]) for value in mended]), bad


def _find_misfits(build: Build, values: Sequence[Any], start: int, subject: str) -> dict[int, Reject]:
    """Build halves until each failing value is alone. Few values fail, so this stays near linear."""
    try:
        build(values)
    except FAILURES as error:
        if len(values) == 1:
            return {start: _misfit_reason(error, subject)}
    else:
        return {}
    half = len(values) // 2
    bad = _find_misfits(build, values[:half], start, subject)
    return bad | _find_misfits(build, values[half:], start + half, subject)


def _misfit_reason(error: Exception, subject: str) -> Reject:
    if isinstance(error, ValueMisfit):
        return Reject(error.reject.code, f"{subject} {error.reject.sentence}")
    if isinstance(error, UnicodeError):
        return malformed_reject(f"{subject} holds text that is not Unicode")
    if isinstance(error, msgspec.MsgspecError):
        return malformed_reject(f"{subject} holds a value of another type than its schema says")
    return Reject(RejectCode.OUT_OF_RANGE, f"{subject} holds a value that its type cannot hold")


def decode_or_reject(decode: Callable[[Any], Any], texts: Sequence[Any], blank: Any) -> DecodedValues:
    """Every decoded text, or `blank` for an undecodable one, and the errors by index."""
    try:
        return DecodedValues([decode(text) for text in texts], {})
    except UNREADABLE:
        decoded, errors = [], {}
    for index, text in enumerate(texts):
        try:
            decoded.append(decode(text))
        except UNREADABLE as error:
            decoded.append(blank)
            errors[index] = unreadable_reject(error)
    return DecodedValues(decoded, errors)


# Limits of records, and options by table, of all decoders.


T = TypeVar("T")


class RecordLimits(BaseModel):
    """Limits of one record; a larger record is rejected as TOO_LARGE. Limits of other components are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    message_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    depth: int = Field(default=64, ge=2, le=500)
    columns: int = Field(default=4096, ge=1)


def find_table_entry(by_table: Mapping[str, T], table: str) -> T | None:
    """The entry that applies to the table (`domain.patterns.find_best`)."""
    pattern = find_best(by_table, table)
    return None if pattern is None else by_table[pattern]


def reject_too_long(values: pa.Array, limits: RecordLimits) -> tuple[pa.Array, dict[int, Reject]]:
    """`values` with null for those that are longer than allowed, and their rejects by index."""
    limit = limits.message_bytes
    large = pc.fill_null(pc.greater(pc.binary_length(values), limit), False)
    if not pc.any(large).as_py():
        return values, {}
    reject = Reject(RejectCode.TOO_LARGE, f"the record is longer than the {limit} bytes allowed (limits.message_bytes)")
    return pc.if_else(large, None, values), dict.fromkeys(pc.indices_nonzero(large).to_pylist(), reject)
