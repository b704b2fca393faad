"""From COMMIT in a live source to visible in each target: PostgreSQL, Debezium, Kafka, the daemon with both lanes on; then
the Debezium JDBC sink, on the same topic."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from adapters.stack.embedded import EmbeddedStack, register
from tests.support.registered_source import drop_source, register_source

from .configs import LAKE, POSTGRES, write_config
from .jdbc import config as jdbc_config
from .servers import PROJECT, servers, workspace

PREFIX, DATABASE = "fresh", "bench_fresh"
TOPIC = f"{PREFIX}.public.rows"
CREATE = """CREATE TABLE rows (id bigint PRIMARY KEY, version bigint NOT NULL, name text NOT NULL, active boolean NOT NULL,
visits int, rating float8, updated_at timestamptz, note text)"""
INSERT = """INSERT INTO rows SELECT i, i, 'Ada Lovelace', true, 7, 1.5, now(), 'order was paid'
FROM generate_series(%s::int8, %s::int8) i"""
PG_EVERY, DELTA_EVERY = 0.005, 0.02
START_SECONDS = 90.0
LAST_SECONDS = 30.0


@dataclass
class Observer:
    """Looks every `interval` seconds for the highest id in a target, in a thread of its own."""

    name: str
    newest: Callable[[], int]
    interval: float
    seen: list[tuple[float, int]] = field(default_factory=list)
    failure: Exception | None = None

    @property
    def highest(self) -> int:
        """The highest id seen so far. Raises what ended the observer."""
        if self.failure is not None:
            raise self.failure
        return self.seen[-1][1] if self.seen else 0

    def watch(self, stop: threading.Event) -> None:
        """Look until `stop`. The time noted is that after the answer came: never too early."""
        try:
            while not stop.is_set():
                found = self.newest()
                if found > (self.seen[-1][1] if self.seen else 0):
                    self.seen.append((time.time(), found))
                stop.wait(self.interval)
        except Exception as failure:
            self.failure = failure

    def latencies(self, since: dict[int, float], ids: range) -> list[float]:
        """Seconds from `since` to visible, sorted, of these ids."""
        out, last = [], ids.start - 1
        for at, highest in self.seen:
            out += [at - since[i] for i in range(last + 1, min(highest + 1, ids.stop))]
            last = max(last, highest)
        return sorted(out)


def measure(rate: int, seconds: float, warm_up: float) -> dict[str, Any]:
    """`rate` rows a second, one transaction each while the source keeps up, for `seconds` after `warm_up` seconds.

    As a control, each target's median is also taken of the first and of the second half of the rows."""
    with servers(source=True) as stack:
        source = stack.create_database("source", DATABASE)
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(CREATE)
            register_source(stack, DATABASE, PREFIX)
            rows = Rows(connection, rate, seconds, warm_up)
            phases = [_lanes(stack, rows), _jdbc(stack, rows)]
        drop_source(stack, PREFIX)
        sent = _read_send_times(stack.bootstrap_servers, len(rows.committed))
    waited = sorted(sent[i] - rows.committed[i] for phase in phases for i in phase.counted)
    found, controls = {"topic": {"commit": percentiles(waited)}}, {}
    for phase in phases:
        for each in phase.observers:
            since = {"commit": rows.committed, "topic": sent}
            found[each.name] = {name: percentiles(each.latencies(at, phase.counted)) for name, at in since.items()}
            controls[each.name] = _control(each, rows.committed, phase.counted)
    return {"rate": len(waited) / seconds / len(phases), "rows": len(waited), "targets": found, "controls": controls}


@dataclass(frozen=True)
class Phase:
    """What was watched, and the ids that count."""

    observers: list[Observer]
    counted: range


def _lanes(stack: EmbeddedStack, rows: Rows) -> Phase:
    """The daemon with a lane into each of its targets."""
    dsn, folder = stack.create_database("target", DATABASE), workspace("freshness")
    config = write_config(folder, (LAKE, POSTGRES), stack.bootstrap_servers, dsn, topic=TOPIC)
    observers = [
        Observer("delta", newest_in_delta(folder / "lake" / "rows"), DELTA_EVERY),
        Observer("pg", newest_in_postgres(dsn), PG_EVERY),
    ]
    with daemon(config, folder), watching(observers):
        return Phase(observers, rows.write(observers))


def _jdbc(stack: EmbeddedStack, rows: Rows) -> Phase:
    """The Debezium JDBC sink, once the daemon has ended: neither takes the processor from the other."""
    dsn = stack.create_database("target", f"{DATABASE}_jdbc")
    register(stack.rest, "jdbc-fresh", jdbc_config(stack, f"{DATABASE}_jdbc", TOPIC, "rows"), 120)
    observers = [Observer("jdbc", newest_in_postgres(dsn), PG_EVERY)]
    with watching(observers):
        counted = rows.write(observers)
    stack.rest.delete("jdbc-fresh")
    return Phase(observers, counted)


