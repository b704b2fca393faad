"""The source that reads an event log, on logs that the event-log sink wrote."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.recorded_log import RecordedLog

from adapters.sources.delta import DeltaSourceCheck
from adapters.sources.event_log import source as event_log_source
from adapters.sources.event_log.delta_source import DeltaSource
from replicator.domain.change import ERROR_HEADER, RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, ExitCode, Fatal
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch

TOPIC = "cdc.public.items"
T = TopicPartition(TOPIC, 0)
DAY = 86_400_000
Batches = list[Batch[pa.Table]]


def records(*offsets: int, topic: str = TOPIC, partition: int = 0, days: bool = False, size: int = 1) -> pa.Table:
    """Records whose values tell their offsets; with `days` each second one is of another day."""
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset % 2 * days * DAY,
            "headers": None,
            "key": b"k",
            "value": str(offset).encode().ljust(size),
        }
        for offset in offsets
    ]
    return pa.Table.from_pylist(rows, RAW)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log_source, "TICK", 0.1)


@pytest.fixture
def log(tmp_path: Path) -> RecordedLog:
    made = RecordedLog(tmp_path / "log")
    made.create()
    return made


def source(log: RecordedLog, **options: object) -> DeltaSource:
    return DeltaSource({"path": str(log.path), **options})


def once(log: RecordedLog, start: Position | None = None, **options: object) -> Batches:
    got: Batches = []
    source(log, **options).run(start or Position(), got.append, threading.Event(), once=True)
    return got


def offsets(batches: Batches, place: TopicPartition = T) -> list[int]:
    rows = [r for b in batches for r in b.frame.to_pylist()]
    return [r["offset"] for r in rows if (r["topic"], r["partition"]) == place]


def follow(log: RecordedLog, steps: list[Callable[[], object]], start: Position | None = None) -> Batches:
    """Follow the log; whenever nothing came one step is done, and after the last step's look it ends."""
    got, stop, left = list[Batch[pa.Table]](), threading.Event(), iter(steps)

    def apply(batch: Batch[pa.Table]) -> None:
        got.append(batch)
        if not batch.span and len(got) > 1:
            step = next(left, None)
            stop.set() if step is None else step()

    late = threading.Timer(60, stop.set)
    late.start()
    source(log).run(start or Position(), apply, stop, once=False)
    late.cancel()
    return got


def compact(log: RecordedLog, *, vacuum: bool = True) -> None:
    table = DeltaTable(str(log.path))
    table.optimize.compact()
    if vacuum:
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


def delete_below(log: RecordedLog, offset: int) -> None:
    table = DeltaTable(str(log.path))
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.delete(f'"offset" < {offset}')


def test_everything_is_one_batch_or_none(log: RecordedLog) -> None:
    for at in range(0, 6, 2):
        log.append(records(at, at + 1))
    log.append(records(0, 1, topic="cdc.public.others"))
    bounds = {"batch_records": 3, "batch_bytes": 16}
    assert [batch.records for batch in once(log, **bounds) if batch.records] == [3, 3, 2]
    assert [batch.records for batch in once(log, mode="batch", **bounds) if batch.records] == [8]
    assert [batch.records for batch in once(log, Position({T: 4}), mode="batch") if batch.records] == [4]
    again: Batches = []
    source(log, mode="batch", **bounds).read(Position({T: 1}), Position({T: 6}), again.append, threading.Event())
    assert [batch.records for batch in again] == [5]
    with pytest.raises(Fatal, match=f"{log.path} have more than the 15 bytes") as caught:
        once(log, mode="batch", batch_bytes=15)
    assert "limits.memory" in caught.value.next_step


@pytest.mark.slow
def test_compaction_and_cleanup_during_the_read_lose_and_double_nothing(log: RecordedLog) -> None:
    for at in range(0, 6, 2):
        log.append(records(at, at + 1))
    steps = [
        lambda: compact(log),
        lambda: (log.append(records(6, 7)), log.append(records(8)), compact(log)),
        lambda: log.append(records(9)),
    ]
    assert offsets(follow(log, steps)) == [*range(10)]


