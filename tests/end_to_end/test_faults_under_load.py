"""Faults of four kinds at random times of one load: in the end every target equals the source."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.accounting import count_unaccounted
from support.registered_source import register_source

from .appended import Change, to_change
from .compare import index_by_key, list_differences, read_lake_table, read_postgres_table
from .daemon import Daemon, await_condition
from .faults import PATIENCE, Faults, keep_running
from .histories import find_overlaps, read_versions
from .newer_postgres import NEWER, SMALL, start_newer_server
from .shops import await_caught_up, list_log_differences, list_topic_differences, read_source_rows
from .stack import TABLES, World, fetch_rows
from .topics import Record
from .workload import Load, copy_customers, swap_products

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("REPLICATOR_KILLS", "40"))
SEED = int(os.environ.get("REPLICATOR_SEED", "20240229"))
CURRENT = ("lake", "target", "target_whole")
HISTORIES = ("lake_history", "target_history")
CHANGELOGS = ("lake_changes", "target_changes")
POLICIES = {**dict.fromkeys(CURRENT, "scd1"), **dict.fromkeys(HISTORIES, "scd2"), **dict.fromkeys(CHANGELOGS, "append")}


# -- the pipeline ------------------------------------------------------------------------------------------------------


def configure(world: World) -> None:
    """Every table in a target of each policy and in event logs, and again with whole transactions."""
    marks = f"{world.prefix}.transaction"
    topics = f"{world.prefix}.public.*"
    world.overrides[0] = f'sources.shop.topics=["{topics}"]'
    source = {"format": "debezium_json", "transport": "kafka", "bootstrap_servers": world.stack.bootstrap_servers}
    whole = {**source, "topics": [topics, marks], "group_id": f"{world.prefix}-whole", "transactions": {"topic": marks}}
    sinks: dict[str, Any] = {
        "raw": {"kind": "event_log", "path": "./deltalake/cdc_events"},
        "raw_pg": {"kind": "event_log", "dsn": world.datalake},
    }
    for sink in POLICIES:
        server, _, schema = sink.partition("_")
        delta = {"kind": "delta", "path": str(world.lake / schema)}
        sinks[sink] = delta if server == "lake" else {"kind": "postgres", "dsn": world.target, "schema": schema or "public"}
    entries = [{"sink": sink, "policy": policy} for sink, policy in POLICIES.items() if not sink.endswith("_whole")]
    world.rewrite_config(
        {
            "sources": {"shop": {**source, "topics": [topics], "group_id": world.prefix}, "whole": whole},
            "sinks": sinks,
            "tables": [
                {"match": "public.*", "source": "shop", "to": [{"sink": "raw"}, {"sink": "raw_pg"}, *entries]},
                {"match": "public.*", "source": "whole", "to": [{"sink": "target_whole"}]},
            ],
        }
    )


def read_table(world: World, sink: str, table: str) -> list[dict[str, Any]]:
    server, _, schema = sink.partition("_")
    if server == "lake":
        return read_lake_table(world.lake / schema / table)
    return read_postgres_table(world.target, schema or "public", table)


@contextmanager
def watch_connector(world: World) -> Iterator[None]:
    """Restarts the connector whenever it has failed."""
    end, failures = threading.Event(), list[BaseException]()

    def watch() -> None:
        try:
            while not end.wait(3):
                keep_running(world)
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(120)
    assert not failures and not thread.is_alive(), failures


# -- what must hold at the end -----------------------------------------------------------------------------------------


def list_target_differences(world: World) -> list[str]:
    """Differences of current states, and of the open versions of histories, from the source."""
    lines: list[str] = []
    for table in TABLES:
        expected = read_source_rows(world, table)
        for sink in (*CURRENT, *HISTORIES):
            found = [row for row in read_table(world, sink, table) if row.get("_cdc_end_seq_1") is None]
            lines += [f"{sink}.{table}: {line}" for line in list_differences(expected, index_by_key(found, "id"))]
    return lines


def list_history_differences(world: World, records: Sequence[Record]) -> list[str]:
    """Overlapping versions, and differences of the histories from the topics."""
    lines: list[str] = []
    for table in TABLES:
        expected = read_versions(records, world.topic(table))
        for sink in HISTORIES:
            found = read_table(world, sink, table)
            lines += [f"{sink}.{table}: {line}" for line in find_overlaps(found)]
            lines += [f"{sink}.{table}: {d}" for d in list_differences(expected, index_by_key(found, "id", "_cdc_seq_2"))]
    return lines


def list_change_differences(world: World, records: Sequence[Record]) -> list[str]:
    """Changes that a target lacks, has twice or has in excess. Each change counts once, even if it was sent again."""
    lines: list[str] = []
    for table in TABLES:
        sent: set[Change] = {to_change(r.payload) for r in records if r.payload and r.topic == world.topic(table)}
        for sink in CHANGELOGS:
            has = Counter((row["_cdc_op"], row["id"], row["_cdc_seq_2"]) for row in read_table(world, sink, table))
            lines += [f"{sink}.{table} lacks {change}" for change in sent - set(has)]
            lines += [f"{sink}.{table} has {change} {times} times" for change, times in has.items() if times > 1]
            lines += [f"{sink}.{table} has {change}, which was not sent" for change in set(has) - sent]
    return lines[:20]


def find_unaccounted(world: World, daemon: Daemon) -> list[str]:
    """The sinks whose lanes count some read records twice or not at all."""
    status, metrics, lines = world.get_result("status"), daemon.page("/metrics"), []
    for source in status["sources"]:
        assert source["records"] > 0
        for sink in (sink for sink in POLICIES if sink.endswith("_whole") == (source["name"] == "whole")):
            left = count_unaccounted({**status, "sources": [source]}, metrics, sink)[source["name"]]
            lines += [f"{sink}: {left} of {source['name']}"] if left != (0, 0) else []
    return lines


def await_sent(world: World, daemon: Daemon) -> None:
    """Waits until the topics and every lane have all written rows."""
    email = f"{time.time_ns()}@example.com"
    world.execute("INSERT INTO customers (first_name, last_name, email) VALUES ('last', 'one', %s)", email)
    topic = [world.topic("customers")]
    await_condition(
        lambda: any(email.encode() in (r.value or b"") for r in world.topics.read(topic)), "all is in the topics", PATIENCE
    )
    await_caught_up(world, daemon, seconds=PATIENCE)


def restart_daemon(world: World, daemon: Daemon) -> Daemon:
    """Starts another daemon, with no lane behind the others: it reads every record once for all lanes."""
    assert daemon.stop() == 0
    return world.daemon()


@pytest.mark.skipif(not NEWER, reason="needs PostgreSQL 17 or newer")
@pytest.mark.parametrize("kills", [KILLS])
@pytest.mark.parametrize("seed", [SEED])  # A parameter, so that reports name it; REPLICATOR_SEED sets it.
def test_every_target_equals_the_source_after_random_faults(world: World, tmp_path: Path, seed: int, kills: int) -> None:
    first = seed % 1000
    with start_newer_server(world, tmp_path / "newer") as port:
        world.create_shop()
        world.connectors.add(world.prefix)
        register_source(world.stack, world.prefix, world.prefix, database__port=str(port), **SMALL)
        await_condition(lambda: len(world.topics.names(f"{world.prefix}.public.")) == len(TABLES), "there are topics")
        configure(world)
        faults = Faults(world, seed, kills, world.daemon())
        load = Load(world.source, (first, first + 1, first + 2), rest=0.2)
        bulk = Load(world.source, (first + 3,), rest=10, changes=(copy_customers, swap_products))
        with watch_connector(world):
            faults.run()
            committed = load.end() + bulk.end()
            await_sent(world, faults.daemon)
            daemon = restart_daemon(world, faults.daemon)
            committed += Load(world.source, (first + 4,), transactions=50).finish()
            await_sent(world, daemon)
        records = world.topics.read([world.topic(table) for table in TABLES])
        print(f"seed {seed}: {dict(faults.done)}, {committed} transactions, {len(records)} records")
        assert list_topic_differences(world) == []
        assert list_target_differences(world) == []
        assert list_log_differences(world) == []
        assert list_history_differences(world, records) == []
        assert list_change_differences(world, records) == []
        assert find_unaccounted(world, daemon) == []
        assert world.dead_letters() == []
        daemon.await_running()
        assert fetch_rows(world.target, "SELECT exact, behind FROM _replicator.transactions") == [(True, [])]
        assert daemon.stop() == 0
        world.stack.rest.delete(world.connector)
