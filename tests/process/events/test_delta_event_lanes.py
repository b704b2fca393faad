"""Lanes of the event store in a Delta table, beyond the contract: races, kills and compaction."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from paths import PROJECT
from support.event_writers import read_written_versions, start_event_writer, start_writing
from support.races import run_before

from adapters.engines.local import LocalEngine
from adapters.sinks.delta import event_store as module
from adapters.sinks.delta.event_store import DeltaEventLanes, DeltaEventStore, EventNumbering
from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.testing.event_lanes_contract import OutboxRecords, SentEvent, make_sample_event, refuse_gaps
from replicator.testing.sink_base import refuse_rejects

ENGINE = LocalEngine()
SPREAD = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "events"


def open_lanes(folder: Path) -> DeltaEventLanes:
    return DeltaEventLanes({"path": str(folder), "compact_every": 16})


def apply_write(sink, write):
    sink.prepare(write.lane, write.plan)
    return sink.apply([write], refuse_rejects)[write.lane.id].counts


def test_concurrent_append_is_seen_by_the_commit(folder):
    """The sink reads ids and versions again."""
    outbox = OutboxRecords({0: [SentEvent(n) for n in range(4)]})
    sink, store = open_lanes(folder), DeltaEventStore({"path": str(folder)})
    apply_write(sink, outbox.make_write(ENGINE, 0, 1))

    def once(*events):
        run_before(EventNumbering, "_append_operation", partial(store.append, events))

    once(make_sample_event(0))
    assert apply_write(sink, outbox.make_write(ENGINE, 1, 2)).applied == 1
    once(make_sample_event(0, event_id="sent-2"))
    counts = apply_write(sink, outbox.make_write(ENGINE, 2, 4))
    assert (counts.applied, counts.duplicate) == (1, 1)
    found = store.read("order", "A1")
    assert [e.event_id for e in found] == ["sent-0", "emitted-0", "sent-1", "sent-2", "sent-3"]
    refuse_gaps(found)


def test_append_by_a_program_sees_the_events_of_the_lane(folder):
    outbox = OutboxRecords({0: [SentEvent(n) for n in range(2)]})
    sink, store = open_lanes(folder), DeltaEventStore({"path": str(folder)})
    store.append([make_sample_event(0)])

    run_before(store, "_write", lambda: apply_write(sink, outbox.make_write(ENGINE, 0, 2)))
    assert store.append([make_sample_event(1)])[0].event.event_version == 4
    refuse_gaps(store.read("order"))


def test_commit_has_the_transactions_of_lane_and_store(folder):
    """By the store's transaction, Spark refuses concurrent appends. Only commits with events have it."""
    outbox = OutboxRecords({0: [SentEvent(0), SentEvent(0), SentEvent(1)]})
    sink = open_lanes(folder)
    for number in range(3):
        apply_write(sink, outbox.make_write(ENGINE, number, number + 1))
    table = DeltaTable(folder)
    assert table.transaction_version("replicator/events") == 2
    assert table.transaction_version("replicator/testing/event_store.order") == 3
    log = [json.loads(line) for line in (folder / "_delta_log" / f"{1:020}.json").read_text().splitlines()]
    assert len([one for one in log if "txn" in one]) == 2 and any("add" in one for one in log)


def test_commit_with_an_unknown_outcome(folder, monkeypatch):
    """If the commit exists, it counts. If not, nothing is stored and the position stays."""
    outbox = OutboxRecords({0: [SentEvent(n) for n in range(3)]})
    sink, store = open_lanes(folder), DeltaEventStore({"path": str(folder)})
    apply_write(sink, outbox.make_write(ENGINE, 0, 1))
    write = write_deltalake

    def lose_answer(*args, **kwargs):
        write(*args, **kwargs)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "write_deltalake", lose_answer)
    assert apply_write(sink, outbox.make_write(ENGINE, 1, 2)).applied == 1

    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_deltalake", refuse)
    with pytest.raises(ReplicatorError, match="ENOSPC"):
        apply_write(sink, outbox.make_write(ENGINE, 2, 3))
    assert len(store.read("order")) == 2 and sink.state(outbox.lane).position == outbox.make_write(ENGINE, 1, 2).span.end
    monkeypatch.setattr(module, "write_deltalake", write)
    assert apply_write(sink, outbox.make_write(ENGINE, 2, 3)).applied == 1
    refuse_gaps(store.read("order"))