def test_files_deleted_during_the_read(log: RecordedLog) -> None:
    for at in range(8):
        log.append(records(at))
    got: Batches = []

    def apply(batch: Batch[pa.Table]) -> None:
        got.append(batch)
        if offsets(got) == [0, 1, 2]:
            compact(log)

    source(log, batch_records=1).run(Position(), apply, threading.Event(), once=True)
    assert offsets(got) == [*range(8)]


@pytest.mark.parametrize("most", [1, 3, 100])
def test_records_are_ordered_by_offset_in_any_file_layout(log: RecordedLog, most: int) -> None:
    """Two days of one commit are two files with alternating offsets; rows of another writer have no order."""
    log.append(records(*range(10), days=True))
    log.append(records(*range(10, 20), days=True))
    rewritten = DeltaTable(str(log.path)).to_pyarrow_table()
    shuffled = rewritten.take([i * 7 % 20 for i in range(20)])
    table = DeltaTable(str(log.path))
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    write_deltalake(table, shuffled, mode="overwrite")
    batches = once(log, batch_records=most)
    assert offsets(batches) == [*range(20)]
    assert max(b.records for b in batches) <= most


def test_duplicate_records_are_read_once(log: RecordedLog) -> None:
    log.append(records(0, 1, 2))
    rows = DeltaTable(str(log.path)).to_pyarrow_table()
    write_deltalake(str(log.path), rows.slice(1), mode="append")
    for most in (1, 2, 100):
        assert offsets(once(log, batch_records=most)) == [0, 1, 2]


@pytest.mark.slow
def test_append_below_the_end_is_data_loss(log: RecordedLog) -> None:
    log.append(records(0, 1, 5))
    other = DeltaTable(str(log.path)).to_pyarrow_table().slice(0, 1)
    other = other.set_column(other.column_names.index("offset"), "offset", pa.array([3], pa.int64()))
    with pytest.raises(DataLoss, match=r"Record 3 of cdc.public.items\[0\] was appended .* after record 5"):
        follow(log, [lambda: write_deltalake(str(log.path), other, mode="append")])


@pytest.mark.slow
def test_reloaded_log_is_read_from_the_last_position(log: RecordedLog) -> None:
    log.append(records(0, 1, 2))
    steps = [log.clear, lambda: log.append(records(0, 1)), lambda: log.append(records(2, 3))]
    assert offsets(follow(log, steps)) == [0, 1, 2, 3]


@pytest.mark.slow
def test_log_reloaded_from_a_later_position_is_data_loss(log: RecordedLog) -> None:
    """It was read while it was empty."""
    log.append(records(0, 1, 2))
    with pytest.raises(DataLoss, match=r"Records 3 to 4 of .* are not in the event log"):
        follow(log, [log.clear, lambda: log.append(records(5, 6))])


def test_records_removed_by_retention_are_data_loss(log: RecordedLog) -> None:
    log.append(records(*range(10)))
    delete_below(log, 6)
    assert offsets(once(log)) == [6, 7, 8, 9]
    assert not source(log).losses(Position({T: 6}), {})
    with pytest.raises(DataLoss, match=r"Records 4 to 5 of .* are not in the event log") as caught:
        once(log, Position({T: 4}))
    assert caught.value.exit_code == ExitCode.DATA_LOSS
    assert "replicator lanes resync LANE" in caught.value.next_step and "lanes skip LANE" in caught.value.next_step
    with pytest.raises(DataLoss, match="Records 5 to 5"):
        source(log).read(Position({T: 5}), Position({T: 8}), lambda _: None, threading.Event())


@pytest.mark.slow
def test_records_removed_by_retention_during_the_read_are_data_loss(log: RecordedLog) -> None:
    log.append(records(0, 1))
    with pytest.raises(DataLoss, match="Records 2 to 3 of"):
        follow(log, [lambda: (log.append(records(2, 3, 4)), delete_below(log, 4))])


