"""A table that is read whole while it changes, under kills: its targets end as the table is, whatever arrives first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.backfilled_table import COLUMNS, LANES, BackfilledTable, ProcessKilled, Writer
from support.loaded_items import TABLE, MariaDbItems

from adapters.sources.backfill.journal import BackfillFolder
from replicator.domain.errors import EnvironmentProblem, Fenced
from replicator.testing.model import Change, fold_changes

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]


DATABASES = ["postgresql", pytest.param("mariadb", marks=pytest.mark.long)]
"""What MariaDB decides itself, the place of a snapshot in its binlog, is tried by default, and all else in a long run."""
on_every_database = pytest.mark.parametrize("make_world", ["postgresql", "mariadb"], indirect=True)


@pytest.fixture(params=DATABASES)
def make_world(
    request: pytest.FixtureRequest, postgres_dsn: str, tmp_path: Path
) -> Iterator[Callable[..., BackfilledTable]]:
    """Pipelines from either database."""
    with ExitStack() as made:

        def make(seed: int = 1, **more: Any) -> BackfilledTable:
            random = Random(seed)
            if request.param == "postgresql":
                return BackfilledTable(postgres_dsn, tmp_path, random, **more)
            items = MariaDbItems(request.getfixturevalue("mariadb_server"), random)
            made.callback(items.slot.drop)
            return BackfilledTable(postgres_dsn, tmp_path, random, items=items, **more)

        yield make


MakeWorld = Callable[..., BackfilledTable]


def payloads(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(record["value"])["payload"] for record in records]


def place(payload: Mapping[str, Any]) -> tuple[int, int]:
    source = payload["source"]
    if source["connector"] == "mariadb":
        return int(source["file"].partition(".")[2]), source["pos"]
    commit, own = json.loads(source["sequence"])
    return int(commit or own), int(own)


def replay_changes(rows: dict[int, Any], changes: Iterable[Mapping[str, Any]]) -> dict[int, Any]:
    now = dict(rows)
    for payload in changes:
        if payload["op"] == "d":
            now.pop(payload["before"]["id"], None)
        else:
            now[payload["after"]["id"]] = payload["after"]
    return now


SEEDS = [pytest.param(seed, marks=pytest.mark.long if seed else ()) for seed in range(12)]


@on_every_database
@pytest.mark.parametrize("seed", SEEDS)
def test_position_of_a_snapshot_is_exact(seed: int, make_world: MakeWorld) -> None:
    """Each snapshot equals the one before it plus the changes between their positions, although transactions overlap.
    So a history has no version that never existed."""
    world = make_world(seed)
    snapshots: list[tuple[tuple[int, int], dict[int, Any]]] = []
    writers = [Writer(world.items, seed * 3 + number, 3) for number in range(3)]
    with writers[0], writers[1], writers[2]:
        for _ in range(2):
            world.backfill()
            read = [p for p in payloads(world.written_down()) if p["op"] == "r"]
            [at] = {place(p) for p in read}
            snapshots.append((at, {p["after"]["id"]: p["after"] for p in read}))
    world.apply()
    world.check()
    stream = payloads(world.slot.records)
    for (low, before), (high, after) in pairwise(snapshots):
        meanwhile = [p for p in stream if low <= place(p) < high]
        assert meanwhile and replay_changes(before, meanwhile) == after
    assert replay_changes(snapshots[-1][1], [p for p in stream if place(p) >= snapshots[-1][0]]) == {
        key: dict(zip(COLUMNS, row, strict=True)) for key, row in world.table().items()
    }
    expected = versions(snapshots[0][1], [p for p in stream if place(p) >= snapshots[0][0]])
    for lane in (lane for lane in LANES if lane.into == "versions"):
        later = [r for r in world.rows(lane) if (r["_cdc_last_seq_1"], r["_cdc_last_seq_2"]) >= snapshots[0][0]]
        assert sorted((r["id"], r["note"], r["turn"], r["_cdc_end_seq_1"] is None) for r in later) == expected


def versions(rows: dict[int, Any], changes: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """The versions from these rows on, and whether they are open."""
    now, ended = dict(rows), []
    for payload in changes:
        new = payload["after"]
        key = (new or payload["before"])["id"]
        old = now.pop(key, None)
        if old is not None and old != new:
            ended.append((*(old[c] for c in COLUMNS), False))
        if new is not None:
            now[key] = new
    return sorted([*ended, *((*(row[c] for c in COLUMNS), True) for row in now.values())])


@pytest.mark.parametrize("seed", SEEDS)
def test_targets_equal_the_table_after_kills_at_any_time(
    seed: int, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed between any two stored pieces, many times, while the stream runs or not. If the stream
    misses changes, the next full backfill applies them."""
    world = make_world(seed, piece_rows=Random(seed).randint(3, 15))
    random = world.random
    whole = BackfillFolder.append
    for _ in range(2):
        if random.random() < 0.6:
            with world.change_unseen(), world.items.connect() as connection:
                for turn in range(30):
                    world.items.change(connection, random, random.randrange(60), 1_000 + turn)
        with Writer(world.items, seed, 1):
            while _is_killed(world, random, monkeypatch, whole):
                if random.random() < 0.5:
                    world.apply()
            monkeypatch.setattr(BackfillFolder, "append", whole)
        world.apply()
        world.check()


