"""What the event log keeps of a record beside its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Reject

from ..json.envelopes import envelope, envelopes
from ..json.faults import fit, read
from ..json.framing import Group
from ..json.pieces import Part, some
from .options import Options
from .origin import kind_without_schema, table_of
from .records import Source, Transaction, event_times
from .route import BARE, Routing
from .sequence import Facts, ordered

NULL = msgspec.Raw(b"null")


class Block(Source, gc=False):
    """A whole source block: where a change was made, and when in the order of its source."""

    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    collection: str | None = None


class Event(msgspec.Struct, gc=False):
    """A change event whose images stay the text they are."""

    op: str | None = None
    source: Block | None = None
    transaction: Transaction | None = None
    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL


NO_BLOCK, NO_EVENT = Block(), Event()
_event = msgspec.json.Decoder(Event).decode


class Envelopes:
    """Reads envelopes of any records; what cannot be read is null, and its `error` says why."""

    def __init__(self, options: Options, routing: Routing) -> None:
        self._options, self._routing = options, routing

    def envelope(self, raw: pa.Table) -> pa.Table:
        """See `ports.decoder.Decoder.envelope`."""
        return envelopes(raw, self._options.limits.depth, self._group)

    def _group(self, raw: pa.RecordBatch, group: Group) -> Part:
        subset = some(raw, group.rows)
        payloads = group.payloads()
        events, errors = read(_event, payloads, NO_EVENT)
        if group.schema is None:
            fingerprint = BARE
            errors |= _strangers(events, payloads, subset.column("topic"))
        else:
            said = self._routing.schema(group.schema)
            fingerprint = said.fingerprint
            errors |= dict.fromkeys(range(len(events)), said.error) if said.error else {}
        return group.rows, self._columns(subset, events, fingerprint, errors)

    def _columns(self, raw: pa.RecordBatch, events: list[Event], fingerprint: str, errors: dict[int, Reject]) -> pa.Table:
        blocks = [e.source or NO_BLOCK for e in events]
        count = len(events)
        before, bad_before = fit(_text, [e.before for e in events], "its before image")
        after, bad_after = fit(_text, [e.after for e in events], "its after image")
        reasons = {**bad_after, **bad_before, **errors}
        columns = {
            "source": _strings(blocks, "name"),
            "connector": _strings(blocks, "connector"),
            "db": _strings(blocks, "db"),
            "table": pa.array([table_of(b) for b in blocks], pa.string()),
            "op": _strings(events, "op"),
            "before": before,
            "after": after,
            "ts": event_times(blocks),
            "schema_id": pa.repeat(pa.scalar(fingerprint), count),
            "error": pa.array([str(reasons[i]) if i in reasons else None for i in range(count)], pa.string()),
            **self._order(raw, events, blocks),
        }
        return envelope(count, columns)

    def _order(self, raw: pa.RecordBatch, events: list[Event], blocks: list[Block]) -> dict[str, pa.Array]:
        """The sequence as in the changes frame, where there is one; a record without a key counts as of a table without."""
        keyed: list[bool] = pc.is_valid(raw.column("key")).to_pylist()
        sources: list[Source] = list(blocks)
        facts = Facts(sources, [e.transaction for e in events], [e.op for e in events], raw.column("offset"), keyed)
        order = ordered(facts, self._options.epoch)
        elements = order.elements
        if order.errors:
            known = pa.array([i not in order.errors for i in range(len(events))], pa.bool_())
            elements = [pc.if_else(known, e, None) for e in elements]
        padded = [*elements, pa.nulls(len(events), pa.int64())]
        return {**{f"seq_{i}": e for i, e in enumerate(padded, 1)}, "tx": order.tx}


def _strangers(events: list[Event], payloads: list[bytes], topics: pa.Array) -> dict[int, Reject]:
    """What is wrong with records without schema that are neither change events nor known control records."""
    found = {}
    for place, event in enumerate(events):
        if event.op is None or event.source is None:
            kind = kind_without_schema(payloads[place], topics[place].as_py())
            if isinstance(kind, Reject):
                found[place] = kind
    return found


def _strings(of: Sequence[object], name: str) -> pa.Array:
    return pa.array(list(map(attrgetter(name), of)), pa.string())


def _text(images: Sequence[msgspec.Raw | None]) -> pa.Array:
    texts = [None if image is None else bytes(image) for image in images]
    texts = [msgspec.json.decode(t, type=str).encode() if t and t[:1] == b'"' else t for t in texts]  # Of documents.
    return pa.array([None if t == b"null" else t for t in texts], pa.binary()).cast(pa.string())
