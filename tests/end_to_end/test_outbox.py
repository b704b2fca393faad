"""Outbox events, written in one transaction with the rows they describe, in both forms that Debezium sends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from .compare import read_lake_table, read_postgres_table
from .stack import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

ORDERS = 48
KILLS = 2
CREATE = """
CREATE TABLE orders (id bigint PRIMARY KEY, total numeric(10, 2));
CREATE TABLE outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
    type text NOT NULL, payload jsonb);
"""
EVENT = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s) RETURNING id::text"
ROUTER = {
    "transforms": "outbox",
    "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
    "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
    "provide.transaction.metadata": "false",
    "heartbeat.interval.ms": "0",
    "table.include.list": "public.outbox",
}
Event = tuple[str, str, str, Any]
"""Aggregate type, aggregate, type, payload."""


@dataclass
class Shop:
    """Places orders, and pays some of them. `events`: the committed events by id."""

    dsn: str
    events: dict[str, Event] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)

    def open(self) -> None:
        try:
            with closing(psycopg.connect(self.dsn, autocommit=True)) as connection:
                for number in range(ORDERS):
                    self._order(connection, number)
                    time.sleep(0.05)
        except BaseException as failure:
            self.failures.append(failure)

    def _order(self, connection: psycopg.Connection[Any], number: int) -> None:
        told: dict[str, Event] = {}
        with connection.transaction(force_rollback=number % 7 == 6):
            connection.execute("INSERT INTO orders VALUES (%s, %s)", (number, f"{number}.50"))
            for event in self._events(number):
                [key] = connection.execute(EVENT, (*event[:3], json.dumps(event[3]))).fetchone() or ()
                told[key] = event
            if number % 2:
                connection.execute("DELETE FROM outbox")
        self.events |= told if number % 7 != 6 else {}

    def _events(self, number: int) -> list[Event]:
        placed = ("order", str(number), "OrderPlaced", {"total": f"{number}.50", "names": ["é☃", None, {"a": 1}]})
        return [placed, ("payment", str(number), "Paid", {"order": number})] if number % 3 == 0 else [placed]


def configure(world: World) -> str:
    """Two sources of events in addition to the rows: the outbox table, and EventRouter's topics. Returns the prefix of
    these topics."""
    router = f"{world.prefix}router.event"
    kafka = {"transport": "kafka", "bootstrap_servers": "${KAFKA_BOOTSTRAP_SERVERS}"}
    outbox = {"format": "debezium_outbox", **kafka}
    world.rewrite_config(
        {
            "sources": {
                "shop": {"format": "debezium_json", **kafka, "topics": ["replaced"]},
                "outbox": {**outbox, "topics": [world.topic("outbox")], "group_id": f"{world.prefix}o"},
                "routed": {
                    **outbox,
                    "topics": [f"{router}.*"],
                    "group_id": f"{world.prefix}r",
                    "outbox": {"route_to": router + ".{aggregatetype}"},
                },
            },
            "sinks": {
                "lake": {"kind": "delta", "path": "./deltalake"},
                "target": {"kind": "postgres", "dsn": "${TARGET_DSN}", "schema": "public"},
                "routed_lake": {"kind": "delta", "path": "./deltalake/routed"},
                "routed_target": {"kind": "postgres", "dsn": "${TARGET_DSN}", "schema": "routed"},
            },
            "tables": [
                {"match": "public.orders", "source": "shop", "to": [{"sink": "lake"}, {"sink": "target"}]},
                {"match": "outbox.event.*", "source": "outbox", "to": [{"sink": "lake"}, {"sink": "target"}]},
                {
                    "match": f"{router}.*",
                    "source": "routed",
                    "to": [{"sink": "routed_lake", "policy": "append"}, {"sink": "routed_target", "policy": "scd2"}],
                },
            ],
        }
    )
    world.overrides[0] = f'sources.shop.topics=["{world.topic("orders")}"]'
    return router


def read_events(world: World) -> dict[str, list[Mapping[str, Any]]]:
    """The events in each of the four targets."""
    kinds = ("order", "payment")
    return {
        "lake": [row for kind in kinds for row in read_lake_table(world.lake / kind)],
        "target": [row for kind in kinds for row in read_postgres_table(world.target, "public", kind)],
        "routed_lake": [row for kind in kinds for row in read_lake_table(world.lake / "routed" / kind)],
        "routed_target": [row for kind in kinds for row in read_postgres_table(world.target, "routed", kind)],
    }


def to_event(row: Mapping[str, Any]) -> Event:
    kept = row["payload"]
    return row["aggregatetype"], row["aggregateid"], row["type"], json.loads(kept) if isinstance(kept, str) else kept


def list_incomplete_targets(world: World, events: Mapping[str, Event]) -> list[str]:
    """Targets that do not have each event exactly once."""
    return [name for name, rows in read_events(world).items() if sorted(format_rows(rows)) != sorted(format_events(events))]


def format_rows(rows: list[Mapping[str, Any]]) -> list[str]:
    return [json.dumps([str(row["id"]), to_event(row)], sort_keys=True) for row in rows]


def format_events(events: Mapping[str, Event]) -> list[str]:
    return [json.dumps([key, said], sort_keys=True) for key, said in events.items()]


def test_every_event_is_stored_once_with_its_row(world: World) -> None:
    """Although the daemon is killed, rows leave the outbox at once, and all events are sent twice. Under every policy."""
    router = configure(world)
    world.execute(CREATE)
    world.register()
    again = world.prefix + "router"
    world.register(again, **{**ROUTER, "transforms.outbox.route.topic.replacement": router + ".${routedByValue}"})
    shop = Shop(world.source)
    writing = threading.Thread(target=shop.open, daemon=True)
    writing.start()
    for kill in range(KILLS):
        daemon = world.daemon()
        daemon.await_condition(lambda least=8 * (kill + 1): len(read_events(world)["target"]) >= least, "events arrive")  # type: ignore[misc]
        daemon.kill()
    writing.join(60)
    assert not shop.failures and not writing.is_alive()
    daemon = world.daemon()
    daemon.await_condition(lambda: not list_incomplete_targets(world, shop.events), "every event is in every target once")
    first = read_events(world)
    topics = [world.topic("outbox"), *world.topics.names(router)]
    sent = world.topics.read(topics)
    world.topics.send_again(sent)
    ends = world.topics.ends(topics)
    daemon.await_condition(lambda: all(has_read_all(daemon.lanes(), ends)), "what was sent again was read")
    assert read_events(world) == first and list_incomplete_targets(world, shop.events) == []
    orders = {str(row["id"]) for row in read_postgres_table(world.source, "public", "orders")}
    for rows in (read_postgres_table(world.target, "public", "orders"), read_lake_table(world.lake / "orders")):
        assert {str(row["id"]) for row in rows} == orders == {said[1] for said in shop.events.values()}
    assert world.dead_letters() == []
    assert daemon.stop() == 0


def has_read_all(lanes: Mapping[str, Any], ends: Mapping[tuple[str, int], int]) -> list[bool]:
    """Whether each lane is at the end of its topics."""
    positions = [lane["position"] for lane in lanes.values()]
    at = [found[topic][str(p)] >= end for found in positions for (topic, p), end in ends.items() if topic in found]
    return at or [False]
