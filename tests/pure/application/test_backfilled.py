"""A source with a journal beside it, and what a backfill does in which order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, product
from random import Random
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from support.avro_of_connect import decode_runs

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.sources.backfill.database import BackfillTable, DebeziumEvents, SnapshotPoint
from adapters.sources.backfill.journal import BackfillFolder, JournalSource
from adapters.sources.backfill.postgres import PostgresLog
from replicator.application.operations.backfill import (
    BackfilledSource,
    BackfillOperation,
    BackfillWaiter,
    find_deletable_lanes,
    older_rows_condition,
)
from replicator.domain.change import RAW
from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.position import Position, TopicPartition
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms, Mask
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Lane
from replicator.ports.source import BACKFILL_TOPICS, BackfillSnapshot, SourceFeatures
from replicator.testing.fakes import FakeSource
from replicator.testing.source_contract import BatchRecorder

MAIN = TopicPartition("t", 0)


def stream(first: int, end: int) -> pa.Table:
    rows = [{"topic": "t", "partition": 0, "offset": i, "key": b"k", "value": b"v"} for i in range(first, end)]
    return pa.Table.from_pylist([{"timestamp": None, "headers": None, **row} for row in rows], RAW)


@dataclass
class World:
    folder: Any
    batch_bytes: int = 1 << 20
    main: FakeSource = field(default_factory=FakeSource)

    def source(self) -> BackfilledSource[pa.Table]:
        clock = count()
        journal = JournalSource({"state": str(self.folder), "batch_bytes": self.batch_bytes})
        return BackfilledSource(self.main, journal, lambda: float(next(clock)))

    def write(self, table: str, rows: int, run: int = 1) -> None:
        kept = BackfillFolder(self.folder, table)
        kept.append(kept.build_records([b"key"] * rows, [b"x" * 90] * rows), {"run": run, "stage": "rows"})


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_read_once_across_restarts(tmp_path, seed):
    """Both parts get records while they are read, and the reader restarts many times at its last position."""
    random = Random(seed)
    world = World(tmp_path, random.choice([1, 200, 1 << 20]))
    for table in ("public.a", "public.b/c"):
        (BackfillFolder(tmp_path, table).folder).mkdir(parents=True)
    reader, written = BatchRecorder(lambda frame: frame), {"t": 0, "public.a": 0, "public.b/c": 0}
    for _ in range(4):
        for table in random.choices(list(written), k=random.randint(1, 4)):
            rows = random.randint(1, 6)
            if table == "t":
                world.main.add_records(stream(written["t"], written["t"] + rows))
            else:
                world.write(table, rows)
            written[table] += rows
        source = world.source()
        start = Position({**source.start(), **reader.position})
        if random.random() < 0.5:
            source.run(start, reader, threading.Event(), once=True)
        else:
            source.read(start, source.end(), reader, threading.Event())
        assert reader.position == dict(source.end())
    places = [(row["topic"], row["offset"]) for row in reader.rows]
    assert len(places) == len(set(places)) == sum(written.values())
    assert {topic for topic, _ in places} == {t if t == "t" else BACKFILL_TOPICS + t for t, rows in written.items() if rows}


def test_rows_stored_during_the_read_are_read(tmp_path):
    world, stop, found = World(tmp_path), threading.Event(), []
    BackfillFolder(tmp_path, "public.a").folder.mkdir(parents=True)

    def take(batch):
        found.extend(batch.frame["topic"].to_pylist())
        if not batch.records and not found:
            world.write("public.a", 3)
        if len(found) == 3:
            stop.set()

    world.source().run(Position(), take, stop, once=False)
    assert found == ["_backfill.public.a"] * 3


def test_each_part_gets_requests_for_its_own_topics(tmp_path):
    """The stream does not know topics of backfills, and a lost journal is no data loss."""
    world = World(tmp_path)
    world.main.add_records(stream(0, 3))
    source, gone = world.source(), TopicPartition("_backfill.public.gone", 0)
    assert source.losses(Position({MAIN: 2, gone: 7}), {"_backfill.public.gone": "x"}) == {}
    assert list(source.losses(Position({MAIN: 9, gone: 7}), {})) == [MAIN]
    source.committed(Position({MAIN: 1, gone: 7}))
    assert world.main.committed_positions == [Position({MAIN: 1})]


def test_older_runs_are_removed_and_offsets_continue(tmp_path):
    """A lane whose position is in a removed run reads on after it. A new lane reads the last snapshot."""
    kept, world, reader = BackfillFolder(tmp_path, "public.a"), World(tmp_path), BatchRecorder(lambda frame: frame)
    kept.lock()
    first = kept.begin_run((1,), "2024-01-01", "s", "f")
    kept.append(kept.build_records([b"a"] * 2, [b"1"] * 2), {"run": first.run, "stage": "rows"})
    source = world.source()
    reader.position.update({kept.topic: first.next + 1})
    second = kept.begin_run((2, 7), "2024-01-02", "s", "f")
    kept.append(kept.build_records([b"b"] * 2, [b"2"] * 2), {"run": second.run, "stage": "rows"})
    kept.remove_before(second.run)
    assert (second.run, second.next) == (first.run + 1, first.next + 2)
    assert source.start() == Position({kept.topic: second.next})
    source.read(Position(dict(reader.position)), source.end(), reader, threading.Event())
    assert [row["value"] for row in reader.rows] == [b"2", b"2"]
    kept.remove_before(second.run + 1)
    assert kept.begin_run((3,), "2024-01-03", "s", "f").next == second.next + 2
    kept.unlock()


def test_newest_time_of_the_journal(tmp_path):
    """By the source's clock, over all tables. Journals of older versions may have no time."""
    journal = JournalSource({"state": str(tmp_path), "batch_bytes": 1})
    assert journal.get_newest_time() is None
    kept = {name: BackfillFolder(tmp_path, name) for name in ("public.a", "public.b")}
    for number, (name, micros) in enumerate([("public.a", 1_000_001), ("public.b", 3_000_000), ("public.a", 2_000_000)]):
        kept[name].folder.mkdir(exist_ok=True)
        kept[name].append(kept[name].build_records([b"k"], [b"v"]), {"run": number, "stage": "rows", "micros": micros})
    kept["public.a"].append(kept["public.a"].build_records([b"k"], [b"v"]), {"run": 1, "stage": "deletes"})
    assert journal.get_newest_time() == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    for piece in kept["public.b"].list_files():
        piece.path.unlink()
    assert (
        journal.get_newest_time()
        == BackfilledSource(FakeSource(), journal).features.get_concurrent_time()
        == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    )


