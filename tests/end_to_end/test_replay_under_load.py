"""`replicator replay` of targets while their lanes run, rows change, and others read the targets."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from .compare import read_lake_table, read_postgres_table
from .daemon import await_condition
from .shops import await_no_difference
from .stack import World, execute_statements, fetch_rows
from .test_incremental_snapshot import Clerk

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

ROWS, MOVING = 4_000, 1_000
"""The clerk changes rows up to MOVING; the others stay."""
CREATE = f"""
CREATE TABLE items (id int PRIMARY KEY, note text, turn int);
INSERT INTO items SELECT i, 'as it was', 0 FROM generate_series(1, {ROWS}) i"""
STILL = ROWS - MOVING
SPOILT = f"UPDATE changes SET note = 'spoilt' WHERE id > {MOVING}"
COUNTED = f"SELECT count(*) FILTER (WHERE note = 'spoilt'), count(*) FROM changes WHERE id > {MOVING}"
ANEW = "changes__replay"
PATIENCE = 240.0
Seen = tuple[int, int]
"""The number of spoilt rows, and of all rows, among those that no writer moves."""


class Reader:
    """Reads a target all the time."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self.looks, self.seen = 0, [look()]
        self.failures: list[BaseException] = []
        self._look, self._end = look, threading.Event()
        self._thread = threading.Thread(target=self._read_rows, daemon=True)
        self._thread.start()

    def _read_rows(self) -> None:
        try:
            while not self._end.wait(0.01):
                self.looks += 1
                if (found := self._look()) != self.seen[-1]:
                    self.seen.append(found)
        except BaseException as failure:
            self.failures.append(failure)

    def end(self) -> list[Seen]:
        """The results of all reads, in order."""
        self._end.set()
        self._thread.join(60)
        assert not self._thread.is_alive() and not self.failures, self.failures
        return self.seen


def count_in_lake(world: World) -> Seen:
    table = DeltaTable(str(world.lake / "changes")).to_pyarrow_table(columns=["id", "note"])
    still = table.filter(pc.greater(table["id"], MOVING))
    return pc.sum(pc.equal(still["note"], "spoilt")).as_py(), still.num_rows


def count_in_postgres(world: World) -> Seen:
    ((spoilt, there),) = fetch_rows(world.target, COUNTED)
    return spoilt, there


def spoil_rows(world: World, sink: str) -> None:
    """Writes values that only a replay corrects. The lane may write the lake's table at the same time."""
    if sink != "lake":
        execute_statements(world.target, SPOILT)
        return

    def try_to_spoil() -> bool:
        try:
            DeltaTable(str(world.lake / "changes")).update({"note": "'spoilt'"}, predicate=f"id > {MOVING}")
        except CommitFailedError:
            return False
        return True

    await_condition(try_to_spoil, "the lake's table is spoilt")


def count_rebuilt_rows(world: World, sink: str) -> int:
    """The number of rows in the table that will replace the lane's table."""
    if sink == "lake":
        return len(read_lake_table(world.lake / ANEW))
    (there,) = fetch_rows(world.target, "SELECT to_regclass(%s)::text", ANEW)[0]
    return int(fetch_rows(world.target, f"SELECT count(*) FROM {ANEW}")[0][0]) if there else 0


def kill_replay_half_way(world: World, sink: str) -> int:
    """The number of rows that a replay had written when it was killed."""
    command = world.arguments("replay", "public.items", "--lane", f"{sink}.changes", "--json")
    with (world.folder / f"killed-{sink}.log").open("wb") as log:
        going = subprocess.Popen(
            command, cwd=world.folder, env=world.environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            what = f"some rows of {sink} are rebuilt"
            await_condition(lambda: count_rebuilt_rows(world, sink), what, PATIENCE, failing=lambda: _describe_end(going))
        finally:
            going.kill()
            going.wait(60)
    return count_rebuilt_rows(world, sink)


def _describe_end(going: subprocess.Popen[bytes]) -> str:
    return "" if going.poll() is None else f"it ended with {going.returncode}"


def run_replay(world: World, sink: str) -> dict[str, Any]:
    """The answer of a replay that runs to its end."""
    done = subprocess.run(
        world.arguments("replay", "public.items", "--lane", f"{sink}.changes", "--json"), cwd=world.folder,
        env=world.environ, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout)["result"])


def list_event_differences(world: World, sink: str) -> list[str]:
    """Changes that the target lacks or has twice."""
    sent = world.topics.read([world.topic("items")])
    expected = Counter(f"{r.topic}-{r.partition}-{r.offset}" for r in sent if r.value is not None)
    if not expected:
        return ["the connector has sent nothing"]
    of_lake = sink == "lake"
    there = read_lake_table(world.lake / "changes") if of_lake else read_postgres_table(world.target, "public", "changes")
    has = Counter(row["_event_id"] for row in there)
    lines = [f"lacks {sorted(expected - has)[:5]}"] if expected - has else []
    return lines + ([f"has too often {sorted(has - expected)[:5]}"] if has - expected else [])


@pytest.mark.parametrize("sink", ["target", "lake"])
def test_killed_and_repeated_replay_applies_every_change_once(world: World, sink: str) -> None:
    """A reader always sees the old table or the new one."""
    world.execute(CREATE)
    world.overrides[0] = f'sources.shop.topics=["{world.topic("items")}"]'
    world.overrides += ["limits.batch_bytes=256KiB", "limits.memory=2MiB"]  # So that it takes several commits.
    lanes = [{"sink": "raw"}, {"sink": sink, "into": "changes", "policy": "append"}]
    world.rewrite_config({"tables": [{"match": "public.items", "source": "shop", "to": lanes}]})
    world.register()
    daemon = world.daemon()
    look = partial(count_in_lake if sink == "lake" else count_in_postgres, world)
    await_no_difference(
        lambda: list_event_differences(world, sink) or ["rows"] * (look()[1] < STILL), "the snapshot is there", daemon
    )
    spoil_rows(world, sink)
    reader = Reader(look)
    with Clerk(world.source):
        half = kill_replay_half_way(world, sink)
        assert 0 < half < ROWS
        said = run_replay(world, sink)
        log = len(read_lake_table(world.lake / "cdc_events"))
        assert said["rejected"] == 0 and 0 < said["records"] <= log - half, (said, half, log)
        time.sleep(0.5)  # The lane goes on.
    assert reader.end() == [(STILL, STILL), (0, STILL)] and reader.looks > 10
    await_no_difference(lambda: list_event_differences(world, sink), "every change is there once", daemon)
    daemon.await_running()
    assert world.dead_letters() == []
    assert count_rebuilt_rows(world, sink) == 0
    assert daemon.stop() == 0
