"""Short histories of `public.items`."""

from __future__ import annotations

from support.tuple_engine import VERSIONS, TupleRecord


def make_change(offset, op, key, *, topic="t", partition=0, table="public.items", version=0, unsent=(), **more):
    """One change. Its sequence is above that of every lower offset."""
    names = [n for n in VERSIONS[version] if n != "id" and n not in unsent]
    values = (("id", key), *((n, f"{n}{offset}") for n in names)) if op not in "dt" else ()
    seq = more.pop("seq", offset + 1)
    return TupleRecord(topic, partition, offset, table, op, key, seq, values, frozenset(unsent), version=version, **more)


def make_tombstone(offset, key, **more):
    """The null record after a delete."""
    return TupleRecord(more.pop("topic", "t"), more.pop("partition", 0), offset, key=key, kind="tombstone", **more)


def make_key_change(offset, old, new, *, unsent=("name",), **more):
    """A key change: three records."""
    return [
        make_change(offset, "d", old, moved_to=True, **more),
        make_tombstone(offset + 1, old, topic=more.get("topic", "t")),
        make_change(offset + 2, "c", new, moved_from=old, unsent=unsent, **more),
    ]
