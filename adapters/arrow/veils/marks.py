"""The header by which a record says that columns of it are masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Reject

from ..json.headers import entries, without_values

HEADER = "replicator.masked"
Header: TypeAlias = dict[str, Any]
"""`name`, and `value` in bytes."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The `columns` of a record of `table` that are masked."""

    table: str
    columns: tuple[str, ...]


_mark = msgspec.json.Decoder(Mark).decode


def marks(headers: pa.Array) -> Mapping[int, Mark]:
    """What records say, by their places. A header that says something else says nothing."""
    found: dict[int, Mark] = {}
    for place, _, value in entries(headers, HEADER):
        try:
            found[place] = _mark(value)
        except (msgspec.MsgspecError, UnicodeError):
            continue
    return found


def marked(headers: Sequence[Header] | None, mark: Mark, error: Reject | None, *known: str) -> list[Header]:
    """The headers of a record that is masked. `error`: why it is no change, which its values no longer show. `known`: what
    the names of others begin with that hold nothing private."""
    others = [one for one in without_values(headers, *known) or () if one["name"] != HEADER]
    wrong = [] if error is None else [{"name": ERROR_HEADER, "value": str(error).encode()}]
    return [*others, {"name": HEADER, "value": msgspec.json.encode(mark)}, *wrong]