def test_position_after_the_last_record_is_valid(log: RecordedLog) -> None:
    """Transaction markers have offsets and are no records; partitions may have no records. The lane of the log has
    passed them."""
    empty = TopicPartition(TOPIC, 1)
    log.append(records(3, 4), Position({T: 7, empty: 0}))
    there = source(log)
    assert not there.losses(Position({T: 7, empty: 0, TopicPartition(TOPIC, 2): 0}), {TOPIC: "of the broker"})
    assert set(there.losses(Position({T: 8, empty: 1}), {})) == {T, empty}
    assert (there.end(), there.beginning()) == (Position({T: 7, empty: 0}), Position({T: 3, empty: 0}))
    batches = once(log)
    assert offsets(batches) == [3, 4]
    assert (batches[1].span.start[T], batches[-1].span.end[T]) == (3, 7)
    log.append(records(0, 1, partition=1))
    assert offsets(once(log, Position({T: 7, empty: 0})), empty) == [0, 1]


def test_copy_of_the_table_alone_is_a_valid_log(log: RecordedLog, tmp_path: Path) -> None:
    log.append(records(3, 4), Position({T: 7}))
    (log.path / "_replicator").rename(tmp_path / "gone")
    assert source(log).end() == Position({T: 5})
    assert offsets(once(log)) == [3, 4]


def test_batches_stay_within_their_limit(log: RecordedLog) -> None:
    log.append(records(*range(100), size=1000))
    log.append(records(100, size=50_000))
    batches = once(log, batch_bytes=10_000)
    assert offsets(batches) == [*range(101)]
    assert all(b.size <= 10_000 or b.records == 1 for b in batches)
    assert len(batches) < 40


def test_large_offset_gaps_cost_nothing(log: RecordedLog) -> None:
    log.append(records(0, 1, 2**50, 2**50 + 1, 2**60))
    batches = once(log, batch_records=2)
    assert offsets(batches) == [0, 1, 2**50, 2**50 + 1, 2**60]
    assert len(batches) < 200


def test_only_files_with_wanted_records_are_opened(log: RecordedLog) -> None:
    for at in range(5):
        log.append(pa.concat_tables([records(at), records(at, partition=1)]))
    log.append(records(0, topic="other"))
    actions = pa.table(DeltaTable(str(log.path)).get_add_actions(flatten=True)).to_pylist()
    held = {row["min.offset"]: row["path"] for row in actions if row["partition.topic"] == TOPIC}
    for path in (held[at] for at in range(1, 3)):
        (log.path / path).unlink()
    later = Position({T: 3, TopicPartition(TOPIC, 1): 3})
    assert offsets(once(log, later, topics=("cdc.*",))) == [3, 4]
    got: Batches = []
    source(log).read(Position({T: 3}), Position({T: 4}), got.append, threading.Event())
    assert offsets(got) == [3]
    with pytest.raises(EnvironmentProblem, match=r"names the file .* which is gone"):
        once(log)


def test_topic_filter(log: RecordedLog) -> None:
    hostile = "cdc./../a b=ü%"
    for topic in (TOPIC, hostile, "other"):
        log.append(records(0, 1, topic=topic))
    seen = {place.topic for place in source(log, topics=["cdc.*"]).end()}
    assert seen == {TOPIC, hostile}
    assert offsets(once(log, topics=["^cdc\\./"]), TopicPartition(hostile, 0)) == [0, 1]
    assert not source(log, topics=["other"]).losses(Position({T: 99}), {})


def test_headers_are_unchanged(log: RecordedLog) -> None:
    headers = [{"name": "a", "value": b"1"}, {"name": "a", "value": b"\xff"}, {"name": "\u2603", "value": None}]
    sent = records(0, 1).set_column(4, RAW.field("headers"), pa.array([headers, None], RAW.field("headers").type))
    log.append(sent)
    (first, second) = once(log)[1].frame.to_pylist()
    assert (first["headers"], second["headers"]) == (headers, None)
    assert once(log)[1].frame.to_pylist() == sent.to_pylist()


@pytest.mark.parametrize("text", ["no JSON", '[["a", {"base64": "?"}]]', '[["a"]]', "{}"])
def test_invalid_headers_are_rejected(log: RecordedLog, text: str) -> None:
    log.append(records(0))
    rows = DeltaTable(str(log.path)).to_pyarrow_table()
    rows = rows.set_column(rows.column_names.index("headers"), "headers", pa.array([text]))
    rows = rows.set_column(rows.column_names.index("offset"), "offset", pa.array([1], pa.int64()))
    write_deltalake(str(log.path), rows, mode="append")
    (_, bad) = once(log)[1].frame.to_pylist()
    assert bad["value"] == b"0"
    assert [(h["name"], h["value"][:10]) for h in bad["headers"]] == [(ERROR_HEADER, b"MALFORMED:")]


