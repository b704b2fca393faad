"""How late the rows of a table are while many new tables begin: in each target of the daemon, with as many topics that it
does not read as a control, twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .configs import LAKE, POSTGRES, write_config
from .events import Stream
from .freshness import Observer, await_all, daemon, newest_in_delta, newest_in_postgres, percentiles, watching
from .servers import servers, workspace

LIVE = "bench.public.rows"
EVENT = next(Stream(1).events())
PG_EVERY, DELTA_EVERY = 0.02, 0.05
ROWS_OF_A_TABLE = 5
START_SECONDS = 90.0
SLOWEST = 1.0
"""Seconds a table, in which all new ones must be there."""
TOPICS_AT_ONCE = 100
CONTROL_SECONDS = 5.0


def measure(tables: int, rate: int) -> dict[str, Any]:
    """`rate` rows a second go to one table while `tables` topics appear, each with some rows: first topics that the daemon
    does not read, twice, then such that it reads. How long each row took to be seen in a target, and all the new tables."""
    with servers(connect=False) as stack:
        dsn, folder = stack.create_database("target", "bench_new"), workspace("new_tables")
        config = write_config(
            folder, (LAKE, POSTGRES), stack.bootstrap_servers, dsn, topic="bench.public.*", table="public.*"
        )
        observers = [
            Observer("delta", newest_in_delta(folder / "lake" / "rows"), DELTA_EVERY),
            Observer("pg", newest_in_postgres(dsn), PG_EVERY),
        ]
        topics = Topics(stack.bootstrap_servers)
        topics.create([LIVE])
        with daemon(config, folder), watching(observers), topics.sending(rate) as sent:
            await_all(observers, 1, START_SECONDS)
            phases = {}
            for name, prefix in (("control", "other"), ("again", "another"), ("measured", "bench")):
                began, first = time.time(), len(sent) + 1
                names = [f"{prefix}.public.new_{i}" for i in range(tables)]
                topics.create(names)
                topics.fill(names)
                if name == "measured":
                    _await_tables(dsn, folder / "lake", tables)
                else:
                    time.sleep(CONTROL_SECONDS)
                last = len(sent)
                await_all(observers, last, START_SECONDS)
                late = {each.name: percentiles(each.latencies(sent, range(first, last + 1))) for each in observers}
                phases[name] = {"late": late, "rows": last - first + 1, "seconds": time.time() - began}
    return {"tables": tables, "rate": rate, **phases}


def show(figures: dict[str, Any]) -> None:
    """Print what `measure` found."""
    measured = figures["measured"]
    print(f"{figures['tables']:,} new tables, all there after {measured['seconds']:.1f} s; milliseconds until visible")
    print(f"{'target':<10}{'topics':<12}{'p50':>8}{'p95':>8}{'p99':>8}{'max':>8}")
    for name in measured["late"]:
        for phase, topics in (("control", "not read"), ("again", "not read"), ("measured", "read")):
            late = figures[phase]["late"][name]
            print(f"{name:<10}{topics:<12}" + "".join(f"{late[p] * 1000:>8,.0f}" for p in ("p50", "p95", "p99", "max")))
    first, again = (figures[phase]["late"] for phase in ("control", "again"))
    ratios = (f"{name} {again[name]['p50'] / first[name]['p50']:.2f}" for name in first)
    print(f"A/A control (median of the second time that topics are not read by the first): {', '.join(ratios)}")


class Topics:
    """Topics, and in them inserts as a PostgreSQL connector writes them."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def create(self, names: list[str]) -> None:
        """Return when the broker has all of them."""
        for at in range(0, len(names), TOPICS_AT_ONCE):
            wanted = [NewTopic(name, 1, 1, config={"retention.ms": "-1"}) for name in names[at : at + TOPICS_AT_ONCE]]
            for created in self._admin.create_topics(wanted).values():
                created.result(60)

    def fill(self, names: list[str]) -> None:
        """Return when the broker has some rows of each."""
        for name in names:
            for number in range(1, ROWS_OF_A_TABLE + 1):
                self._send(name, number)
        if left := self._producer.flush(120):
            raise RuntimeError(f"{left} records did not reach the broker.")

    @contextmanager
    def sending(self, rate: int) -> Iterator[dict[int, float]]:
        """So many rows a second to the live table; when each was sent, by its number."""
        sent: dict[int, float] = {}
        stop = threading.Event()

        def send() -> None:
            began = time.time()
            while not stop.wait(max(0.0, began + len(sent) / rate - time.time())):
                self._send(LIVE, len(sent) + 1)
                sent[len(sent) + 1] = time.time()

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield sent
        finally:
            stop.set()
            thread.join()

    def _send(self, topic: str, number: int) -> None:
        key, value = (text.replace(b'"id":1}', b'"id":%d}' % number) for text in EVENT[:2])
        value = value.replace(b'"after":{"id":1,', b'"after":{"id":%d,' % number)
        table = b'"table":"%s"' % topic.rpartition(".")[2].encode()
        self._producer.produce(topic, value.replace(b'"table":"rows"', table), key, partition=0)
        self._producer.poll(0)


def _await_tables(dsn: str, lake: Path, tables: int) -> None:
    deadline = time.time() + START_SECONDS + tables * SLOWEST
    with psycopg.connect(dsn, autocommit=True) as connection:
        while True:
            query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'new\\_%'"
            there = connection.execute(query).fetchone()
            in_lake = sum((folder / "_delta_log" / f"{0:020}.json").exists() for folder in lake.glob("new_*"))
            if there and there[0] == in_lake == tables:
                return
            if time.time() > deadline:
                raise RuntimeError(f"Of {tables} tables the lake has {in_lake}, PostgreSQL {there[0] if there else 0}.")
            time.sleep(0.5)
