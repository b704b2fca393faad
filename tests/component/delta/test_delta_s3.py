"""Lakes in an object store: instances without a lock, failed attempts, and stores that refuse access."""

from __future__ import annotations

import signal
import socket
from datetime import UTC, datetime
from typing import Any

import pytest
from servers.object_store import ObjectStore, object_store
from support.crash_runs import assert_equals_model, list_batches_with_deletes, run_until_killed
from support.delta_crash import apply_batch, list_batches
from support.delta_writes import ITEMS, PARTITION_0, make_item_changes, make_write

from adapters.delta import commits, stored_folder
from adapters.delta.commits import LaneLog
from adapters.delta.stored_folder import StoredFolder
from adapters.object_store import options
from adapters.sinks.delta.check import DeltaCheck
from adapters.sinks.delta.event_log import DeltaEventLog
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import EnvironmentProblem, Fenced, Retryable
from replicator.domain.policy.plan import LaneState
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")
POSITIONS = f"_replicator/positions/testing/{LANE.id}"

FIRST = SchemaVersion(1, ITEMS, ITEMS.columns, Position(), datetime(2026, 3, 1, tzinfo=UTC))


def apply_rows(sink: DeltaRsSink, *rows: Any, start: int = 0) -> Any:
    return sink.apply([make_write(list(rows), start)], refuse_rejects)[LANE.id]


def open_sink(options: Any) -> DeltaRsSink:
    sink = DeltaRsSink(options)
    sink.prepare(LANE, plan_for("scd1", ITEMS))
    return sink


def values(options: Any) -> dict[int, str]:
    return {row["id"]: row["v"] for row in DeltaRsSink(options).read("items").to_pylist()}


def test_files_of_a_lane_in_the_store(s3: ObjectStore) -> None:
    lake = s3.lake()
    sink = open_sink(lake)
    apply_rows(sink, *make_item_changes(1, 2))
    apply_rows(sink, *make_item_changes(2, op="d"), start=2)
    sink.remember(LANE, FIRST)
    assert sink.schemas(LANE) == [FIRST]
    keys = s3.keys(lake["path"])
    assert {f"{POSITIONS}/1.json", f"{POSITIONS}/2.json", "_replicator/schemas/items/1.json"} <= set(keys)
    assert not [key for key in keys if "lock" in key]
    assert any(key.startswith("_replicator/tombstones/items/_delta_log/") for key in keys)
    assert DeltaRsSink(lake).tables() == ["items"]
    assert values(lake) == {1: "v1"}
    sink.reset(LANE)
    assert values(lake) == {} and not [k for k in s3.keys(lake["path"]) if "tombstones" in k]


def test_old_position_files_are_removed(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "KEPT_FILES", 2)
    lake = s3.lake()
    sink = open_sink(lake)
    for i in range(4):
        apply_rows(sink, *make_item_changes(i), start=i)
    found = [key for key in s3.keys(lake["path"]) if key.startswith(POSITIONS)]
    assert sorted(int(key.rpartition("/")[2].removesuffix(".json")) for key in found) == [3, 4]


def test_later_instance_fences_an_idle_one(s3: ObjectStore) -> None:
    lake = s3.lake()
    first = open_sink(lake)
    apply_rows(first, *make_item_changes(1))
    second = open_sink(lake)
    apply_rows(second, *make_item_changes(2), start=1)
    with pytest.raises(Fenced) as fenced:
        apply_rows(first, *make_item_changes(3), start=1)
    assert fenced.value.exit_code == 5
    apply_rows(second, *make_item_changes(4), start=2)
    with pytest.raises(Fenced):
        apply_rows(first, *make_item_changes(3), start=1)
    assert values(lake) == {1: "v1", 2: "v2", 4: "v4"}
    assert second.state(LANE) == LaneState(Position({PARTITION_0: 3}), (2,), rule="scd1 by id")


