"""Splitting of records into schema and payload. Consecutive records share the bytes of their schema. And the format that a
record looks like: JSON by its field names, other bytes by their beginning."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject, RejectCode
from replicator.ports.decoder import ENVELOPE

from ...arrow.frame_slices import Part, list_true_indices, map_slices, merge_parts, read_bytes
from ...arrow.record_errors import UNREADABLE, DecodedValues, ValueMisfit, decode_or_reject, unreadable_reject

OPENING = b'{"schema":'
MARK = b',"payload":'
CLOSING = b"}"
MAX_MARKS = 16
MAX_PREFIXES = 24
"""Different schemas per frame that are found by their bytes. Records with further schemas are parsed one by one."""
MAX_STRAYS = 12
"""Records without a prefix after which all others are parsed one by one."""

TOGETHER = 8
"""Texts whose brackets are counted at once."""
ALIKE = bytes.maketrans(b"[]", b"{}")
NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


class _Record(msgspec.Struct, gc=False):
    """A record with keys in any order, with or without a schema."""

    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_document = msgspec.json.Decoder(_Record).decode


@dataclass
class SchemaGroup:
    """Records of one frame whose schema has the same bytes. `schema` is None for records without a schema.

    `rows` are their indices in the frame, or None for all of it. `payloads` returns the JSON text of each payload.
    """

    schema: bytes | None
    rows: list[int] | None
    payloads: Callable[[], list[bytes]]
    payload_slices: pa.Array | None = None
    """The payloads as an Arrow array, if they were found by their prefix."""


@dataclass
class SchemaFrames:
    """The groups of a frame, and the errors of records without a group, by index."""

    groups: list[SchemaGroup] = field(default_factory=list)
    errors: dict[int, Reject] = field(default_factory=dict)


class CachedFrames:
    """`find_frames` with a cache: values are split when records are routed, and used again when they are decoded."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._found: dict[tuple[int, ...], tuple[pa.Array, SchemaFrames]] = {}

    def clear(self) -> None:
        """Empty the cache before other records are routed."""
        self._found = {}

    def find(self, values: pa.Array) -> SchemaFrames:
        """Split values. A result with a single schema is cached until `find_again` or `clear`."""
        frames = find_frames(values, self._depth)
        if len(frames.groups) == 1 and frames.groups[0].rows is None and frames.groups[0].payload_slices is not None:
            self._found[_buffer_addresses(values)] = values, frames
        return frames

    def find_again(self, values: pa.Array) -> SchemaFrames:
        """The cached result for values in the same memory. The cache keeps a reference, so the memory is not reused."""
        cached = self._found.pop(_buffer_addresses(values), None)
        return find_frames(values, self._depth) if cached is None else cached[1]


def _buffer_addresses(values: pa.Array) -> tuple[int, ...]:
    return (len(values), values.offset, *(0 if b is None else b.address for b in values.buffers()))


def find_frames(values: pa.Array, depth: int) -> SchemaFrames:
    """Split `values` (binary) by schema. Null values have no group and no error.

    Fast if records share the bytes of their schema: two Arrow passes. All other records are parsed one by one.
    """
    out = SchemaFrames()
    prefix = find_prefix(values[0].as_py(), depth) if len(values) and not values.null_count else None
    if prefix is not None and pc.all(_mask_matching(values, prefix)).as_py():
        sliced = pc.binary_slice(values, len(prefix), -1)
        return SchemaFrames([SchemaGroup(extract_schema(prefix), None, sliced.to_pylist, sliced)])
    is_open = pc.is_valid(values)
    slow: list[int] = []
    while len(out.groups) < MAX_PREFIXES and len(slow) < MAX_STRAYS:
        index = pc.index(is_open, True).as_py()
        if index < 0:
            break
        text = values[index].as_py()
        prefix = find_prefix(text, depth) if text.endswith(CLOSING) else None
        if prefix is None:
            slow.append(index)
            is_open = pa.concat_arrays([is_open.slice(0, index), pa.array([False]), is_open.slice(index + 1)])
            continue
        is_member = pc.and_(is_open, _mask_matching(values, prefix))
        sliced = pc.binary_slice(values.filter(is_member), len(prefix), -1)
        out.groups.append(SchemaGroup(extract_schema(prefix), list_true_indices(is_member), sliced.to_pylist, sliced))
        is_open = pc.and_(is_open, pc.invert(is_member))
    parts, out.errors = split_each(values, sorted([*slow, *list_true_indices(is_open)]), depth)
    by_schema: dict[bytes | None, tuple[list[int], list[bytes]]] = {}
    for index, (schema, payload) in parts.items():
        rows, payloads = by_schema.setdefault(schema, ([], []))
        rows.append(index)
        payloads.append(payload)
    for schema, (rows, payloads) in by_schema.items():
        out.groups.append(SchemaGroup(schema, rows, payloads.copy))
    return out


