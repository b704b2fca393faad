"""Records that are rejected, from a connector and written by hand: explained, then applied by a retry with another
config, until every target equals the source."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers.kafka import make_producer
from support.accounting import count_unaccounted

from . import compare
from .daemon import Daemon, await_condition
from .stack import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TABLE = "CREATE TABLE notes (id int PRIMARY KEY, title text, body text)"
LONG = "(SELECT string_agg(md5(n::text), '') FROM generate_series({0}, {0} + 1500) n)"
"""48,000 characters that do not compress: PostgreSQL keeps them apart, and an update that leaves them alone lacks them."""
STORY = (
    "INSERT INTO notes VALUES (1, 'short', 'one'), (3, 'short', 'three')",
    f"INSERT INTO notes VALUES (2, 'long', {LONG.format(1)}), (4, 'long and gone', {LONG.format(2)})",
    "UPDATE notes SET title = 'long, and titled anew' WHERE id = 2",
    "UPDATE notes SET body = 'uno' WHERE id = 1",
    "DELETE FROM notes WHERE id = 4",
    f"INSERT INTO notes VALUES (5, 'long', {LONG.format(3)})",
    "UPDATE notes SET body = 'short now' WHERE id = 5",
)
POISON = (b"no JSON at all", b"\xff\xfe", b'{"schema": 1, "payload": {"op": "c"}}')


def configure(world: World) -> None:
    """Targets in the lake and in PostgreSQL, and a topic for rejected records."""
    world.rewrite_config({
        "sinks": {
            "lake": {"kind": "delta", "path": "./deltalake"},
            "target": {"kind": "postgres", "dsn": "${TARGET_DSN}", "schema": "public"},
        },
        "dead_letters": {"topic": f"{world.prefix}.rejects", "bootstrap_servers": "${KAFKA_BOOTSTRAP_SERVERS}"},
        "tables": [{"match": "public.notes", "source": "shop", "to": [{"sink": "lake"}, {"sink": "target"}]}],
    })  # fmt: skip
    world.overrides.append("limits.message_bytes=16KiB")


def list_note_differences(world: World) -> list[str]:
    expected = compare.index_by_key(compare.read_postgres_table(world.source, "public", "notes"), "id")
    found = {
        "lake": compare.read_lake_table(world.lake / "notes"),
        "target": compare.read_postgres_table(world.target, "public", "notes"),
    }
    return [
        f"{name}: {line}"
        for name, rows in found.items()
        for line in compare.list_differences(expected, compare.index_by_key(rows, "id"))
    ]


def list_dead_letters(world: World) -> dict[str, dict[str, Any]]:
    return {f"{each['event_id']} {each['lane']}".strip(): each for each in world.dead_letters()}


def produce_poison(world: World) -> list[str]:
    """Writes poison records to the topic, and returns their event ids."""
    producer, topic, offsets = make_producer(world.stack.bootstrap_servers), world.topic("notes"), []
    for value in POISON:
        producer.produce(topic, value, b"by hand", 0, on_delivery=lambda _, message: offsets.append(message.offset()))
    assert producer.flush(30) == 0
    return [f"{topic}-0-{offset}" for offset in offsets]


def test_dead_letters_are_explained_and_applied_by_a_retry(world: World) -> None:
    world.execute(TABLE)
    world.register()
    configure(world)
    world.execute(STORY[0])
    await_condition(lambda: len(world.topics.read([world.topic("notes")])) == 2, "the topic is there")
    by_hand = produce_poison(world)
    for statement in STORY[1:]:
        world.execute(statement)
    # Seven more changes, and the tombstone behind the delete.
    await_condition(
        lambda: len(world.topics.read([world.topic("notes")])) == 2 + len(POISON) + 8, "everything is in the topic"
    )
    check_accounts(world)
    found = list_dead_letters(world)
    assert {found.pop(event)["code"] for event in by_hand} == {"MALFORMED"}
    assert sorted((each["lane"], each["code"]) for each in found.values()) == [
        *[("", "TOO_LARGE")] * 3, ("lake.notes", "INCOMPLETE"), ("target.notes", "INCOMPLETE"),
    ]  # fmt: skip
    assert list_note_differences(world) != []
    some = {each["code"]: each["event_id"] for each in found.values()}
    told = {each["code"]: each for event in some.values() for each in world.get_result("dlq", "explain", event)}
    assert told["TOO_LARGE"]["what_to_do"].startswith("Raise the limit that the reason names, under `limits`")
    assert "first" in told["INCOMPLETE"]["what_to_do"]
    assert json.loads(told["TOO_LARGE"]["record"])["payload"]["op"] == "c"
    check_messages(world, found)
    # The config fixed: what was by hand is poison still, everything else gets where it belongs.
    world.overrides.remove("limits.message_bytes=16KiB")
    said = world.answer("dlq", "replay", code=1)["result"]
    assert (said["replayed"], said["rejected"], said["left"]) == (len(found), len(POISON), {})
    assert list_note_differences(world) == []
    assert {event: each["state"] for event, each in list_dead_letters(world).items()} == {
        **dict.fromkeys(by_hand, "open"), **dict.fromkeys(found, "replayed"),
    }  # fmt: skip
    assert world.get_result("dlq", "purge", "--yes") == {"purged": len(found) + len(POISON)}
    assert world.topics.read([f"{world.prefix}.rejects"]) == []
    # And the stream goes on.
    world.execute("UPDATE notes SET title = 'the end'")
    rows = len(compare.read_postgres_table(world.source, "public", "notes"))
    await_condition(
        lambda: len(world.topics.read([world.topic("notes")])) == 2 + len(POISON) + 8 + rows, "the end is in the topic"
    )
    assert world.run_until_caught_up() == 0
    assert list_note_differences(world) == [] and world.dead_letters() == []


def check_accounts(world: World) -> None:
    """A daemon applies the records. Its published numbers account for every record while dead letters are open."""
    daemon = world.daemon()
    daemon.await_condition(lambda: {lane["lag_records"] for lane in daemon.lanes().values()} == {0}, "everything is applied")
    # Open dead letters are counted now and then.
    daemon.await_condition(lambda: list_open_dead_letters(daemon) == len(POISON) + 5, "open dead letters are shown")
    status, metrics = daemon.status(), daemon.page("/metrics")
    assert status is not None and [source["records"] for source in status["sources"]] == [2 + len(POISON) + 8]
    for sink in ("lake", "target"):
        assert count_unaccounted(status, metrics, sink) == {"shop": (0, 0)}, sink
    assert daemon.stop() == 0


def list_open_dead_letters(daemon: Daemon) -> int:
    return sum(group["open"] for group in (daemon.status() or {}).get("dead_letters") or ())


def check_messages(world: World, found: dict[str, dict[str, Any]]) -> None:
    """The dead letters in the form that Connect tools read."""
    messages = world.topics.read([f"{world.prefix}.rejects"])
    assert len(messages) == len(found) + len(POISON)
    records = {(r.topic, r.partition, r.offset): r for r in world.topics.read([world.topic("notes")])}
    for message in messages:
        headers = dict(message.headers or ())
        place = [headers[f"__connect.errors.{name}"].decode() for name in ("topic", "partition", "offset")]
        record = records[place[0], int(place[1]), int(place[2])]
        assert (message.key, message.value) == (record.key, record.value)
        assert headers["__connect.errors.connector.name"].decode() == "shop"
