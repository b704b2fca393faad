"""Routing of records to tables. Records are grouped by schema bytes; the source block names the table, and the key's
schema its key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ...arrow.frame_slices import split_frame
from ...arrow.record_errors import malformed_reject
from ...arrow.record_limits import reject_too_long
from ..json.headers import find_read_errors
from ..json.schema_frames import CachedFrames, SchemaGroup, split_all
from .keys import KeySchemas
from .options import DebeziumOptions
from .origin import (
    MESSAGE,
    RouteProbe,
    TableOrigin,
    find_kind_without_schema,
    make_block_pattern,
    probe_payloads,
    to_table_name,
)
from .route_results import NOTHING, Outcome, RouteResults, ValueKind, get_kind
from .schema import KeySchema, MessageSchema, read_message_schema

MAX_SCHEMAS = 4096
BARE = "bare"
NO_TABLE = malformed_reject("its source block names no table")


class DebeziumRouter:
    """Routes frames and caches schemas. `once` is shared with the decoder of the same frames."""

    def __init__(self, options: DebeziumOptions, once: CachedFrames | None = None) -> None:
        self._options = options
        self._once = once or CachedFrames(options.limits.depth)
        self._keys = KeySchemas(options.limits.depth)
        self._schemas: dict[bytes, MessageSchema] = {}
        self._outcomes = RouteResults(options)

    def route(self, raw: pa.Table) -> pa.Table:
        self._once.clear()
        done = [self._route_slice(piece) for piece in split_frame(raw)]
        return pa.concat_tables([ROUTE.empty_table(), *done]).combine_chunks()

    def read_schema(self, raw: bytes) -> MessageSchema:
        """The message schema of this JSON text."""
        if raw not in self._schemas:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[raw] = read_message_schema(raw, self._options.limits)
        return self._schemas[raw]

    def last_key(self, table: str, fingerprint: str) -> KeySchema:
        """The last key of records with that fingerprint; without names if there was none."""
        return self._outcomes.last_key(table, fingerprint)

    def read_key(self, text: bytes) -> KeySchema:
        """The key schema of this JSON text of a message key."""
        return self._keys.read_one(text)

    def _route_slice(self, raw: pa.RecordBatch) -> pa.Table:
        kinds, keys, topics = self._find_kinds(raw), self._keys.read_all(raw.column("key")), raw.column("topic")
        pairs = list(zip(kinds, keys, strict=True))
        distinct = {pair: code for code, pair in enumerate(dict.fromkeys(pairs))}
        self._outcomes.note_keys(distinct)
        if self._options.any_tombstone_deletes:
            return _to_table(
                [self._outcomes.route_record(*row) for row in zip(kinds, keys, topics.to_pylist(), strict=True)]
            )
        few = _to_table([self._outcomes.route_record(*pair, "") for pair in distinct])
        codes = [0] * len(pairs) if len(distinct) == 1 else list(map(distinct.__getitem__, pairs))
        return few.take(pa.array(codes, pa.int64()))

    def _find_kinds(self, raw: pa.RecordBatch) -> list[ValueKind]:
        values, topics = raw.column("value"), raw.column("topic")
        values, large = reject_too_long(values, self._options.limits)
        kinds = [NOTHING] * len(values)
        found = self._once.find(values)
        for group in found.groups:
            rows = range(len(values)) if group.rows is None else group.rows
            for place, kind in zip(rows, self._route_group(group, rows, values, topics), strict=True):
                kinds[place] = kind
        for place, error in (found.errors | large | find_read_errors(raw.column("headers"))).items():
            kinds[place] = get_kind(error=error)
        return kinds

    def _route_group(self, group: SchemaGroup, rows: Sequence[int], values: pa.Array, topics: pa.Array) -> list[ValueKind]:
        if group.schema is None:
            return self._route_without_schema(group.payloads(), rows, topics)
        said = self.read_schema(group.schema)
        if said.row is None:
            return [get_kind(ignored=said.ignored, error=said.error)] * len(rows)
        if said.plain_rows and group.payload_slices is not None:
            first = probe_payloads([group.payload_slices[0].as_py()])[0]
            if isinstance(first, RouteProbe) and first.source and _is_all_from(group.payload_slices, first.source):
                return [_table_kind(first, said.fingerprint)] * len(rows)
        found = probe_payloads(group.payloads())
        if group.payload_slices is not None:
            self._probe_whole(found, rows, values)
        return [_table_kind(one, said.fingerprint) for one in found]

    def _probe_whole(self, found: list[RouteProbe | Reject], rows: Sequence[int], values: pa.Array) -> None:
        """Probe records again whose payload was not readable behind the common prefix: they are parsed as a whole."""
        places = [rows[i] for i, one in enumerate(found) if isinstance(one, Reject)]
        readable, payloads, _ = split_all(values, places, self._options.limits.depth)
        again = dict(zip(readable, probe_payloads(payloads), strict=True))
        for i, place in enumerate(rows) if again else ():
            found[i] = again.get(place, found[i])

    def _route_without_schema(self, payloads: list[bytes], rows: Sequence[int], topics: pa.Array) -> list[ValueKind]:
        out = []
        for found, payload, place in zip(probe_payloads(payloads), payloads, rows, strict=True):
            if isinstance(found, RouteProbe) and found.source and found.op:
                out.append(_table_kind(found, BARE))
                continue
            kind = find_kind_without_schema(payload, topics[place].as_py())
            out.append(get_kind(error=kind) if isinstance(kind, Reject) else get_kind(ignored=kind))
        return out


def _to_table(outcomes: list[Outcome]) -> pa.Table:
    return pa.Table.from_arrays([pa.array(column, pa.string()) for column in zip(*outcomes, strict=True)], schema=ROUTE)


def _is_all_from(payloads: pa.Array, origin: TableOrigin) -> bool:
    """True if every source block names the table of `origin`. Checked without parsing."""
    return to_table_name(origin) is not None and bool(
        pc.all(pc.match_substring_regex(payloads, make_block_pattern(origin))).as_py()
    )


def _table_kind(found: RouteProbe | Reject, fingerprint: str) -> ValueKind:
    if isinstance(found, Reject):
        return get_kind(error=found)
    if found.op == MESSAGE:
        return get_kind(ignored="message")
    table = to_table_name(found.source) if found.source else None
    return get_kind(table, fingerprint) if table else get_kind(error=NO_TABLE)
