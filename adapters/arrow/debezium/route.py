"""Records to tables: the frame is cut by schema bytes, the source block names the table, the key's schema its key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject
from replicator.ports.decoder import ROUTE

from ..json.faults import malformed
from ..json.framing import Group, Once, split_all
from ..json.headers import unread
from ..json.limits import bounded
from ..json.pieces import pieces
from .keys import Keys
from .options import Options
from .origin import MESSAGE, Origin, Probe, block_pattern, kind_without_schema, probed, table_of
from .outcomes import NOTHING, Kind, Outcome, Outcomes, kind_of
from .schema import KeySchema, MessageSchema, read_message_schema

MAX_SCHEMAS = 4096
BARE = "bare"
NO_TABLE = malformed("its source block names no table")


class Routing:
    """Routes frames. Keeps schemas it has read. `once`: shared with what decodes the same frames."""

    def __init__(self, options: Options, once: Once | None = None) -> None:
        self._options = options
        self._once = once or Once(options.limits.depth)
        self._keys = Keys(options.limits.depth)
        self._schemas: dict[bytes, MessageSchema] = {}
        self._outcomes = Outcomes(options)

    def route(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.route`."""
        self._once.forget()
        done = [self._piece(piece) for piece in pieces(raw)]
        return pa.concat_tables([ROUTE.empty_table(), *done]).combine_chunks()

    def schema(self, raw: bytes) -> MessageSchema:
        """What the JSON text of a message's schema announces."""
        if raw not in self._schemas:
            if len(self._schemas) >= MAX_SCHEMAS:
                self._schemas.clear()
            self._schemas[raw] = read_message_schema(raw, self._options.limits)
        return self._schemas[raw]

    def key_of(self, table: str, fingerprint: str) -> KeySchema:
        """The key last seen with records of that fingerprint; without names when none was."""
        return self._outcomes.key_of(table, fingerprint)

    def key(self, text: bytes) -> KeySchema:
        """What the JSON text of a message's key names."""
        return self._keys.one(text)

    def _piece(self, raw: pa.RecordBatch) -> pa.Table:
        kinds, keys, topics = self._kinds(raw), self._keys.of(raw.column("key")), raw.column("topic")
        pairs = list(zip(kinds, keys, strict=True))
        distinct = {pair: code for code, pair in enumerate(dict.fromkeys(pairs))}
        self._outcomes.remember(distinct)
        if self._options.any_tombstone_deletes:
            return _table([self._outcomes.of(*row) for row in zip(kinds, keys, topics.to_pylist(), strict=True)])
        few = _table([self._outcomes.of(*pair, "") for pair in distinct])
        codes = [0] * len(pairs) if len(distinct) == 1 else list(map(distinct.__getitem__, pairs))
        return few.take(pa.array(codes, pa.int64()))

    def _kinds(self, raw: pa.RecordBatch) -> list[Kind]:
        values, topics = raw.column("value"), raw.column("topic")
        values, large = bounded(values, self._options.limits)
        kinds = [NOTHING] * len(values)
        found = self._once.first(values)
        for group in found.groups:
            rows = range(len(values)) if group.rows is None else group.rows
            for place, kind in zip(rows, self._group(group, rows, values, topics), strict=True):
                kinds[place] = kind
        for place, error in (found.errors | large | unread(raw.column("headers"))).items():
            kinds[place] = kind_of(error=error)
        return kinds

    def _group(self, group: Group, rows: Sequence[int], values: pa.Array, topics: pa.Array) -> list[Kind]:
        if group.schema is None:
            return self._without_schema(group.payloads(), rows, topics)
        said = self.schema(group.schema)
        if said.row is None:
            return [kind_of(ignored=said.ignored, error=said.error)] * len(rows)
        if said.plain_rows and group.sliced is not None:
            first = probed([group.sliced[0].as_py()])[0]
            if isinstance(first, Probe) and first.source and _all_from(group.sliced, first.source):
                return [_of_table(first, said.fingerprint)] * len(rows)
        found = probed(group.payloads())
        if group.sliced is not None:
            self._probe_whole(found, rows, values)
        return [_of_table(one, said.fingerprint) for one in found]

    def _probe_whole(self, found: list[Probe | Reject], rows: Sequence[int], values: pa.Array) -> None:
        """Second try of records that their prefix did not lead to a payload: they are taken apart whole."""
        places = [rows[i] for i, one in enumerate(found) if isinstance(one, Reject)]
        readable, payloads, _ = split_all(values, places, self._options.limits.depth)
        again = dict(zip(readable, probed(payloads), strict=True))
        for i, place in enumerate(rows) if again else ():
            found[i] = again.get(place, found[i])

    def _without_schema(self, payloads: list[bytes], rows: Sequence[int], topics: pa.Array) -> list[Kind]:
        out = []
        for found, payload, place in zip(probed(payloads), payloads, rows, strict=True):
            if isinstance(found, Probe) and found.source and found.op:
                out.append(_of_table(found, BARE))
                continue
            kind = kind_without_schema(payload, topics[place].as_py())
            out.append(kind_of(error=kind) if isinstance(kind, Reject) else kind_of(ignored=kind))
        return out


def _table(outcomes: list[Outcome]) -> pa.Table:
    return pa.Table.from_arrays([pa.array(column, pa.string()) for column in zip(*outcomes, strict=True)], schema=ROUTE)


def _all_from(payloads: pa.Array, origin: Origin) -> bool:
    """Whether every source block names the table of `origin`; told without parsing."""
    return table_of(origin) is not None and bool(pc.all(pc.match_substring_regex(payloads, block_pattern(origin))).as_py())


def _of_table(found: Probe | Reject, fingerprint: str) -> Kind:
    if isinstance(found, Reject):
        return kind_of(error=found)
    if found.op == MESSAGE:
        return kind_of(ignored="message")
    table = table_of(found.source) if found.source else None
    return kind_of(table, fingerprint) if table else kind_of(error=NO_TABLE)
