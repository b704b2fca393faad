"""The shipped config on Spark: the same targets, with both engines in turns."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import psycopg
import pytest
from support.budget import LONG
from support.small_spark import SMALL

from adapters.stack.spark import spark_cluster

from .daemon import Daemon
from .shops import await_caught_up, await_equal, await_no_difference, list_log_differences, list_mirror_differences
from .stack import PROJECT, World
from .workload import Load

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(900)]

SPARK = ("--engine", "spark")
PATIENCE = 500.0
"""A JVM starts, and each table takes its moment."""


@pytest.fixture
def small(shop: World) -> World:
    """A world whose Spark leaves memory for the servers."""
    shop.overrides += [f"spark={json.dumps(SMALL)}"]
    return shop


def test_all_five_targets_equal_the_source(small: World) -> None:
    """In a long run, the checkpoint of the running query is deleted too. `tests/spark` covers this with one source."""
    world, scratch = small, small.folder / "scratch"
    scratch.mkdir()
    world.environment["TMPDIR"] = str(scratch)
    daemon = small.daemon(*SPARK)
    Load(world.source, (71, 72), 40, rest=0).finish()
    await_equal(world, daemon, seconds=PATIENCE)
    await_caught_up(world, daemon)
    pace = daemon.await_condition(lambda: (daemon.status() or {})["sources"][0]["pace"], "the pace of the stream is known")
    assert pace["batch_seconds"] > 0 and pace["lag_records"] is not None
    assert daemon.metrics()['replicator_spark_batch_duration_seconds{source="shop"}'] > 0
    if LONG:
        (checkpoint,) = scratch.glob("replicator-checkpoint-*")
        shutil.rmtree(checkpoint)
        Load(world.source, (75,), 10, rest=0).finish()
        await_equal(world, daemon, seconds=PATIENCE)
        await_caught_up(world, daemon)
    await_no_difference(
        lambda: list_log_differences(world), "both event logs are whole and add up to the source", daemon, 10
    )
    assert list_mirror_differences(world) == []
    assert world.dead_letters() == []
    assert all(lane["counts"]["rejected"] == 0 for lane in daemon.lanes().values())
    assert daemon.stop() == 0


@pytest.mark.long
def test_each_engine_resumes_after_the_other(small: World) -> None:
    """Nothing is applied twice or skipped when one engine resumes where the other was killed."""
    world = small
    load = Load(world.source, (73,), rest=0.5)
    for engine in ((), SPARK, ()):
        daemon = world.daemon(*engine)
        seen = load.committed
        daemon.await_condition(lambda seen=seen: load.committed > seen + 15, "there is load")  # type: ignore[misc]
        await_applied(daemon)
        with hold_target_back(world, daemon) if engine else nullcontext():
            daemon.kill()
    load.end()
    daemon = world.daemon(*SPARK)
    await_equal(world, daemon, seconds=PATIENCE)
    await_caught_up(world, daemon)
    await_no_difference(
        lambda: list_log_differences(world), "both event logs are whole and add up to the source", daemon, 10
    )
    assert daemon.stop() == 0


@contextmanager
def hold_target_back(world: World, daemon: Daemon) -> Iterator[None]:
    """Another session locks the target's table, so that the lake has a batch more than the target."""

    def get_position(lane: str) -> int:
        return sum(offset for partitions in daemon.lane(lane)["position"].values() for offset in partitions.values())

    with psycopg.connect(world.target) as holder:
        holder.execute("LOCK TABLE public.orders IN EXCLUSIVE MODE")
        daemon.await_condition(
            lambda: get_position("lake.orders") > get_position("target.orders"), "the lake is ahead of the target", PATIENCE
        )
        yield


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A master and two workers. Returns the master's address."""
    with spark_cluster(PROJECT, tmp_path / "cluster", 2) as master:
        yield master


@pytest.mark.long
def test_killed_executor_loses_and_doubles_nothing(small: World, cluster: str) -> None:
    world = small
    python, used = world.folder / "python", world.folder / "python-was-used"
    python.write_text(f'#!/bin/sh\ntouch {used}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    on_cluster = {**SMALL, "spark.master": cluster, "spark.executor.memory": "600m", "spark.pyspark.python": str(python)}
    world.overrides[-1] = f"spark={json.dumps(on_cluster)}"
    to = [{"sink": sink} for sink in ("raw", "lake", "target")]
    world.rewrite_config({"tables": [{"match": "public.*", "source": "shop", "to": to}]})
    load = Load(world.source, (74,), rest=1)
    daemon = world.daemon(*SPARK)
    await_applied(daemon)
    executors = list_executors(daemon)
    assert len(executors) == 2
    assert used.exists(), "executors run the Python that the config names"
    executors[0].kill()
    seen = load.committed
    daemon.await_condition(lambda: load.committed > seen + 10, "there is load")
    load.end()
    await_equal(world, daemon, mirrors=("lake", "target"), seconds=PATIENCE)
    await_caught_up(world, daemon)
    await_no_difference(
        lambda: list_log_differences(world, logs=("raw",)), "the event log is whole and adds up to the source", daemon, 10
    )
    assert executors[1].is_running()
    assert daemon.stop() == 0


def list_executors(daemon: Daemon) -> list[psutil.Process]:
    """The executors of this daemon. Their command line contains a port of its process, where it receives their
    messages."""
    drivers = {c.laddr.port for p in list_processes(daemon) for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    return [
        p
        for p in psutil.process_iter(["cmdline"])
        if any("CoarseGrainedExecutorBackend" in part for part in p.info["cmdline"] or ())
        and any("@" in part and part.endswith(f":{port}") for port in drivers for part in p.info["cmdline"])
    ]


def list_processes(daemon: Daemon) -> list[psutil.Process]:
    me = psutil.Process(daemon.process.pid)
    return [me, *me.children(recursive=True)]


def await_applied(daemon: Daemon) -> None:
    """Waits until this run has applied changes."""
    daemon.await_condition(lambda: (daemon.lane("lake.orders").get("counts") or {}).get("applied"), "it applies", PATIENCE)
