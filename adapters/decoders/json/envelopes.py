"""Envelope columns of the event log, built from groups of records with one schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from replicator.ports.decoder import ENVELOPE

from ...arrow.frame_slices import Part, map_slices, merge_parts
from .schema_frames import SchemaGroup, find_frames

ReadGroup = Callable[[pa.RecordBatch, SchemaGroup], Part]
"""Reads the envelopes of the records in one group of a slice."""


def build_envelopes(raw: pa.Table, depth: int, group: ReadGroup) -> pa.Table:
    """See `ports.decoder.Decoder.envelope`. For records without a group all columns are null, except `error` if there is
    one. Nesting deeper than `depth` is an error."""
    return map_slices(raw, ENVELOPE, lambda piece: _build_slice(piece, depth, group))


def _build_slice(raw: pa.RecordBatch, depth: int, group: ReadGroup) -> pa.Table:
    values = raw.column("value")
    found = find_frames(values, depth)
    parts = [group(raw, one) for one in found.groups]
    nulls: list[int] = pc.indices_nonzero(pc.is_null(values)).to_pylist()
    reasons = [None] * len(nulls) + [str(error) for error in found.errors.values()]
    if reasons:
        parts.append(([*nulls, *found.errors], build_envelope(len(reasons), {"error": pa.array(reasons, pa.string())})))
    return merge_parts(parts, ENVELOPE)


def build_envelope(count: int, known: Mapping[str, pa.Array]) -> pa.Table:
    """`count` envelopes with the columns `known`; all others are null."""
    columns = [known[f.name] if f.name in known else pa.nulls(count, f.type) for f in ENVELOPE]
    return pa.Table.from_arrays(columns, schema=ENVELOPE)
