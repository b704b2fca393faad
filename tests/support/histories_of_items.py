"""Short histories of `public.items`."""

from __future__ import annotations

from support.tuple_engine import VERSIONS, Rec


def change(offset, op, key, *, topic="t", partition=0, table="public.items", version=0, unsent=(), **more):
    """One change; its sequence is above that of every lower offset."""
    names = [n for n in VERSIONS[version] if n != "id" and n not in unsent]
    values = (("id", key), *((n, f"{n}{offset}") for n in names)) if op not in "dt" else ()
    seq = more.pop("seq", offset + 1)
    return Rec(topic, partition, offset, table, op, key, seq, values, frozenset(unsent), version=version, **more)


def tombstone(offset, key, **more):
    """What follows a delete."""
    return Rec(more.pop("topic", "t"), more.pop("partition", 0), offset, key=key, kind="tombstone", **more)


def move(offset, old, new, *, unsent=("name",), **more):
    """A key change: three records."""
    return [
        change(offset, "d", old, moved_to=True, **more),
        tombstone(offset + 1, old, topic=more.get("topic", "t")),
        change(offset + 2, "c", new, moved_from=old, unsent=unsent, **more),
    ]
