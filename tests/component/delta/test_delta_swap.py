"""Swap of a rebuilt table: killed at any step, read at any time, with its side tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.delta_writes import ITEMS, PARTITION_0, make_changes, make_item_changes, make_write

from adapters.delta import commits, table_writer
from adapters.delta.folders import LocalFolder
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.sink import DeltaRsSink
from adapters.sinks.delta.table_swap import SWAP_MARK
from replicator.domain.errors import DataLoss, Fatal, Fenced
from replicator.domain.policy.plan import LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position, Span
from replicator.domain.schema_evolution import SchemaVersion
from replicator.domain.table import Column, TableSpec
from replicator.ports.frames import Lane, Write
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")
ANEW = replace(LANE, id=f"{LANE.id}__replay", into=f"{LANE.into}__replay")
OLD = [*make_item_changes(1, 2, v="old"), *make_item_changes(5, v="old")]
NEW = [*make_item_changes(1, 2, 3, v="new"), *make_item_changes(3, op="d"), *make_item_changes(5, 6, v="new")]
FIRST = SchemaVersion(1, ITEMS, ITEMS.columns, Position(), datetime(2026, 3, 1, tzinfo=UTC))
LATE = {"old": [(1, "old"), (2, "old"), (5, "old")], "new": [(1, "new"), (2, "new"), (5, "new"), (6, "new")]}


class Killed(BaseException):
    """A kill: no code catches it."""


def build_sinks(path: Path, lane: Lane = LANE) -> DeltaRsSink:
    """A sink with the lane's table, of an older policy, and the rebuilt table, which has a delete."""
    sink = DeltaRsSink({"path": str(path)})
    for one, rows in ((lane, OLD), (to_rebuilt_lane(lane), NEW)):
        sink.prepare(one, plan_for(one.policy, ITEMS))
        sink.apply([make_write(rows, lane=one)], refuse_rejects)
    sink.remember(to_rebuilt_lane(lane), FIRST)
    return sink


def to_rebuilt_lane(lane: Lane) -> Lane:
    return replace(lane, id=ANEW.id, into=ANEW.into)


def rows(path: Path) -> list[tuple[int, str]]:
    found = DeltaTable(str(path / LANE.into)).to_pyarrow_table()
    return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def take_rebuilt_state(_: LaneState | None, rebuilt: LaneState) -> LaneState:
    return rebuilt


def make_out_of_band_write(lane: Lane, sequence: int) -> Write[pa.Table]:
    """A row of key 3 outside the stream, with this sequence."""
    plan = plan_for(lane.policy, ITEMS)
    changes = make_changes(make_item_changes(3, v="back"), sequence)
    return Write(lane, plan, LocalEngine().fold(changes, plan), Span(Position(), Position()), out_of_band=True)


def test_rows_state_and_tombstones_are_swapped(tmp_path: Path) -> None:
    sink = build_sinks(tmp_path)
    state = sink.state(ANEW)
    assert sink.swap(LANE, ANEW, take_rebuilt_state) == state == sink.state(LANE) and rows(tmp_path) == LATE["new"]
    assert [version.number for version in sink.schemas(LANE)] == [1]
    sink.drop(ANEW)
    assert sink.tables() == [LANE.into] and rows(tmp_path) == LATE["new"]
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    # The write is older than the delete, which only the rebuilt table had.
    done = sink.apply([make_out_of_band_write(LANE, 2)], refuse_rejects)[LANE.id]
    assert done.counts.superseded == 1 and rows(tmp_path) == LATE["new"]
    sink.apply([make_write(make_item_changes(9), len(NEW), lane=LANE)], refuse_rejects)
    assert (9, "v9") in rows(tmp_path)
    sink.close()