def _mask_matching(values: pa.Array, prefix: bytes) -> pa.Array:
    matching = pc.and_(pc.starts_with(values, pattern=prefix), pc.ends_with(values, pattern=CLOSING))
    return pc.fill_null(matching, False)


def split_each(
    values: pa.Array, indices: Sequence[int], depth: int
) -> tuple[dict[int, tuple[bytes | None, bytes]], dict[int, Reject]]:
    """Schema and payload of the records at `indices`, and the errors of unreadable ones, by index."""
    parts, errors = {}, {}
    for index in indices:
        text = values[index].as_py()
        try:
            parts[index] = split_record(text, depth)
        except UNREADABLE as error:
            errors[index] = hint_by_beginning(unreadable_reject(error), text)
    return parts, errors


def decode_group(
    decode: Callable[[bytes], Any], values: pa.Array, group: SchemaGroup, blank: Any, depth: int
) -> tuple[list[bytes], DecodedValues]:
    """The payloads of a group of `values`, and the decoded payloads, `blank` for undecodable ones.

    A payload that is not readable behind the common prefix is parsed again with its record. The result for a record must
    not depend on its neighbours.
    """
    payloads = group.payloads()
    decoded = decode_or_reject(decode, payloads, blank)
    if decoded.errors and group.payload_slices is not None:
        of_place = {i if group.rows is None else group.rows[i]: i for i in decoded.errors}
        parts, _ = split_each(values, list(of_place), depth)
        again = decode_or_reject(decode, [payload for _, payload in parts.values()], blank)
        for number, (place, (_, payload)) in enumerate(parts.items()):
            i = of_place[place]
            payloads[i], decoded.values[i] = payload, again.values[number]
            if number in again.errors:
                decoded.errors[i] = again.errors[number]
            else:
                del decoded.errors[i]
    return payloads, decoded


def split_record(text: bytes, depth: int) -> tuple[bytes | None, bytes]:
    """Schema (or None) and payload of one record of any layout. Raises one of UNREADABLE.

    The depth of a payload with a schema is not checked here. If the record is found by its prefix, the check is also
    missing, and the records around it decide which of the two happens. For the same reason a payload behind a schema from
    Connect does not have to be valid JSON.
    """
    try:
        document = _document(text)
    except msgspec.ValidationError:
        raise ValueMisfit(RejectCode.MALFORMED, "it is JSON, but no object") from None
    except msgspec.DecodeError:
        prefix = find_prefix(text, depth) if text.endswith(CLOSING) else None
        if prefix is None:
            raise
        return extract_schema(prefix), text[len(prefix) : -len(CLOSING)]
    schema = b"" if isinstance(document.schema, msgspec.UnsetType) else bytes(document.schema)
    # A row or an event may have columns of these names. A schema is an object.
    if isinstance(document.payload, msgspec.UnsetType) or not schema.startswith((b"{", b"null")):
        refuse_depth(text, depth)
        return None, text
    refuse_depth(text if schema == b"null" else schema, depth)
    return None if schema == b"null" else schema, bytes(document.payload)


def refuse_depth(text: bytes, depth: int) -> None:
    """Raise ValueMisfit if `text` nests deeper than `depth`, without recursive parsing."""
    if is_deep(text, depth):
        raise ValueMisfit(RejectCode.TOO_LARGE, f"it is nested deeper than the {depth} levels allowed")


def is_deep(text: bytes, depth: int) -> bool:
    """True if `text` nests deeper than `depth`."""
    if _count_brackets(text) <= depth or _is_closed_within(text, depth):
        return False
    level = 0
    for token in STRUCTURE.finditer(text):
        mark = token[0]
        if mark in (b"{", b"["):
            level += 1
            if level > depth:
                return True
        elif mark in (b"}", b"]"):
            level -= 1
    return False


def _count_brackets(text: bytes) -> int:
    """The number of opening brackets; `replace` is faster than counting."""
    return 2 * len(text) - len(text.replace(b"{", b"")) - len(text.replace(b"[", b""))


