"""The event store in a Delta table, in addition to its contract: races, crashes, and a table that other programs can
trust."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from support.event_writers import read_written_versions, start_event_writer, start_writing
from support.races import run_before

from adapters.sinks.delta import event_store as module
from adapters.sinks.delta.event_store import DeltaEventStore
from replicator.domain.errors import ConfigProblem, ReplicatorError
from replicator.domain.events import NewEvent, VersionConflict
from replicator.testing.stores_contract import HOSTILE, make_sample_event


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "events"


def store_in(folder: Path, **more: object) -> DeltaEventStore:
    return DeltaEventStore({"path": str(folder), **more})


def new(number: int, **more: object) -> NewEvent:
    return make_sample_event(number, **more)


def test_table_is_append_only_and_retains_its_log(folder):
    store_in(folder).append([new(1)])
    table = DeltaTable(folder)
    settings = table.metadata().configuration
    assert settings["delta.appendOnly"] == "true"
    assert settings["delta.logRetentionDuration"] == "interval 365 days"
    assert table.metadata().partition_columns == ["aggregate_type"]
    names = ["event_id", "event_type", "aggregate_id", "aggregate_type", "event_data", "metadata"]
    assert [f.name for f in table.schema().fields] == [*names, "event_version", "created_at"]
    with pytest.raises(DeltaError):
        table.delete()


def test_hostile_types_stay_in_the_folder(folder):
    store_in(folder).append([new(n, kind=kind) for n, kind in enumerate(HOSTILE)])
    lake = folder.parent.parent
    files = [p for p in lake.rglob("*") if p.is_file()]
    assert all(p.is_relative_to(folder) for p in files)
    data = [p for p in files if p.suffix == ".parquet"]
    assert len(data) == len(HOSTILE)
    assert {p.parent.parent for p in data} == {folder}


def test_concurrent_commit_is_detected(folder):
    """The commit itself detects it; versions and ids are then read again."""
    first, second = store_in(folder), store_in(folder)
    first.append([new(0)])

    def commit_before(*events):
        run_before(first, "_write", partial(second.append, events))

    commit_before(new(1))
    assert first.append([new(2)])[0].event.event_version == 3
    commit_before(new(3))
    with pytest.raises(VersionConflict) as conflict:
        first.append([new(4, expected_version=3)])
    assert conflict.value.found == 4
    commit_before(new(5))
    assert not first.append([new(5)])[0].is_new
    commit_before(new(6, of="C102"))
    assert first.append([new(7, expected_version=5)])[0].event.event_version == 6
    assert [e.event_id for e in second.read("Customer", "C101")] == [f"event-{n}" for n in (0, 1, 2, 3, 5, 7)]


def test_commit_with_a_lost_answer_is_recognised(folder, monkeypatch):
    store = store_in(folder)
    store.append([new(0)])
    write = write_deltalake

    def lose_answer(*args, **kwargs):
        write(*args, **kwargs)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "write_deltalake", lose_answer)
    (done,) = store.append([new(1, expected_version=1)])
    assert (done.event.event_version, done.is_new) == (2, True)

    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_deltalake", refuse)
    with pytest.raises(ReplicatorError, match="ENOSPC"):
        store.append([new(2)])
    monkeypatch.setattr(module, "write_deltalake", write)
    assert store.append([new(2)])[0].event.event_version == 3
    assert len(store.read("Customer")) == 3


def test_compaction_keeps_every_event(folder):
    kind = "Ünïcode a/b%"
    store = store_in(folder, compact_every=16)
    for number in range(18):
        store.append([new(number, kind=kind, event_data={"number": str(number), "none": None})])
    assert len(DeltaTable(folder).file_uris()) == 3
    found = store_in(folder).read(kind)
    assert [(e.event_version, e.event_data) for e in found] == [(n + 1, {"number": str(n), "none": None}) for n in range(18)]
    assert not store.append([new(3, kind=kind)])[0].is_new


def test_other_tables_are_refused(folder, tmp_path):
    write_deltalake(tmp_path / "other", pa.table({"event_id": ["x"]}))
    for act in (lambda s: s.append([new(1)]), lambda s: s.read("Customer"), lambda s: s.version("Customer", "C101")):
        with pytest.raises(ConfigProblem, match="another table"):
            act(store_in(tmp_path / "other"))
    store_in(folder).append([new(1)])
    DeltaTable(folder).alter.set_table_properties({"delta.appendOnly": "false"})
    with pytest.raises(ConfigProblem, match="may be rewritten"):
        store_in(folder).append([new(2)])


def test_racing_processes_append_versions_without_gaps(folder):
    """Only one writer succeeds with an expected version."""
    writers = [start_event_writer("delta", {"path": str(folder)}, name, 6, expecting=True) for name in "ab"]
    start_writing(writers)
    acknowledged = [read_written_versions(each) for each in writers]
    assert all(each.returncode == 0 for each in writers)
    found = store_in(folder).read("Customer", "C101")
    assert sorted(acknowledged[0] + acknowledged[1]) == [e.event_version for e in found] == list(range(1, 13))
    for name, each in zip("ab", acknowledged, strict=True):
        mine = [e for e in found if e.event_id.startswith(f"{name}-")]
        assert [e.event_version for e in mine] == each


@pytest.mark.slow
def test_killed_writers_neither_lose_nor_duplicate_events(folder):
    """Every acknowledged event is stored. A writer that starts again with the same ids completes it."""
    options = {"path": str(folder)}
    for kill in range(int(os.environ.get("REPLICATOR_KILLS", "4"))):
        victim, other = (
            start_event_writer("delta", options, "victim", 1000),
            start_event_writer("delta", options, f"other{kill}", 5),
        )
        start_writing([victim, other])
        acknowledged = [int(victim.stdout.readline()) for _ in range(7 * kill + 3)]
        victim.send_signal(signal.SIGKILL)
        acknowledged += read_written_versions(victim)
        assert len(read_written_versions(other)) == 5
        found = store_in(folder).read("Customer", "C101")
        assert [e.event_version for e in found] == list(range(1, len(found) + 1))
        assert len({e.event_id for e in found}) == len(found)
        assert len(acknowledged) <= sum(e.event_id.startswith("victim-") for e in found) <= len(acknowledged) + 1
        assert {e.event_version for e in found if e.event_id.startswith("victim-")} >= set(acknowledged)


def test_commits_have_a_transaction_version(folder):
    """Spark refuses a concurrent commit by this transaction."""
    store = store_in(folder)
    for number in range(3):
        store.append([new(number)])
    assert DeltaTable(folder).transaction_version("replicator/events") == 3
    log = (folder / "_delta_log" / f"{3:020}.json").read_text().splitlines()
    assert any("txn" in json.loads(line) for line in log)
