"""A topic of a real connector that the broker has compacted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from .compare import index_by_key, list_differences, read_lake_table, read_postgres_table
from .daemon import Daemon, await_condition
from .stack import World
from .topics import Record

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

CREATE = """
CREATE TABLE items (id int PRIMARY KEY, note text, padding text);
INSERT INTO items SELECT i, 'first', repeat('x', 5000) FROM generate_series(1, 30) i"""
UPDATE = "UPDATE items SET note = 'turn ' || %s, padding = repeat(md5(%s::text), 150) WHERE id > 4"
DELETED = (1, 2, 3)
COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "86400000",
}
INTO = ("items", "items_anew")


def tables(*entries: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the one table; deletes are taken from messages without a value too."""
    return {"tables": [{"match": "public.items", "source": "shop", "tombstones": "delete", "to": list(entries)}]}


def keys(records: Sequence[Record], op: str | None) -> set[int]:
    """Of which rows there is a change of that kind; of None, a message without a value."""
    return {json.loads(r.key or b"")["payload"]["id"] for r in records if (r.payload or {"op": None})["op"] == op}


def stands(world: World, into: str) -> list[str]:
    """How the target in each sink differs from the source."""
    expected = index_by_key(read_postgres_table(world.source, "public", "items"), "id")
    found = {"lake": read_lake_table(world.lake / into), "target": read_postgres_table(world.target, "public", into)}
    return [
        f"{sink}: {line}" for sink, rows in found.items() for line in list_differences(expected, index_by_key(rows, "id"))
    ]


def await_equal(world: World, daemon: Daemon, *into: str) -> None:
    daemon.await_condition(
        lambda: not [line for name in into for line in stands(world, name)], "both sinks equal the source"
    )


def compact(world: World, topic: str) -> list[Record]:
    """Change rows until the broker has taken away every change that deleted one; what is left."""
    turns = iter(range(1, 1_000))

    def is_compacted() -> bool:
        world.execute(UPDATE, *[str(next(turns))] * 2)
        records = world.topics.read([topic])
        return {*DELETED} <= keys(records, None) and not keys(records, "d")

    await_condition(is_compacted, "the broker compacts the topic", 60)
    return world.topics.read([topic])


def test_compacted_topic_gives_the_current_state(world: World) -> None:
    """For a lane whose position is among the compacted records, and for a new lane."""
    topic = world.topic("items")
    world.topics.set_broker("log.cleaner.backoff.ms", "500")
    world.topics.create(topic, config=COMPACT)
    world.execute(CREATE)
    world.register()
    world.overrides[0] = f'sources.shop.topics=["{topic}"]'
    world.rewrite_config(tables({"sink": "lake"}, {"sink": "target"}))
    daemon = world.daemon()
    await_equal(world, daemon, "items")
    [stood] = {lane["position"][topic]["0"] for lane in daemon.lanes().values()}
    assert daemon.stop() == 0
    world.execute(f"DELETE FROM items WHERE id IN {DELETED}")
    world.execute("UPDATE items SET note = 'of this nothing is left'")
    left = compact(world, topic)
    assert not {*DELETED} & keys(left, "d") and {*DELETED} <= keys(left, None), "the deletes are bare"
    offsets = {record.offset for record in left}
    assert stood not in offsets and len(offsets) < 0.7 * max(offsets), "the broker took records away, the next one too"
    world.rewrite_config(tables(*({"sink": sink, "into": into} for sink in ("lake", "target") for into in INTO)))
    daemon = world.daemon()
    await_equal(world, daemon, *INTO)
    daemon.await_running()
    assert daemon.stop() == 0 and world.dead_letters() == []
    check_doctor(world, topic)


def check_doctor(world: World, topic: str) -> None:
    """It says who would miss what, and nothing of those who would not."""
    assert read_doctor_warnings(world, topic) == []
    world.rewrite_config(tables({"sink": "lake", "policy": "scd2"}, {"sink": "target", "policy": "append"}, {"sink": "raw"}))
    [text] = read_doctor_warnings(world, topic)
    assert "event log raw, lake under scd2, target under append want every change" in text


def read_doctor_warnings(world: World, topic: str) -> list[str]:
    """What `doctor` warns of that topic."""
    found = json.loads(world.program("doctor", "--json").stdout)["result"]
    return [d["sentence"] for d in found if d["severity"] == "warning" and f"{topic} is compacted" in d["sentence"]]