def test_avro_decoder_reads_stored_rows():
    """Without a request to the registry. In any other topic such a value is no Avro."""
    columns = tuple(SimpleNamespace(name=n, required=n == "id", sql=t, schema={"type": t}) for n, t in COLUMNS.items())
    events = DebeziumEvents(BackfillTable("d", "public", "a", columns, ("id",)), PostgresLog())
    moment = SnapshotPoint((800,), 1_700_000_000_000_000)
    values = [events.encode_read('{"id":1,"note":"x"}', moment), events.encode_delete('{"id":2}', moment)]
    keys = [events.encode_key('{"id":1}'), events.encode_key('{"id":2}')]

    def make_journal_frame(topic: str) -> pa.Table:
        rows = [{"topic": topic, "partition": 0, "offset": i, "key": keys[i], "value": values[i]} for i in range(2)]
        return pa.Table.from_pylist(rows, RAW)

    decoder = DebeziumAvroDecoder({"registry": {"url": "http://127.0.0.1:1"}})
    ((_, table, changes),) = decode_runs(decoder, make_journal_frame("_backfill.public.a"))
    assert (table.name, table.keys, [c.name for c in table.columns]) == ("public.a", ("id",), ["id", "note"])
    assert [(r["_op"], r["id"], r["_seq_1"], r["_error"]) for r in changes.to_pylist()] == [
        ("r", 1, 800, None),
        ("d", 2, 800, None),
    ]
    assert set(decoder.route(make_journal_frame("public.a"))["table"].to_pylist()) == {None}
    private = DebeziumAvroDecoder({"registry": {"url": "http://127.0.0.1:1"}, "private": {"public.a": {"note": MASK}}})
    stored = private.mask_records(make_journal_frame("_backfill.public.a"))
    assert b'"x"' not in stored["value"][0].as_py()
    live, again = (next(decode_runs(private, records))[2] for records in (make_journal_frame("_backfill.public.a"), stored))
    assert live["note"].to_pylist() == again["note"].to_pylist() and len(live["note"][0].as_py()) == 64