@pytest.mark.parametrize("at", ["before the position file", "after the position file"])
def test_commit_of_another_instance_fences_this_one(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The other one commits before or after this one has claimed its number."""
    lake = s3.lake()
    first, second = open_sink(lake), open_sink(lake)
    owner, name = (LaneLog, "commit") if at.startswith("before") else (StoredFolder, "claim")
    original, left = getattr(owner, name), [True]

    def meanwhile(self: Any, *args: Any) -> Any:
        if not left:
            return original(self, *args)
        left.clear()
        if name == "commit":
            apply_rows(first, *make_item_changes(4))
            return original(self, *args)
        claimed = original(self, *args)
        apply_rows(first, *make_item_changes(4))
        return claimed

    monkeypatch.setattr(owner, name, meanwhile)
    with pytest.raises(Fenced):
        apply_rows(second, *make_item_changes(5, 6))
    assert values(lake) == {4: "v4"}
    state = first.state(LANE)
    assert state is not None and state.position == Position({PARTITION_0: 1})
    third = open_sink(lake)
    apply_rows(third, *make_item_changes(5), start=1)
    assert values(lake) == {4: "v4", 5: "v5"}


def test_announced_number_of_an_attempt_is_not_reused(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says what the attempt would commit. Another instance must not use its number: the attempt may only be
    slow."""
    lake = s3.lake()
    slow = open_sink(lake)
    apply_rows(slow, *make_item_changes(1))
    snapshot = slow._acquired[f"testing/{LANE.id}"]._take_snapshot()
    log = slow._acquired[f"testing/{LANE.id}"]._log
    announced = log._positions.announce(2, LaneState(Position({PARTITION_0: 9})), None)
    again = open_sink(lake)
    apply_rows(again, *make_item_changes(2), start=1)
    assert f"{POSITIONS}/3.json" in s3.keys(lake["path"])
    state = DeltaRsSink(lake).state(LANE)
    assert state is not None and state.position == Position({PARTITION_0: 2})
    assert announced.commit_number == 2 and log._positions.read_record(2) == announced
    with pytest.raises(Fenced):
        log.commit(snapshot, LaneState(Position({PARTITION_0: 9})), None, None)
    assert DeltaRsSink(lake).state(LANE) == state


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after the position file", "after the commit"])
def test_killed_instance_neither_loses_nor_duplicates_changes(s3: ObjectStore, point: str) -> None:
    lake, count = s3.lake(), list_batches_with_deletes()[0]
    assert run_until_killed(point, lake, count) == -signal.SIGKILL
    again = DeltaRsSink(lake)
    for start, end in list_batches():
        apply_batch(again, start, end)
    again.close()
    assert_equals_model(lake)


@pytest.mark.parametrize("at", ["prune", "_has_landed"])
def test_store_failure_after_a_commit_fences_no_instance(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The commit exists, and this instance made it."""
    sink = open_sink(lake := s3.lake())
    apply_rows(sink, *make_item_changes(1, 2))

    def away(*_: Any) -> Any:
        raise Retryable("the store is away")

    with monkeypatch.context() as patch:
        if at == "_has_landed":
            patch.setattr(LaneLog, "commit", lose_answer_of(LaneLog.commit))
        patch.setattr(LaneLog, at, away)
        with pytest.raises(Retryable):
            apply_rows(sink, *make_item_changes(3, 4), start=2)
    apply_rows(sink, *make_item_changes(3, 4), start=2)
    apply_rows(sink, *make_item_changes(5, 6), start=4)
    assert set(values(lake)) == {1, 2, 3, 4, 5, 6}


def lose_answer_of(commit: Any) -> Any:
    """`commit` succeeds, and its answer is lost."""

    def lose_answer(self: LaneLog, *arguments: Any) -> int:
        commit(self, *arguments)
        return int(self._has_landed())  # type: ignore[call-arg]

    return lose_answer


def test_claim_with_a_lost_answer_succeeds_when_repeated(s3: ObjectStore) -> None:
    """The library repeats a request without an answer, and then finds its own file."""
    folder = StoredFolder.from_path(str(s3.lake()["path"]), options.Storage.model_validate(s3.storage))
    assert folder.claim("1.json", {"attempt": "a"}) and folder.claim("1.json", {"attempt": "a"})
    assert not folder.claim("1.json", {"attempt": "b"})


def test_credentials_of_the_environment_are_used(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {name: str(value).lower() if value is True else str(value) for name, value in s3.storage.items()}
    for name, value in texts.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    lake = {"path": s3.lake()["path"]}
    apply_rows(open_sink(lake), *make_item_changes(1))
    assert values(lake) == {1: "v1"}


def test_empty_event_log_in_a_store_has_no_state(s3: ObjectStore) -> None:
    lake = s3.lake()
    log = DeltaEventLog(lake)
    assert log.tables() == [] and log.state(make_lane("event_log", "log")) is None


REFUSALS = {
    "bucket": ({"path": "s3://no-such-bucket/lake"}, {}, EnvironmentProblem, "bucket of .* does not exist"),
    "region": ({}, {"endpoint": "{0}/no-such-path-style"}, EnvironmentProblem, "does not exist|cannot answer"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_missing_bucket_or_wrong_endpoint_is_reported(s3: ObjectStore, name: str) -> None:
    path, keys, kind, message = REFUSALS[name]
    keys = {key: value.format(s3.storage["endpoint"]) for key, value in keys.items()}
    lake = {**s3.lake(), **path, "storage": {**s3.storage, **keys}}
    for act in (open_sink, lambda o: DeltaRsSink(o).state(LANE), lambda o: DeltaRsSink(o).tables()):
        with pytest.raises(kind, match=message) as refused:
            act(lake)
        assert refused.value.next_step
    assert [(d.severity, bool(d.next_step)) for d in DeltaCheck("sink lake", lake).diagnose()] == [("error", True)]


@pytest.fixture(scope="module")
def store_with_keys() -> Any:
    """A store that requires a key after its bucket was created; it accepts none."""
    with object_store(asks_after=1) as store:
        yield store


def test_refused_key_is_reported_without_secrets(store_with_keys: ObjectStore) -> None:
    lake = store_with_keys.lake()
    for act in (open_sink, lambda o: DeltaRsSink(o).state(LANE), lambda o: DeltaRsSink(o).read("items")):
        with pytest.raises(EnvironmentProblem, match=r"refuses access to .*(InvalidAccessKeyId|403)") as refused:
            act(lake)
        shown = f"{refused.value} {refused.value!r}"
        assert "not-to-be-seen" not in shown and "secret_access_key" in shown
    found = DeltaCheck("sink lake", lake).diagnose()
    assert [d.severity for d in found] == ["error"] and "AWS_SECRET_ACCESS_KEY" in found[0].next_step


def test_unreachable_store_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "RETRIES", 0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    lake = {
        "path": "s3://bucket/lake",
        "storage": {
            "endpoint": f"http://127.0.0.1:{port}",
            "allow_http": True,
            "access_key_id": "AKID",
            "secret_access_key": "not-to-be-seen",
        },
    }
    for act in (open_sink, lambda o: DeltaRsSink(o).state(LANE)):
        with pytest.raises(Retryable, match=r"the object store of .* cannot be reached"):
            act(lake)
    assert [d.severity for d in DeltaCheck("sink lake", lake).diagnose()] == ["error"]


def test_doctor_accepts_a_writable_store(s3: ObjectStore) -> None:
    lake = s3.lake()
    found = DeltaCheck("sink lake", lake).diagnose()
    assert [d.severity for d in found] == ["ok", "ok"] and "makes a file once only" in found[1].sentence
    assert s3.keys(lake["path"]) == []


def test_doctor_reports_a_store_without_conditional_writes(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    original = stored_folder.obstore.put
    monkeypatch.setattr(stored_folder.obstore, "put", lambda *args, **_: original(*args, mode="overwrite"))
    found = DeltaCheck("sink lake", s3.lake()).diagnose()
    assert found[-1].severity == "error" and "made twice" in found[-1].sentence