def _is_killed(world: BackfilledTable, random: Random, monkeypatch: pytest.MonkeyPatch, whole: Any) -> bool:
    left = random.randint(0, 9)

    def append(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise ProcessKilled
        whole(*args)

    monkeypatch.setattr(BackfillFolder, "append", append)
    try:
        world.backfill(from_scratch=random.random() < 0.1)
    except ProcessKilled:
        return True
    return False


@on_every_database
def test_targets_equal_the_model(make_world: MakeWorld) -> None:
    """The model gets the changes of the stream and of two backfills, in any order."""
    world = make_world()
    world.backfill()
    with world.change_unseen():
        world.execute("DELETE FROM items WHERE id < 10")
        world.execute("UPDATE items SET note = 'unseen' WHERE id BETWEEN 10 AND 15")
    world.execute("UPDATE items SET note = 'seen' WHERE id BETWEEN 14 AND 20")
    first = world.written_down()
    outcome = world.backfill()
    assert (outcome.deleted, outcome.rows, len(outcome.deletes_of)) == (9, 31, 4)
    world.check()
    events = [*payloads(world.slot.records), *payloads(first), *payloads(world.written_down())]
    changes = [
        Change(p["op"], (*place(p), 0), dict(p["after"] or dict.fromkeys(COLUMNS) | {"id": p["before"]["id"]}))
        for p in events
    ]
    for lane in LANES:
        if lane.into == "softly":
            continue
        wanted, _ = fold_changes(lane.policy, COLUMNS, ("id",), changes)
        names = [*COLUMNS, "_cdc_seq_1", "_cdc_seq_2", *(["_cdc_end_seq_1"] if lane.policy == "scd2" else [])]
        assert sorted(repr([r.get(n) for n in names]) for r in world.rows(lane)) == sorted(
            repr([r.get(n) for n in names]) for r in wanted
        ), lane.id
    softly = [r for lane in LANES if lane.into == "softly" for r in world.rows(lane) if r["_cdc_deleted"]]
    assert sorted(r["id"] for r in softly) == [*range(1, 10)]


def test_second_backfill_of_a_table_is_refused(make_world: MakeWorld) -> None:
    world = make_world()
    kept = BackfillFolder(world.folder / "kept", TABLE)
    kept.lock()
    with pytest.raises(Fenced, match=r"Another process backfills public\.items"):
        world.backfill()
    kept.unlock()
    assert world.backfill().rows == 40


@on_every_database
def test_backfill_without_a_change_stream_is_refused(make_world: MakeWorld) -> None:
    world = make_world()
    world.slot.drop()
    with pytest.raises(EnvironmentProblem, match=r"no replication slot|No visible session reads the binlog"):
        world.backfill()


def test_backfill_deletes_only_rows_that_it_did_not_read(make_world: MakeWorld) -> None:
    """A row that was read but rejected stays. No row is deleted twice. A delete has the position at which its row would
    have been read, also if a later call reads the rest."""
    world = make_world(piece_rows=15)
    first, pieces = world.reading(), 0

    def tell(said: str) -> None:
        nonlocal pieces
        pieces += said.endswith("rows read")
        if pieces == 1:
            raise ProcessKilled

    with pytest.raises(ProcessKilled):
        first.rows(tell)
    first.close()
    world.execute("DELETE FROM items WHERE id IN (5, 35)")
    second = world.reading()
    taken = second.rows(lambda _: None)
    assert (taken.rows, taken.resumed, taken.keys) == (39, True, ("id",))
    found = pa.table({"id": pa.array([0, 1, 5, 35, 40, 77], pa.int64())})
    assert (second.deletes(found)[0], second.deletes(found)[0]) == (3, 0)
    second.close()
    events = payloads(world.written_down())
    low, high = sorted({place(p) for p in events if p["op"] == "r"})
    assert low[: len(taken.below)] == taken.below[:2]
    assert {p["before"]["id"]: place(p) for p in events if p["op"] == "d"} == {0: low, 35: high, 77: high}


def test_empty_table_empties_its_targets(make_world: MakeWorld) -> None:
    """The stored pieces of earlier backfills are removed."""
    world = make_world()
    assert world.backfill().rows == 40
    files = set(Path(world.folder / "kept").rglob("*.parquet"))
    with world.change_unseen():
        world.execute("TRUNCATE items")
    outcome = world.backfill()
    assert (outcome.rows, outcome.deleted) == (0, 40)
    world.check()
    assert not files & set(Path(world.folder / "kept").rglob("*.parquet"))
    world.execute("INSERT INTO items VALUES (1, 'new', 1)")
    world.apply()
    world.check()


def test_rows_inserted_by_hand_stay_and_are_counted(postgres_dsn: str, tmp_path: Path) -> None:
    """In a PostgreSQL target, the backfill counts the rows that no record has written."""
    world = BackfilledTable(postgres_dsn, tmp_path, Random(1))
    assert world.backfill().without == ()
    world.execute("INSERT INTO mirror.softly (id, note) VALUES (901, 'by hand'), (902, 'by hand')")
    (softly,) = world.backfill().without
    assert softly.startswith("pg.softly has 2 rows that") and "(_cdc_seq_1 is NULL)" in softly
    assert world.execute("SELECT id FROM mirror.softly WHERE note = 'by hand' ORDER BY id") == [(901,), (902,)]
