"""Incremental snapshots by signal, while the tables change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
import pytest

from .daemon import Daemon
from .mirrored_items import list_current_differences, read_histories
from .stack import World
from .topics import Record

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

ROWS = 600
CREATE = f"""
CREATE TABLE items (id int PRIMARY KEY, note text, turn int);
CREATE TABLE debezium_signal (id text PRIMARY KEY, type text NOT NULL, data text);
INSERT INTO items SELECT i, 'as it was', 0 FROM generate_series(1, {ROWS}) i"""
SETTINGS = {
    "snapshot.mode": "no_data",
    "signal.data.collection": "public.debezium_signal",
    "incremental.snapshot.chunk.size": "20",
}
SIGNAL = "INSERT INTO debezium_signal VALUES (%s, 'execute-snapshot', %s)"
Version = tuple[int, str, int, bool]
"""A row's values, and whether they still hold."""


@dataclass
class Clerk:
    """Changes, deletes and inserts rows all the time."""

    dsn: str
    pause: float = 0.004
    failures: list[BaseException] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        random = Random(7)
        try:
            with closing(psycopg.connect(self.dsn, autocommit=True)) as connection:
                turn = 0
                while not self._end.wait(self.pause):
                    turn += 1
                    key = random.randint(1, ROWS + 20)
                    if turn % 3 == 0:
                        connection.execute("DELETE FROM items WHERE id = %s", (key,))
                    else:
                        connection.execute(
                            "INSERT INTO items VALUES (%s, 'changed', %s) "
                            "ON CONFLICT (id) DO UPDATE SET note = excluded.note, turn = excluded.turn",
                            (key, turn),
                        )
        except BaseException as failure:
            self.failures.append(failure)

    def __enter__(self) -> Clerk:
        self._thread = threading.Thread(target=self.work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(30)
        assert not self.failures and not self._thread.is_alive()


def send_signal(world: World, name: str) -> None:
    asked = {"data-collections": ["public.items"], "type": "incremental"}
    world.execute(SIGNAL, name, json.dumps(asked))


def list_snapshot_records(world: World) -> list[Record]:
    """The rows that the connector has read again."""
    records = world.topics.read([world.topic("items")])
    return [r for r in records if r.payload and r.payload["op"] == "r"]


def await_snapshot(world: World, daemon: Daemon, before: int) -> None:
    """Waits for the last chunk: no new rows for longer than a chunk takes."""

    def is_read() -> bool:
        count = len(list_snapshot_records(world))
        time.sleep(1.5)
        return count > before and count == len(list_snapshot_records(world))

    daemon.await_condition(is_read, "the rows were read again", seconds=240)


def list_versions(rows: Sequence[Mapping[str, Any]]) -> list[Version]:
    return sorted((row["id"], row["note"], row["turn"], row["_cdc_end_seq_1"] is None) for row in rows)


def compute_versions(records: Sequence[Record]) -> list[Version]:
    """The versions computed from the topic: a version begins when a row changes."""
    ended: list[Version] = []
    now: dict[int, tuple[int, str, int]] = {}
    for payload in (record.payload for record in records):
        row = payload and (payload["after"] or payload["before"])
        if not payload or not row:
            continue
        new = None if payload["op"] == "d" else (row["id"], row["note"], row["turn"])
        old = now.pop(row["id"], None)
        ended += [(*old, False)] if old is not None and old != new else []
        now |= {row["id"]: new} if new is not None else {}
    return sorted([*ended, *((*values, True) for values in now.values())])


def test_snapshot_rows_overwrite_no_newer_change(world: World) -> None:
    """They restore no deleted row either. In a history, an unchanged row begins no version."""
    world.execute(CREATE)
    world.overrides[0] = f'sources.shop.topics=["{world.topic("items")}"]'
    policies = [
        {"sink": sink, **more} for sink in ("lake", "target") for more in ({}, {"into": "versions", "policy": "scd2"})
    ]
    world.rewrite_config({"tables": [{"match": "public.items", "source": "shop", "to": policies}]})
    world.register(**SETTINGS)
    with Clerk(world.source):
        daemon = world.daemon()
        send_signal(world, "first")
        daemon.await_condition(lambda: list_snapshot_records(world), "rows are read")
        await_snapshot(world, daemon, 0)
    daemon.await_condition(lambda: not list_current_differences(world), "both sinks equal the source")
    records = world.topics.read([world.topic("items")])
    read = list_snapshot_records(world)
    meanwhile = {r.payload["op"] for r in records if r.payload and read[0].offset < r.offset < read[-1].offset}
    assert {"u", "d", "r"} <= meanwhile, "there were changes meanwhile"
    expected = compute_versions(records)
    for sink, rows in read_histories(world).items():
        assert list_versions(rows) == expected, sink
    before = len(list_snapshot_records(world))
    send_signal(world, "second")
    await_snapshot(world, daemon, before)
    last = world.topics.ends([world.topic("items")])[world.topic("items"), 0]
    at = lambda lane: lane["position"].get(world.topic("items"), {}).get("0", 0)  # noqa: E731
    daemon.await_condition(lambda: all(at(lane) >= last for lane in daemon.lanes().values()), "all was read")
    assert list_current_differences(world) == []
    for sink, rows in read_histories(world).items():
        assert list_versions(rows) == expected, sink
    assert all(lane["counts"]["rejected"] == 0 for lane in daemon.lanes().values())
    assert daemon.stop() == 0
