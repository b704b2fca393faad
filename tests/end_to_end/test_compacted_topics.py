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


def make_tables(*entries: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the only table. Null records are also deletes."""
    return {"tables": [{"match": "public.items", "source": "shop", "tombstones": "delete", "to": list(entries)}]}


def list_keys(records: Sequence[Record], op: str | None) -> set[int]:
    """The rows that have a change of that operation. None selects null records."""
    return {json.loads(r.key or b"")["payload"]["id"] for r in records if (r.payload or {"op": None})["op"] == op}


def list_target_differences(world: World, into: str) -> list[str]:
    """The differences of the target in each sink from the source."""
    expected = index_by_key(read_postgres_table(world.source, "public", "items"), "id")
    found = {"lake": read_lake_table(world.lake / into), "target": read_postgres_table(world.target, "public", into)}
    return [
        f"{sink}: {line}" for sink, rows in found.items() for line in list_differences(expected, index_by_key(rows, "id"))
    ]


def await_equal(world: World, daemon: Daemon, *into: str) -> None:
    daemon.await_condition(
        lambda: not [line for name in into for line in list_target_differences(world, name)], "both sinks equal the source"
    )


def compact(world: World, topic: str) -> list[Record]:
    """Changes rows until the broker has removed every delete change, and returns the remaining records."""
    turns = iter(range(1, 1_000))

    def is_compacted() -> bool:
        world.execute(UPDATE, *[str(next(turns))] * 2)
        records = world.topics.read([topic])
        return {*DELETED} <= list_keys(records, None) and not list_keys(records, "d")

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
    world.rewrite_config(make_tables({"sink": "lake"}, {"sink": "target"}))
    daemon = world.daemon()
    await_equal(world, daemon, "items")
    [stood] = {lane["position"][topic]["0"] for lane in daemon.lanes().values()}
    assert daemon.stop() == 0
    world.execute(f"DELETE FROM items WHERE id IN {DELETED}")
    world.execute("UPDATE items SET note = 'of this nothing is left'")
    left = compact(world, topic)
    assert not {*DELETED} & list_keys(left, "d") and {*DELETED} <= list_keys(left, None), "the deletes are bare"
    offsets = {record.offset for record in left}
    assert stood not in offsets and len(offsets) < 0.7 * max(offsets), "the broker took records away, the next one too"
    world.rewrite_config(make_tables(*({"sink": sink, "into": into} for sink in ("lake", "target") for into in INTO)))
    daemon = world.daemon()
    await_equal(world, daemon, *INTO)
    daemon.await_running()
    assert daemon.stop() == 0 and world.dead_letters() == []
    check_doctor(world, topic)


def check_doctor(world: World, topic: str) -> None:
    """`doctor` warns of each lane that would miss deletes, and of no other."""
    assert read_doctor_warnings(world, topic) == []
    world.rewrite_config(
        make_tables({"sink": "lake", "policy": "scd2"}, {"sink": "target", "policy": "append"}, {"sink": "raw"})
    )
    [text] = read_doctor_warnings(world, topic)
    assert "event log raw, lake under scd2, target under append want every change" in text


def read_doctor_warnings(world: World, topic: str) -> list[str]:
    """The warnings of `doctor` about that topic."""
    found = json.loads(world.program("doctor", "--json").stdout)["result"]
    return [d["sentence"] for d in found if d["severity"] == "warning" and f"{topic} is compacted" in d["sentence"]]