def patch_steps(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """Calls `step` before and after each write of a swap."""

    def wrap_call(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **named: Any) -> Any:
            step()
            done = real(*args, **named)
            step()
            return done

        monkeypatch.setattr(owner, name, call)

    for name in ("put", "claim", "drop", "clear"):
        wrap_call(LocalFolder, name)
    wrap_call(table_writer, "write_deltalake")
    wrap_call(commits, "write_deltalake")


def test_killed_swap_leaves_the_old_or_the_new_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any step. The state decides which table is current, and the next instance finds its side tables."""
    seen = set()
    for after in count():
        path = tmp_path / str(after)
        sink = build_sinks(path)
        old, new = sink.state(LANE), sink.state(ANEW)
        left = count(after, -1)

        def step(left: Any = left) -> None:
            if not next(left):
                raise Killed

        with monkeypatch.context() as patched:
            patch_steps(patched, step)
            try:
                sink.swap(LANE, ANEW, take_rebuilt_state)
                ended = True
            except Killed:
                ended = False
        sink.close()
        again = DeltaRsSink({"path": str(path)})
        found = again.state(LANE)
        which = "old" if found == old else "new"
        seen.add(which)
        assert which == "old" or replace(found or LaneState(), copied_from="") == new
        assert rows(path) == LATE[which], after
        if after % 2:
            again.swap(LANE, ANEW, take_rebuilt_state)
            which = "new"
        again.prepare(LANE, plan_for("scd1", ITEMS))
        assert again.state(LANE) == (old if which == "old" else new)
        done = again.apply([make_out_of_band_write(LANE, 2)], refuse_rejects)[LANE.id]
        assert done.counts.superseded == (which == "new"), after
        again.close()
        if ended:
            break
    assert after > 12 and seen == {"old", "new"}
    assert not list(tmp_path.rglob(SWAP_MARK))


def test_reader_sees_the_old_rows_or_the_new_ones(tmp_path: Path) -> None:
    sink = build_sinks(tmp_path)
    found, stop = set(), threading.Event()

    def read_rows() -> None:
        while not stop.is_set():
            found.add(tuple(rows(tmp_path)))

    reader = threading.Thread(target=read_rows)
    reader.start()
    try:
        sink.swap(LANE, ANEW, take_rebuilt_state)
    finally:
        stop.set()
        reader.join()
    sink.close()
    assert found <= {tuple(LATE["old"]), tuple(LATE["new"])}


def test_swap_changes_columns_and_policy(tmp_path: Path) -> None:
    """Both as in the current config."""
    table = TableSpec("public.items", (Column("id", pa.int32()), Column("w", pa.string())), ("id",), 1)
    history = replace(ANEW, policy="scd2")
    sink = DeltaRsSink({"path": str(tmp_path)})
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    sink.apply([make_write(OLD, lane=LANE)], refuse_rejects)
    sink.prepare(history, plan_for("scd2", table))
    changes = [("c", {"id": 1, "w": "a"}), ("u", {"id": 1, "w": "b"}), ("d", {"id": 1, "w": None})]
    sink.apply([make_write(changes, table=table, lane=history)], refuse_rejects)
    wanted = sink.read(ANEW.into)
    sink.swap(LANE, history, take_rebuilt_state)
    sink.drop(history)
    found = sink.read(LANE.into)
    assert found.schema == wanted.schema and found.num_rows == 2
    now = replace(LANE, policy="scd2")
    sink.prepare(now, plan_for("scd2", table))
    sink.apply([make_write([("c", {"id": 1, "w": "c"})], 3, table=table, lane=now)], refuse_rejects)
    assert sorted(sink.read(LANE.into)["w"].to_pylist()) == ["a", "b", "c"]
    sink.close()


def test_refused_swap_changes_nothing(tmp_path: Path) -> None:
    """A table that existed before, a refused state, and a fenced instance."""
    write_deltalake(str(tmp_path / LANE.into), pa.table({"id": [7], "v": ["theirs"]}))
    sink = build_sinks(tmp_path)
    with pytest.raises(Fatal, match="existed before"):
        sink.swap(LANE, ANEW, take_rebuilt_state)
    assert (7, "theirs") in rows(tmp_path) and not list(tmp_path.rglob(SWAP_MARK))
    sink.close()

    def refuse(*_: Any) -> LaneState:
        raise DataLoss("no")

    other = tmp_path / "other"
    sink = build_sinks(other)
    with pytest.raises(DataLoss, match="no"):
        sink.swap(LANE, ANEW, refuse)
    second = DeltaRsSink({"path": str(other)})
    with pytest.raises(Fenced):
        second.swap(LANE, ANEW, take_rebuilt_state)
    assert (
        rows(other) == LATE["old"]
        and not list(other.rglob(SWAP_MARK))
        and sink.state(LANE).position[PARTITION_0] == len(OLD)
    )
    second.close()
    sink.close()
