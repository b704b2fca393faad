"""Rows of an event log to the original records."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR_HEADER, RAW
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.time_bounds import null_out_of_range

Header: TypeAlias = tuple[str, bytes | None]


class HeaderBytes(msgspec.Struct):
    """Bytes that are not UTF-8 text."""

    base64: str


_decoder = msgspec.json.Decoder(list[tuple[str, str | HeaderBytes | None]])


ROWS, BYTES = 50_000, 32 * 1024 * 1024


def merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about `ROWS` rows or `BYTES` bytes, from smaller batches."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(pa.record_batch(batch))
        if sum(b.num_rows for b in waiting) >= ROWS or sum(b.nbytes for b in waiting) >= BYTES:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def to_raw(rows: pa.Table) -> pa.Table:
    """A raw frame (`domain.change.RAW`) from the log's columns. A record with unreadable headers is rejected."""
    columns = {name: rows[name].cast(RAW.field(name).type) for name in ("topic", "partition", "offset", "key", "value")}
    columns["timestamp"] = _to_times(rows["timestamp"])
    columns["headers"] = _parse_headers(rows["headers"])
    return pa.table([columns[name] for name in RAW.names], schema=RAW)


def _to_times(stamps: pa.ChunkedArray) -> pa.ChunkedArray:
    chunks = [null_out_of_range(chunk) for chunk in stamps.cast(pa.timestamp("us", "UTC")).chunks]
    return pc.cast(pa.chunked_array(chunks, pa.timestamp("us", "UTC")), RAW.field("timestamp").type, safe=False)


def _parse_headers(texts: pa.ChunkedArray) -> pa.Array:
    """Parses each distinct list of headers once, as there are few."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), RAW.field("headers").type)
    distinct = texts.combine_chunks().dictionary_encode()
    read = pa.array([_parse_header_list(text) for text in distinct.dictionary.to_pylist()], RAW.field("headers").type)
    return read.take(distinct.indices)


def _parse_header_list(text: str) -> list[Header]:
    try:
        return [(name, _to_bytes(value)) for name, value in _decoder.decode(text)]
    except (msgspec.MsgspecError, binascii.Error, UnicodeEncodeError):
        reject = Reject(RejectCode.MALFORMED, "the headers of this record in the event log cannot be read")
        return [(ERROR_HEADER, str(reject).encode())]


def _to_bytes(value: str | HeaderBytes | None) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return None if value is None else b64decode(value.base64, validate=True)
