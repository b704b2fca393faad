"""The record header that lists masked columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from replicator.domain.change import ERROR_HEADER
from replicator.domain.errors import Reject

from ..json.headers import find_entries, strip_values

HEADER = "replicator.masked"
Header: TypeAlias = dict[str, Any]
"""`name`, and `value` in bytes."""


class MaskHeader(msgspec.Struct, frozen=True, gc=False):
    """The masked `columns` of a record of `table`."""

    table: str
    columns: tuple[str, ...]


_mark = msgspec.json.Decoder(MaskHeader).decode


def read_mask_headers(headers: pa.Array) -> Mapping[int, MaskHeader]:
    """The headers by index of their record. Headers with other content are skipped."""
    found: dict[int, MaskHeader] = {}
    for place, _, value in find_entries(headers, HEADER):
        try:
            found[place] = _mark(value)
        except (msgspec.MsgspecError, UnicodeError):
            continue
    return found


def add_mask_header(headers: Sequence[Header] | None, mark: MaskHeader, error: Reject | None, *known: str) -> list[Header]:
    """The headers of a masked record. `error`: why the record is invalid, which masked values no longer show. `known`:
    name prefixes of other headers without private values."""
    others = [one for one in strip_values(headers, *known) or () if one["name"] != HEADER]
    wrong = [] if error is None else [{"name": ERROR_HEADER, "value": str(error).encode()}]
    return [*others, {"name": HEADER, "value": msgspec.json.encode(mark)}, *wrong]
