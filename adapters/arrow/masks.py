"""Masked values (`domain.transform.columns.Mask`)."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from replicator.domain.erasures import to_key_texts
from replicator.domain.sequence import to_plain_type
from replicator.domain.transform.columns import Mask

from .decimals import cast_digits

TAG = 16
"""Hexadecimal digits of the HMAC that `truncate` appends."""
THOUSAND = 1000


def mask_values(values: pa.ChunkedArray, mask: Mask) -> pa.ChunkedArray:
    """The masked values, with the type that the mask defines. Equal values of all types have equal masks."""
    if mask.kind == "nothing":
        return pa.chunked_array([pa.nulls(len(values), values.type)])
    if mask.kind == "fixed":
        return pc.if_else(pc.is_valid(values), pa.scalar(mask.text), pa.scalar(None, pa.string()))
    kind = to_plain_type(values.type)
    values = values if kind == values.type else values.cast(kind)
    encoded = values.combine_chunks().dictionary_encode()
    # `forget` compares keys by the same texts, so that it finds masked keys.
    texts: list[str] = to_key_texts(pa.chunked_array([encoded.dictionary])).to_pylist()
    if (t.is_timestamp(kind) or t.is_time(kind)) and kind.unit == "ns":
        # The texts end with microseconds. With the remaining nanoseconds, different values stay different.
        for i, number in enumerate(encoded.dictionary.view(pa.int64()).to_pylist()):
            if rest := number % THOUSAND:
                texts[i] += f"{rest:03}" if "." in texts[i] else f".000000{rest:03}"
    masked = pa.array(map(make_text_mask(mask), texts), pa.string())
    return pa.chunked_array([masked.take(encoded.indices)])


@lru_cache(maxsize=64)
def make_text_mask(mask: Mask) -> Callable[[str], str]:
    """The function that masks one text, for masks that depend on the text."""
    keyed = hmac.new(mask.key, digestmod="sha256")

    def digest(text: str) -> str:
        digest_state = keyed.copy()
        digest_state.update(text.encode())
        return digest_state.hexdigest()

    def truncated(text: str) -> str:
        return f"{text[: mask.length]}-{digest(text)[:TAG]}"

    return digest if mask.kind == "hmac" else truncated


def to_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The texts of values (see `typed_expressions.has_text`): numbers as digits, ISO 8601 dates, bytes as hex."""
    kind = to_plain_type(values.type)
    if kind != values.type:
        values = values.cast(kind)
    if t.is_binary(kind) or t.is_large_binary(kind):
        return pa.chunked_array([pa.array([v and v.hex() for v in values.to_pylist()], pa.string())])
    return cast_digits(values, pa.string())