def test_recreated_table_is_data_loss(log: RecordedLog, tmp_path: Path) -> None:
    there = source(log)
    log.append(records(0, 1, 2))
    assert there.end() == Position({T: 3})
    log.path.rename(tmp_path / "before")
    with pytest.raises(EnvironmentProblem, match="no Delta table"):
        there.end()
    RecordedLog(log.path).append(records(0))
    assert there.end() == Position({T: 1})


@pytest.mark.slow
def test_log_recreated_during_the_read_is_data_loss(log: RecordedLog, tmp_path: Path) -> None:
    """Other records have the same offsets."""
    log.append(records(0, 1, 2))
    other = RecordedLog(tmp_path / "other" / "log")
    other.append(records(*range(6)))

    def swap() -> None:
        log.path.rename(tmp_path / "before")
        other.path.rename(log.path)

    with pytest.raises(DataLoss, match="was created again: it is another table than before"):
        follow(log, [swap, lambda: None])


def test_damaged_data_file_is_reported(log: RecordedLog) -> None:
    log.append(records(0, 1, 2))
    (file,) = log.path.rglob("*.parquet")
    whole = file.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:100] + bytes(100) + whole[200:]):
        file.write_bytes(damaged)
        with pytest.raises(EnvironmentProblem, match=file.name) as caught:
            once(log)
        assert "Restore it from a copy" in caught.value.next_step
    file.write_bytes(whole)
    assert offsets(once(log)) == [0, 1, 2]


def test_damaged_delta_log_is_reported(log: RecordedLog) -> None:
    log.append(records(0, 1, 2))
    entry = max((log.path / "_delta_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:100])
    with pytest.raises(EnvironmentProblem, match=r"The log of the Delta table .* is damaged"):
        once(log)


def test_plain_table_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "plain"), pa.table({"id": [1], "offset": [1]}))
    with pytest.raises(ConfigProblem, match=r"is not an event log: it lacks the column\(s\) headers, key") as caught:
        DeltaSource({"path": str(tmp_path / "plain")}).end()
    assert "`format: rows`" in caught.value.next_step


def test_missing_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="There is no Delta table"):
        DeltaSource({"path": str(tmp_path / "none")}).start()


def test_unsupported_table_features_are_refused(log: RecordedLog) -> None:
    log.append(records(0))
    entry = log.path / "_delta_log" / f"{DeltaTable(str(log.path)).version() + 1:020}.json"
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "appendOnly"]}
    entry.write_text(json.dumps({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}) + "\n")
    with pytest.raises(ConfigProblem, match="deletionVectors"):
        source(log).end()


@pytest.mark.parametrize("wrong", [{"paths": "x"}, {"batch_records": 0}, {"topics": []}, {"start_from": "latest"}])
def test_invalid_options_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigProblem, match=next(iter(wrong))):
        DeltaSource({"path": str(tmp_path), **wrong})


def test_doctor_checks_the_log(log: RecordedLog, tmp_path: Path) -> None:
    def diagnose(**options: object) -> list[tuple[str, str]]:
        check = DeltaSourceCheck("source s", {"path": str(log.path), "production": False, "positions": {}, **options})
        return [(d.severity, d.sentence) for d in check.diagnose()]

    assert diagnose()[0][0] == "warning"
    log.append(records(4, 5))
    assert diagnose() == [("ok", f"The event log {log.path} has 1 file.")]
    assert [level for level, _ in diagnose(topics=["cdc.*", "else"])] == ["warning"]
    ((_, sentence),) = [d for d in diagnose(positions={"lake.items": {TOPIC: {"0": 2}}}) if d[0] == "error"]
    assert "Lane lake.items cannot continue: Records 2 to 3" in sentence
    assert [level for level, _ in diagnose(path=str(tmp_path / "none"))] == ["error"]
    if os.geteuid():
        next(log.path.rglob("*.parquet")).chmod(0)
        assert [level for level, _ in diagnose()] == ["error"]