def _read_send_times(bootstrap: str, rows: int) -> dict[int, float]:
    """When the source connector sent each id, by the timestamps of its records: what came before is not the program's."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-fresh", "enable.auto.commit": "false"})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    sent: dict[int, float] = {}
    while len(sent) < rows:
        for message in consumer.consume(1000, 1.0):
            sent[json.loads(message.key())["payload"]["id"]] = message.timestamp()[1] / 1000
    consumer.close()
    return sent


def show(figures: dict[str, Any]) -> None:
    """Print what `measure` found."""
    print(f"{figures['rows']:,} rows at {figures['rate']:,.0f}/s; milliseconds until visible")
    print(f"{'target':<10}{'since':<10}{'p50':>8}{'p95':>8}{'p99':>8}{'max':>8}")
    for name, found in figures["targets"].items():
        for since, each in found.items():
            shown = (f"{each[p] * 1000:>8,.0f}" for p in ("p50", "p95", "p99", "max"))
            print(f"{name:<10}{since:<10}{''.join(shown)}")
    print("A/A control (median of the second half of the rows by the first): ", end="")
    print(", ".join(f"{name} {ratio:.2f}" for name, ratio in figures["controls"].items()))


def _control(observer: Observer, since: dict[int, float], counted: range) -> float:
    """The median of the second half of the rows, by that of the first."""
    middle = (counted.start + counted.stop) // 2
    halves = (range(counted.start, middle), range(middle, counted.stop))
    first, second = (percentiles(observer.latencies(since, half))["p50"] for half in halves)
    return second / first


def percentiles(values: list[float]) -> dict[str, float]:
    """Of sorted values."""
    last = len(values) - 1
    return {f"p{p}": values[round(last * p / 100)] for p in (50, 95, 99)} | {"max": values[last]}


class Rows:
    """The rows of the source: `rate` a second, one transaction each while the source keeps up. `committed`: when, by id."""

    def __init__(self, connection: psycopg.Connection, rate: int, seconds: float, warm_up: float) -> None:
        self._connection = connection
        self._rate = rate
        self._seconds = seconds
        self._warm_up = warm_up
        self.committed: dict[int, float] = {}

    def write(self, observers: list[Observer]) -> range:
        """Insert for a while, and wait until all is visible. The ids that count: those after a warm-up that every target
        has caught up with."""
        self._insert(len(self.committed) + 1)
        await_all(observers, len(self.committed), START_SECONDS)
        self._pace(self._warm_up)
        await_all(observers, len(self.committed), START_SECONDS)
        first = len(self.committed) + 1
        self._pace(self._seconds)
        await_all(observers, len(self.committed), LAST_SECONDS)
        return range(first, len(self.committed) + 1)

    def _pace(self, seconds: float) -> None:
        """A slow COMMIT is made up for by the rows of the next one."""
        began, before = time.time(), len(self.committed)
        while (passed := time.time() - began) < seconds:
            due = before + 1 + int(passed * self._rate)
            if due > len(self.committed):
                self._insert(due)
            time.sleep(max(0.0, began + (due - before) / self._rate - time.time()))

    def _insert(self, high: int) -> None:
        low = len(self.committed) + 1
        self._connection.execute(INSERT, (low, high))
        self.committed.update(dict.fromkeys(range(low, high + 1), time.time()))


def await_all(observers: list[Observer], highest: int, seconds: float) -> None:
    """Wait until every target has shown this id; RuntimeError after so many seconds."""
    deadline = time.time() + seconds
    while any(o.highest < highest for o in observers):
        if time.time() > deadline:
            behind = ", ".join(f"{o.name} at {o.highest}" for o in observers)
            raise RuntimeError(f"Row {highest} is not in every target after {seconds:.0f} s: {behind}.")
        time.sleep(0.05)


def newest_in_postgres(dsn: str) -> Callable[[], int]:
    """The highest id in the table, 0 before there is one."""
    connection = psycopg.connect(dsn, autocommit=True)

    def newest() -> int:
        try:
            row = connection.execute("SELECT max(id) FROM rows").fetchone()
        except psycopg.errors.UndefinedTable:
            return 0
        return int(row[0] or 0) if row else 0

    return newest


def newest_in_delta(path: Path) -> Callable[[], int]:
    """By the statistics in the log, which every reader of the table sees with the commit."""
    tables: list[DeltaTable] = []

    def newest() -> int:
        try:
            if not tables:
                tables.append(DeltaTable(str(path)))
            tables[0].update_incremental()
        except TableNotFoundError:
            return 0
        found = tables[0].get_add_actions(flatten=True)
        highest = found.column("max.id").to_pylist() if "max.id" in found.schema.names else []
        return max((h for h in highest if h is not None), default=0)

    return newest


@contextmanager
def daemon(config: Path, folder: Path) -> Iterator[None]:
    """The daemon, stopped at the end as an operator would."""
    log = folder / "daemon.log"
    with log.open("w") as out:
        command = [sys.executable, "-c", "from replicator.cli import main; main()", "run", "-c", str(config)]
        daemon = subprocess.Popen(command, cwd=PROJECT, stdout=out, stderr=out)
        try:
            yield
            daemon.terminate()
            if daemon.wait(60):
                raise RuntimeError(f"The daemon ended with code {daemon.returncode}:\n{log.read_text()[-3000:]}")
        finally:
            daemon.kill()
            daemon.wait()


@contextmanager
def watching(observers: list[Observer]) -> Iterator[None]:
    """Each looks in a thread of its own meanwhile."""
    stop = threading.Event()
    threads = [threading.Thread(target=o.watch, args=(stop,), daemon=True) for o in observers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
