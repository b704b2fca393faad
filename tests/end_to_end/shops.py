"""The four tables in the five targets of the shipped config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import compare
from .compare import Row, Rows
from .daemon import Daemon, await_condition
from .stack import TABLES, World

MIRRORS = ("lake", "datalake", "target")
LOGS = ("raw", "raw_pg")


def read_source_rows(world: World, table: str, *keys: str, schema: str = "public") -> Rows:
    return compare.index_by_key(compare.read_postgres_table(world.source, schema, table), *(keys or ("id",)))


def read_mirror_table(world: World, mirror: str, table: str) -> list[dict[str, Any]]:
    """The rows of a table in the shipped config's sink of that name."""
    if mirror == "lake":
        return compare.read_lake_table(world.lake / table)
    dsn, schema = (world.datalake, "cdc_processed") if mirror == "datalake" else (world.target, "public")
    return compare.read_postgres_table(dsn, schema, table)


def read_mirror_rows(world: World, mirror: str, table: str, *keys: str) -> Rows:
    return compare.index_by_key(read_mirror_table(world, mirror, table), *(keys or ("id",)))


def read_log_rows(world: World, log: str) -> Sequence[Row]:
    if log == "raw":
        return compare.read_lake_table(world.lake / "cdc_events")
    return compare.read_postgres_table(world.datalake, "cdc_raw", "cdc_events", f"topic LIKE '{world.prefix}.%'")


def list_mirror_differences(world: World, tables: Sequence[str] = TABLES, mirrors: Sequence[str] = MIRRORS) -> list[str]:
    """Every difference between the source and the mirrors. Empty if all are equal."""
    lines: list[str] = []
    for table in tables:
        expected = read_source_rows(world, table)
        for mirror in mirrors:
            lines += [
                f"{mirror}.{table}: {d}" for d in compare.list_differences(expected, read_mirror_rows(world, mirror, table))
            ]
    return lines


def list_log_differences(world: World, tables: Sequence[str] = TABLES, logs: Sequence[str] = LOGS) -> list[str]:
    """Each event log must have every record once and unchanged, and its replay must equal the source's tables."""
    records = world.topics.read(world.topics.names(f"{world.prefix}."))
    lines: list[str] = []
    for log in logs:
        found = read_log_rows(world, log)
        wanted = [r for r in records if r.topic.startswith(f"{world.prefix}.public.")]
        lines += [f"{log}: {line}" for line in compare.list_log_errors(found, wanted)]
        for table in tables if not lines else ():
            rows = compare.replay_log(found, world.topic(table))
            lines += [f"{log}, {table}: {d}" for d in compare.list_differences(read_source_rows(world, table), rows)]
    return lines


def list_topic_differences(world: World, tables: Sequence[str] = TABLES) -> list[str]:
    """Differences between the source and the replayed topics. They are no fault of a target."""
    log = list(compare.to_log_records(world.topics.read([world.topic(table) for table in tables])))
    lines: list[str] = []
    for table in tables:
        rows = compare.replay_log(log, world.topic(table))
        lines += [f"topic, {table}: {d}" for d in compare.list_differences(read_source_rows(world, table), rows)]
    return lines


def await_no_difference(found: Callable[[], list[str]], what: str, daemon: Daemon, seconds: float = 120) -> None:
    """Waits until there is no difference. A failure shows the last differences."""
    last: list[str] = []

    def none() -> bool:
        last[:] = found()
        return not last

    try:
        daemon.await_condition(none, what, seconds)
    except AssertionError as failed:
        lanes = describe_lanes(daemon)
        raise AssertionError("\n".join([*lanes, daemon.abort(), str(failed), *last])) from None


def describe_lanes(daemon: Daemon) -> list[str]:
    """The daemon's report of its lanes, one line each."""
    return [
        f"{name}: {lane['status']}, lag {lane['lag_records']}, at {lane['position']} {lane['error'] or ''}"
        for name, lane in daemon.lanes().items()
    ]


def await_equal(
    world: World, daemon: Daemon, tables: Sequence[str] = TABLES, mirrors: Sequence[str] = MIRRORS, seconds: float = 120
) -> None:
    try:
        await_no_difference(
            lambda: list_mirror_differences(world, tables, mirrors), "every mirror equals the source", daemon, seconds
        )
    except AssertionError as failed:
        rejects = [f"dead letter: {one['error']} of {one['event_id']}" for one in world.dead_letters()]
        ends = f"the topics end at {world.topics.ends([world.topic(table) for table in tables])}"
        raise AssertionError("\n".join([str(failed), *rejects, ends, *list_topic_differences(world, tables)])) from None


def await_snapshot(world: World) -> None:
    """Waits until the topics contain all rows of the tables."""
    await_condition(lambda: not list_topic_differences(world), "the topics hold the snapshot")


def await_caught_up(world: World, daemon: Daemon, lanes: Sequence[str] = (), seconds: float = 120) -> None:
    """Waits until all lanes, or those named, are at the current end of the topics."""

    def missing() -> list[str]:
        ends = world.topics.ends(world.topics.names(f"{world.prefix}.public."))
        found = daemon.lanes()
        chosen: Mapping[str, Any] = {name: found.get(name) for name in lanes} if lanes else found
        lines = [] if found else ["no lane is reported"]
        for name, lane in chosen.items():
            for (topic, partition), end in ends.items():
                at = (lane or {"position": {}})["position"].get(topic, {}).get(str(partition))
                mine = lane is not None and (lane["policy"] == "event_log" or topic.endswith(f".{lane['table']}"))
                lines += [f"{name} is at {at} of {end} in {topic}-{partition}"] if mine and at != end else []
        return lines

    await_no_difference(missing, "every lane is at the end", daemon, seconds)
