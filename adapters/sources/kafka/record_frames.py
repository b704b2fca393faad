"""Messages of librdkafka to raw record batches, without Python objects per field that outlive their chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from replicator.domain.change import RAW
from replicator.domain.time_bounds import null_out_of_range

HeaderList: TypeAlias = tuple[tuple[str, bytes | None], ...] | None
# The stubs allow for errors, which lack these fields; used only for other messages.
topic_of = cast("Callable[[Message], str]", Message.topic)
partition_of = cast("Callable[[Message], int]", Message.partition)
offset_of = cast("Callable[[Message], int]", Message.offset)
_headers_of = cast("Callable[[Message], list[tuple[str, bytes | None]] | None]", Message.headers)
HEADERS = RAW.field("headers").type


def record_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """`messages`, without errors, as one batch of `domain.change.RAW` in the same order."""
    return pa.record_batch(
        [
            pa.array(list(map(topic_of, messages)), pa.string()),
            pa.array(list(map(partition_of, messages)), pa.int32()),
            pa.array(list(map(offset_of, messages)), pa.int64()),
            _build_timestamps(messages),
            _build_headers(messages),
            pa.array(list(map(Message.key, messages)), pa.binary()),
            pa.array(list(map(Message.value, messages)), pa.binary()),
        ],
        schema=RAW,
    )


def _build_timestamps(messages: Sequence[Message]) -> pa.Array:
    pairs = map(Message.timestamp, messages)
    known = [None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in pairs]
    return null_out_of_range(pa.array(known, RAW.field("timestamp").type))


def _build_headers(messages: Sequence[Message]) -> pa.Array:
    """A connector sends the same few lists of headers with all messages: each is built once and repeated."""
    distinct: dict[HeaderList, int] = {}
    codes: list[int] = []
    last: list[tuple[str, bytes | None]] | None = None
    code = -1
    for headers in map(_headers_of, messages):
        if code < 0 or headers != last:  # comparing with the previous one is cheaper than hashing all texts
            code = distinct.setdefault(headers if headers is None else tuple(headers), len(distinct))
            last = headers
        codes.append(code)
    if len(distinct) == 1 and None in distinct:
        return pa.nulls(len(messages), HEADERS)
    return _build_lists(list(distinct)).take(pa.array(codes, pa.int32()))


def _build_lists(lists: Sequence[HeaderList]) -> pa.Array:
    pairs = [pair for headers in lists for pair in headers or ()]
    offsets: list[int | None] = []
    end = 0
    for headers in lists:
        # A null offset makes the list at that index null.
        offsets.append(None if headers is None else end)
        end += len(headers or ())
    names, values = pa.array([n for n, _ in pairs], pa.string()), pa.array([v for _, v in pairs], pa.binary())
    flat = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array([*offsets, end], pa.int32()), flat, type=HEADERS)