COLUMNS = {"id": "int32", "note": "string"}
MASK = Mask("hmac", b"k" * 16)


def lane(into: str, policy: str = "scd1", **shape: Any) -> Lane:
    return Lane(f"lake.{into}", "p", "s", "public.a", "lake", into, policy, {}, "c:1", None, RowTransforms(**shape))


class RecordedBackfill:
    """A backfill that only says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def rows(self, report, *, from_scratch=False):
        self.asked.append("rows")
        return BackfillSnapshot(3, False, (800,), ("id",), "2024-01-01", self.find_end())

    def deletes(self, keys):
        self.asked.append(sorted(keys["id"].to_pylist()))
        return keys.num_rows, self.find_end()

    def find_end(self):
        return Position({TopicPartition("_backfill.public.a", 0): len(self.asked)})

    def finish(self):
        self.asked.append("finish")


def test_rows_are_applied_before_targets_are_searched(tmp_path):
    """And deletes before the end; every key once, however many targets have it. The end of the stream is read after the
    snapshot."""
    told, waited, asked = RecordedBackfill(), [], []

    def read_left_rows(one, where):
        if where.endswith(" IS NULL"):
            return pa.table({"id": [5]}) if one.id == "lake.two" else None
        asked.append((one.id, where, list(told.asked)))
        types = {"lake.one": pa.int32(), "lake.two": pa.int64()}
        return pa.table({"id": pa.array([7, 9], types[one.id]), "note": ["a", "b"]}) if one.id in types else None

    case = BackfillOperation(
        told, waited.append, lambda: Position({MAIN: len(told.asked)}), read_left_rows, lambda _: None, lambda: None
    )
    outcome = case.run("public.a", [lane("one"), lane("two", "scd2"), lane("none"), lane("every", "append")])
    assert told.asked == ["rows", [7, 9], "finish"]
    assert waited[0][MAIN] == 1 and len(waited) == 2
    assert [where for _, where, _ in asked] == [
        '"_cdc_seq_1" < 800',
        '"_cdc_end_seq_1" IS NULL AND "_cdc_last_seq_1" < 800',
        '"_cdc_seq_1" < 800',
    ]
    assert (outcome.deleted, outcome.deletes_of) == (2, ("lake.one", "lake.two", "lake.none"))
    every, strangers = outcome.without
    assert every == "No rows of lake.every are deleted: it keeps every change, or has `deletes: ignore`."
    assert strangers.startswith("lake.two has 1 row that") and "(_cdc_last_seq_1 is NULL)" in strangers


def test_lanes_are_checked_before_rows_are_read():
    told = RecordedBackfill()

    def stop_lane():
        raise Fatal("Lane lake.one is suspended.")

    case = BackfillOperation(told, lambda _: None, Position, lambda one, where: None, lambda _: None, stop_lane)
    with pytest.raises(Fatal, match="suspended"):
        case.run("public.a", [lane("one")])
    assert not told.asked


def waiter(statuses=(), transactions: str | None = None, lanes=("one",)) -> BackfillWaiter:
    """Beside a daemon that answers these statuses, the last one for ever."""
    answers = iter(statuses)
    last: list[Any] = [None]

    def ask():
        last[0] = next(answers, last[0])
        return last[0]

    return BackfillWaiter("s", [lane(name) for name in lanes], transactions, ask, list, lambda _: None)


def test_changes_that_wait_for_their_transaction_are_not_applied():
    """Only partitions of the lane count, not the transaction topic."""
    end = Position({TopicPartition("shop", 0): 5, TopicPartition("t", 0): 9, TopicPartition("other", 0): 3})
    for handed, let_go in (({"shop": {"0": 5}, "t": {"0": 1}}, True), ({"shop": {"0": 4}, "t": {"0": 9}}, False)):
        assert waiter(transactions="t").is_released({"handed": handed}, end) is let_go
    assert waiter().is_released({"handed": {"shop": {"0": 4}}}, end), "halves of key changes are let go by the clock"


def test_wait_for_the_daemon_ends_when_its_lanes_applied_the_stream(monkeypatch):
    """Neither earlier positions nor later changes count, nor lanes of other tables."""
    monkeypatch.setattr("replicator.application.operations.backfill.ASK_EVERY", 0.001)
    monkeypatch.setattr("replicator.application.operations.backfill.ANSWERS_WITHIN", 0.1)
    asked = []

    def status(read: int, handed: int, applied: int, **more: Any) -> dict[str, Any]:
        one = {"id": "lake.one", "status": "running", "next_step": "", "error": None}
        one |= {"handed": {"t": {"0": handed}}, "position": {"t": {"0": applied}}, **more}
        other = {**one, "id": "lake.other", "status": "suspended", "position": {}}
        return {"sources": [{"name": "s", "position": {"t": {"0": read}}}], "lanes": [one, other]}

    def note(answers):
        for answer in answers:
            asked.append(answer)
            yield answer

    goal = Position({MAIN: 5})
    seen = [status(4, 4, 4), status(5, 5, 4), status(9, 9, 4), status(9, 9, 5)]
    waiter(note([seen[0], *seen])).wait(goal)
    assert len(asked) == 5
    with pytest.raises(Fatal, match="is suspended: broken"):
        waiter([status(5, 5, 5, status="suspended", error="broken")]).refuse_halted()
    waiter().refuse_halted()
    with pytest.raises(EnvironmentProblem, match="has ended"):
        waiter([seen[0], seen[0], seen[1], None]).wait(goal)


@pytest.mark.parametrize("below", [(1,), (1, 1), (1, 0, 2)])
def test_older_rows_are_compared_like_tuples(below):
    every = list(product(range(3), repeat=3))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (_cdc_seq_1 int, _cdc_seq_2 int, _cdc_seq_3 int)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", every)
        found = connection.execute(f"FROM t WHERE {older_rows_condition(lane('one'), below)}").fetchall()
    assert sorted(found) == [one for one in every if one[: len(below)] < below]


def test_targets_that_are_searched_for_deletes():
    assert "IS NOT TRUE" in older_rows_condition(lane("soft", soft_deletes=True), (5,))
    wanted, why = find_deletable_lanes([lane("a"), lane("b", sequence_by=("at",))], ("id",))
    assert wanted == [] and "lake.b orders its changes by at" in why[0] and "c:1" in why[0]
    wanted, why = find_deletable_lanes([lane("a"), lane("kept", without_deletes=True)], ("id",))
    assert [one.into for one in wanted] == ["a"] and "lake.kept" in why[0]


def test_targets_with_transformed_keys_are_not_searched():
    """A renamed key has the same values."""
    rules = {
        "renamed": ColumnRule(rename="pk"),
        "cast": ColumnRule(cast=pa.string()),
        "masked": ColumnRule(mask=MASK),
    }
    lanes = [
        lane(into, column_transforms=ColumnTransforms((("id", rule), ("note", ColumnRule(drop=True)))))
        for into, rule in rules.items()
    ]
    wanted, why = find_deletable_lanes(lanes, ("id",))
    assert [one.into for one in wanted] == ["renamed"]
    assert [sentence.partition(" are ")[0] for sentence in why] == ["No rows of lake.cast", "No rows of lake.masked"]
    asked = []
    left = lambda one, _: pa.table({one.row_transforms.column_transforms.get_new_name("id"): [1, 2], "x": [0, 0]})  # noqa: E731
    reading = SimpleNamespace(deletes=lambda keys: asked.append(keys.to_pydict()) or (keys.num_rows, Position()))
    found = BackfillOperation(reading, lambda _: None, Position, left, lambda _: None, lambda: None)
    snapshot = BackfillSnapshot(0, False, (5,), ("id",), "", Position())
    assert found._delete_missing(wanted, snapshot) == (2, Position()) and asked == [{"id": [1, 2]}]


def test_pace_is_that_of_the_stream(tmp_path):
    """An engine reports it, or nothing does."""
    main, journal = FakeSource(), JournalSource({"state": str(tmp_path), "batch_bytes": 1})
    assert BackfilledSource(main, journal).features.pace is None
    main.features = SourceFeatures(engine="spark", pace=lambda: "fast")
    both = BackfilledSource(main, journal).features
    assert (both.pace(), both.engine) == ("fast", "spark")