def _is_closed_within(text: bytes, depth: int) -> bool:
    """A fast check: True if `text` certainly does not nest deeper. Only brackets are kept, and innermost pairs are
    removed `depth` times."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    parts = text.split(b'"')
    brackets = b"".join(parts[::2]).translate(ALIKE, NO_BRACKETS) if len(parts) % 2 else b"{"
    for _ in range(depth):
        if not brackets:
            return True
        brackets = brackets.replace(b"{}", b"")
    return not brackets


def is_shallow(values: pa.Array, depth: int) -> bool:
    """A fast check: True if certainly none of these texts nests deeper, as several texts together have few brackets. No
    text may be null."""
    text, ends = read_bytes(values), pc.cumulative_sum(pc.binary_length(values).cast(pa.int64())).to_pylist()
    bounds = [0, *ends[TOGETHER - 1 : -1 : TOGETHER], len(text)]
    return all(_count_brackets(text[start:end]) <= depth for start, end in pairwise(bounds))


def find_prefix(text: bytes, depth: int) -> bytes | None:
    """The bytes before the payload, if the record begins with its schema as Connect's JsonConverter writes it. None
    otherwise, or if the schema is nested too deeply."""
    if not text.startswith(OPENING):
        return None
    end = -1
    for _ in range(MAX_MARKS):
        end = text.find(MARK, end + 1)
        if end < 0:
            return None
        schema = text[len(OPENING) : end]
        if not schema.startswith(b"{"):
            continue
        try:
            msgspec.json.decode(schema, type=msgspec.Raw)
        except UNREADABLE:
            continue
        if not is_deep(schema, depth):
            return text[: end + len(MARK)]
    return None


def extract_schema(prefix: bytes) -> bytes:
    """The schema's JSON text from a prefix of `find_prefix`."""
    return prefix[len(OPENING) : -len(MARK)]


# The format that a record looks like, for hints in errors and for discovery.


SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("debezium_json", frozenset({"op", "source"})),
    ("debezium_json", frozenset({"schema", "payload"})),
    ("ogg_json", frozenset({"op_type", "pos"})),
    ("canal_json", frozenset({"database", "type", "isDdl"})),
    ("canal_json", frozenset({"database", "type", "mysqlType"})),
    ("maxwell_json", frozenset({"database", "type", "data"})),
)
"""The first format counts that has all its fields, so put the specific ones first."""
BEGINNINGS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    # A zero byte and a schema id in four bytes; registries count ids up from 1. DTS also begins with a zero,
    # its version, followed by the record number.
    ("debezium_avro", re.compile(rb"\0\0.{3}", re.DOTALL)),
    ("dts_avro", re.compile(rb"\0.{20}", re.DOTALL)),
    ("dms_csv", re.compile(rb"[IUD],")),
)
"""The first match counts, as in `SIGNS`."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def guess_format(names: Collection[str]) -> str | None:
    """The configuration name of the format that has fields with these names."""
    fields = set(names)
    return next((name for name, signs in SIGNS if signs <= fields), None)


def detect_format(data: bytes) -> str | None:
    """The configuration name of the format that a record's value looks like."""
    try:
        return guess_format(_fields(data).keys())
    except UNREADABLE:
        return _match_beginning(data)


def hint_by_names(reject: Reject, data: bytes, name: str) -> Reject:
    """The reject with a hint if the record looks like another format than `name`."""
    return _add_hint(reject, detect_format(data), name)


def hint_by_beginning(reject: Reject, data: bytes, name: str = "") -> Reject:
    """`hint_by_names` for bytes that are not JSON."""
    return _add_hint(reject, _match_beginning(data), name)


def _match_beginning(data: bytes) -> str | None:
    return next((name for name, begins in BEGINNINGS if begins.match(data)), None)


def _add_hint(reject: Reject, other: str | None, name: str) -> Reject:
    return reject if other in (None, name) else Reject(reject.code, f"{reject.sentence}; it looks like `format: {other}`")


# Envelope columns of the event log, built from groups of records with one schema.


ReadGroup = Callable[[pa.RecordBatch, SchemaGroup], Part]
"""Reads the envelopes of the records in one group of a slice."""


def build_envelopes(raw: pa.Table, depth: int, read_group: ReadGroup) -> pa.Table:
    """See `ports.decoder.Decoder.envelope`. For records without a group all columns are null, except `error` if there is
    one. Nesting deeper than `depth` is an error."""

    def build_slice(piece: pa.RecordBatch) -> pa.Table:
        values = piece.column("value")
        frames = find_frames(values, depth)
        parts = [read_group(piece, group) for group in frames.groups]
        nulls: list[int] = pc.indices_nonzero(pc.is_null(values)).to_pylist()
        reasons = [None] * len(nulls) + [str(error) for error in frames.errors.values()]
        if reasons:
            parts.append(([*nulls, *frames.errors], build_envelope(len(reasons), {"error": pa.array(reasons, pa.string())})))
        return merge_parts(parts, ENVELOPE)

    return map_slices(raw, ENVELOPE, build_slice)


def build_envelope(count: int, by_name: Mapping[str, pa.Array]) -> pa.Table:
    """`count` envelopes with the columns `by_name`; all others are null."""
    columns = [by_name[f.name] if f.name in by_name else pa.nulls(count, f.type) for f in ENVELOPE]
    return pa.Table.from_arrays(columns, schema=ENVELOPE)