def test_folder_of_another_table_is_refused(folder):
    write_deltalake(folder, pa.table({"event_id": ["x"]}))
    write = OutboxRecords({0: [SentEvent(0)]}).make_write(ENGINE, 0, 1)
    with pytest.raises(ConfigProblem, match="another table"):
        open_lanes(folder).prepare(write.lane, write.plan)


def test_compaction_keeps_every_event(folder):
    outbox = OutboxRecords({0: [SentEvent(n, f"A{n % 3}") for n in range(40)]})
    sink, store = open_lanes(folder), DeltaEventStore({"path": str(folder)})
    for number in range(40):
        apply_write(sink, outbox.make_write(ENGINE, number, number + 1))
    assert len(DeltaTable(folder).file_uris()) < 30
    found = store.read("order")
    assert len(found) == 40
    refuse_gaps(found)


LANE = """
import json, os, sys
from adapters.engines.local import LocalEngine
from adapters.sinks.delta.event_store import DeltaEventLanes, EventNumbering
from replicator.domain.errors import Retryable
from replicator.testing.sink_base import refuse_rejects
from replicator.testing.event_lanes_contract import OutboxRecords, SentEvent
path, count, steps = json.loads(sys.argv[1])
engine, outbox = LocalEngine(), OutboxRecords({0: [SentEvent(n, "C101", "Customer") for n in range(count)]})
sink = DeltaEventLanes({"path": path, "compact_every": 5})
left = [steps]

def step(*_):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), 9)

from adapters.delta import commits
from adapters.sinks.delta import event_store
def stepped(owner, name):
    call = getattr(owner, name)
    def wrapped(*args, **kwargs):
        step()
        done = call(*args, **kwargs)
        step()
        return done
    setattr(owner, name, wrapped)
stepped(commits.PositionFiles, "announce")
stepped(event_store, "write_deltalake")
stepped(event_store, "sync_table")
state = sink.state(outbox.lane)
at = state.position[outbox.get_partition(0)] if state else 0
print("ready", flush=True)
sys.stdin.readline()
while at < count:
    write = outbox.make_write(engine, max(0, at - 1), min(count, at + 2))
    try:
        sink.prepare(write.lane, write.plan)
        sink.apply([write], refuse_rejects)
    except Retryable:
        continue
    at = min(count, at + 2)
print("done", flush=True)
"""


def start_lane(folder: Path, steps: int) -> subprocess.Popen:
    """Starts a process that writes events of one outbox, and dies after `steps` steps of its commits."""
    command = [sys.executable, "-c", LANE, json.dumps([str(folder), SPREAD, steps])]
    return subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


@pytest.mark.slow
def test_lane_killed_between_steps_loses_and_doubles_nothing(folder):
    """While another program appends to the same aggregate: before and after the position is written, the events are
    committed, and the commit is durable."""
    outbox_ids = [f"sent-{n}" for n in range(SPREAD)]
    kills = int(os.environ.get("REPLICATOR_KILLS", "6"))
    for kill in range(kills):
        victim, other = (
            start_lane(folder, 5 * kill + 1 + kill % 6),
            start_event_writer("delta", {"path": str(folder)}, f"other{kill}", 3),
        )
        start_writing([victim, other])
        assert len(read_written_versions(other)) == 3
        victim.wait(60)
        assert victim.returncode == -signal.SIGKILL
        refuse_gaps(DeltaEventStore({"path": str(folder)}).read("Customer"))
    last = start_lane(folder, 0)
    start_writing([last])
    assert last.communicate()[0] == "done\n"
    found = DeltaEventStore({"path": str(folder)}).read("Customer", "C101")
    refuse_gaps(found)
    mine = [e.event_id for e in sorted(found, key=lambda e: e.event_version) if e.event_id.startswith("sent-")]
    assert mine == outbox_ids and len(found) == SPREAD + 3 * kills
