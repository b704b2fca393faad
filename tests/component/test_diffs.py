"""A table and its targets are compared while both change: no false difference is reported, and every planted one is."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from ruamel.yaml import YAML
from support.backfilled_table import LANES, BackfilledTable, Writer
from support.loaded_items import TABLE
from support.schema_changes import to_config_dsn

from adapters.sources.backfill import PostgresComparison
from replicator.application.operations.backfill import BackfilledSource
from replicator.application.operations.diff import DiffOperation, describe_letter
from replicator.application.operations.diff_runs import DiffProgressFile, UnfinishedDiff
from replicator.application.quarantine.erasure_filter import ErasureList
from replicator.domain.differences import LaneDiff
from replicator.domain.erasures import Erasure
from replicator.domain.position import Position
from replicator.ports.frames import Lane
from replicator.ports.stores import DeadLetter
from replicator.settings import load_settings
from replicator.wiring.components import ConfiguredComponents

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(7200 if os.environ.get("REPLICATOR_LONG") else 1800)]

ROUNDS = 250 if os.environ.get("REPLICATOR_LONG") else 4
SEED = int(os.environ.get("REPLICATOR_SEED", "1"))
OWN_KEY = 1_000
"""Keys from here on are changed by the test only."""


class Source(BackfilledSource[Any]):
    """A confirmed position of the connector is in the stream: no reader sees the moment in between."""

    def __init__(self, world: Compared) -> None:
        inner = BackfilledTable.source(world)
        super().__init__(inner._main, inner._journal)
        inner._main.pieces = world.pieces
        self._lock = world.lock

    def end(self) -> Position:
        with self._lock:
            return super().end()


class Compared(BackfilledTable):
    """The table, its pipeline and a config of the pipeline."""

    lock: Any = None

    def poll(self) -> None:
        with self.lock:
            super().poll()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The pipeline applies changes, ten times a second."""
        end, failures = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                while not end.wait(0.1):
                    self.apply()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(60)
            assert not failures, failures

    def parts(self) -> ConfiguredComponents:
        path = self.folder / "config" / "replicator.yaml"
        path.parent.mkdir(exist_ok=True)
        dsn = to_config_dsn(self.dsn)
        database = {"dsn": dsn, "publication": "shop", "slot": self.slot.slot}
        source = {"format": "debezium_json", "transport": "kafka", "bootstrap_servers": "127.0.0.1:1", "topics": ["cdc.*"]}
        to = [
            {"sink": "lake"},
            {"sink": "lake", "into": "versions", "policy": "scd2"},
            {"sink": "pg", "into": "softly", "deletes": "soft"},
            {"sink": "pg", "into": "versions", "policy": "scd2"},
        ]
        config = {
            "pipeline": "p",
            "state": str(self.folder / "state"),
            "sources": {"s": {**source, "database": database}},
            "sinks": {
                "lake": {"kind": "delta", "path": str(self.folder / "lake")},
                "pg": {"kind": "postgres", "dsn": dsn, "schema": "mirror"},
            },
            "tables": [{"match": TABLE, "source": "s", "to": to}],
        }
        with path.open("w") as out:
            YAML().dump(config, out)
        components = ConfiguredComponents(load_settings(path))
        components.register.save("s", self.register.load("s"))
        return components

    @property
    def register(self) -> Any:
        from replicator.application.state_folder import FileRegister

        return FileRegister(self.folder / "register")

    def comparison(self) -> PostgresComparison:
        return PostgresComparison(
            {
                "dsn": self.dsn,
                "publication": "shop",
                "slot": self.slot.slot,
                "table": TABLE,
                "state": str(self.folder / "kept"),
            }
        )

    def compare(self, lanes: tuple[Lane, ...] = LANES, **more: Any) -> dict[str, LaneDiff]:
        operation = DiffOperation(self.parts(), lanes, self.comparison(), Source(self), lambda _: None, patience=60, **more)
        return {diff.lane: diff for diff in operation.run()}


@pytest.fixture
def world(postgres_dsn: str, tmp_path: Path) -> Compared:
    made = Compared(postgres_dsn, tmp_path, Random(SEED))
    made.lock = threading.RLock()
    made.backfill()
    return made


PLANTED = {
    "value": ("different", {"note": "'planted'"}),
    "case": ("different", {"note": "'Kept'"}),
    "trailing blank": ("different", {"note": "'kept '"}),
    "empty text": ("different", {"note": "''"}),
    "null": ("different", {"turn": "NULL"}),
    "lost row": ("missing", None),
    "extra row": ("extra", None),
}


def plant(world: Compared, lane: Lane, kind: str, key: int, added: int = 0) -> None:
    """Changes the target like another program. An extra row has the key `added`, and the values of another row."""
    change = PLANTED[kind][1]
    where = f"id = {key}" + (" AND _cdc_end_seq_1 IS NULL" if lane.into == "versions" else "")
    if lane.sink == "pg":
        relation = f"mirror.{lane.into}"
        statement = f"DELETE FROM {relation} WHERE {where}"
        if kind == "extra row":
            row = f"jsonb_populate_record(r, jsonb_build_object('id', {added}))"
            statement = f"INSERT INTO {relation} SELECT ({row}).* FROM {relation} AS r WHERE {where}"
        elif change is not None:
            statement = f"UPDATE {relation} SET {', '.join(f'{n} = {v}' for n, v in change.items())} WHERE {where}"
        world.execute(statement)
        return
    for _ in range(50):
        table = DeltaTable(world.folder / "lake" / lane.into)
        try:
            if kind == "extra row":
                rows = table.to_pyarrow_table(filters=[("id", "=", key)])
                row = rows.filter(pc.is_null(rows["_cdc_end_seq_1"])) if lane.into == "versions" else rows
                at, field = row.schema.get_field_index("id"), row.schema.field("id")
                write_deltalake(table, row.set_column(at, field, pa.array([added], field.type)), mode="append")
            elif change is None:
                table.delete(where)
            else:
                table.update(updates=change, predicate=where)
            return
        except CommitFailedError:  # The pipeline has committed in the meantime.
            continue
    raise AssertionError("each attempt conflicts with a commit of the pipeline")


def test_record_missing_from_the_topic_is_found(world: Compared) -> None:
    with world.lock:
        world.execute("UPDATE items SET note = 'lost' WHERE id = 7; DELETE FROM items WHERE id = 8")
        BackfilledTable.poll(world)
        world.pieces[:] = [piece.filter(pc.invert(is_lost(piece))) for piece in world.pieces]
    with world.running():
        found = world.compare()
    expected = {("different", 7), ("extra", 8)}
    assert all({(one.kind, one.key["id"]) for one in diff.differences} == expected for diff in found.values()), found


def test_blocked_key_explains_a_difference(world: Compared) -> None:
    """Its records are rejected before they reach a lane."""
    world.execute("UPDATE items SET note = 'blocked' WHERE id = 7; UPDATE items SET note = 'lost' WHERE id = 8")
    BackfilledTable.poll(world)
    records = [record for piece in world.pieces for record in piece.to_pylist()]
    blocked = next(one for one in records if json.loads(one["key"])["payload"] == {"id": 7})
    world.pieces[:] = [piece.filter(pc.invert(is_lost(piece))) for piece in world.pieces]
    now = datetime.now(UTC)
    fields = {name: blocked[name] for name in ("topic", "partition", "offset", "key")}
    letter = DeadLetter(
        "e-7", "", "decode", "HELD", "...", TABLE, "", blocked["value"], now, now, source="s", **fields
    )  # fmt: skip
    with closing(world.parts().open_dead_letters()) as store:
        store.write([letter])
    with world.running():
        [diff] = world.compare(LANES[:1]).values()
    assert {one.key["id"]: one.reason for one in diff.differences} == {7: describe_letter(letter), 8: ""}


def test_erased_rows_are_not_missing(world: Compared) -> None:
    """The source may still have them."""
    erased = ErasureList(world.parts().erasures)
    hashes = erased.open_hashes()
    of_key = hashes.hash_key("s", TABLE, ["id"], ["7"])
    erased.put_erasure(hashes, Erasure("s", TABLE, ("id",), of_key, datetime.now(UTC)))
    for lane in LANES:
        plant(world, lane, "lost row", 7)
    plant(world, LANES[0], "lost row", 8)
    with world.running():
        found = world.compare()
    differences = {lane: [(one.kind, one.key["id"]) for one in diff.differences] for lane, diff in found.items()}
    assert differences == {**{lane.id: [] for lane in LANES}, LANES[0].id: [("missing", 8)]}


def test_limited_rate_pauses_between_splits(world: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    world.execute("ANALYZE items")
    monkeypatch.setattr("replicator.application.operations.diff.LEAST_ROWS", 10)
    waits = list[float]()
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=waits.append)
    monkeypatch.setattr("replicator.application.operations.diff.time", clock)
    with world.running():
        [diff] = world.compare(LANES[:1], rows_per_second=2).values()
    assert diff.equal and waits == [0, 5, 10, 15], "seconds that 10 rows more need at 2 rows a second"


def is_lost(piece: pa.Table) -> pa.Array:
    """True for records of the rows 7 and 8."""
    return pa.array([json.loads(key)["payload"]["id"] in (7, 8) for key in piece["key"].to_pylist()], pa.bool_())


class Killed(Exception):
    """A kill in the middle of a comparison."""


def test_comparison_killed_after_each_split_is_resumed(world: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    world.execute("ANALYZE items")
    write, seen = DiffProgressFile.write, list[Any]()

    def write_and_end(file: DiffProgressFile, progress: UnfinishedDiff) -> None:
        write(file, progress)
        seen.append(progress.upto)
        raise Killed

    monkeypatch.setattr("replicator.application.operations.diff.SPLIT_ROWS", 15)
    monkeypatch.setattr(DiffProgressFile, "write", write_and_end)
    plant(world, LANES[0], "lost row", 3)
    with world.running(), Writer(world.items, SEED, 30):
        for _ in range(2):
            with pytest.raises(Killed):
                world.compare(LANES[:1])
        assert len(seen) == 2 and seen[0] < seen[1]
        monkeypatch.setattr(DiffProgressFile, "write", write)
        [diff] = world.compare(LANES[:1]).values()
    assert [(one.kind, one.key) for one in diff.differences] == [("missing", {"id": 3})], diff
    assert 30 < diff.rows < 90
    first, last = diff.position
    assert first != last
    with world.running():
        # The rules of a lane may have changed since the interruption.
        monkeypatch.setattr(DiffProgressFile, "write", write_and_end)
        with pytest.raises(Killed):
            world.compare(LANES[:1])
        monkeypatch.setattr(DiffProgressFile, "write", write)
        [diff] = world.compare((replace(LANES[0], config_line="c:2"),)).values()
    assert diff.position[0] == diff.position[1]


def test_random_histories_have_no_false_difference(world: Compared) -> None:
    random = Random(SEED)
    own = range(OWN_KEY, OWN_KEY + 20)
    world.execute(f"INSERT INTO items SELECT i, 'kept', i FROM generate_series({own.start}, {own.stop - 1}) i")
    with ExitStack() as running:
        running.enter_context(world.running())
        for seed in range(3):
            running.enter_context(Writer(world.items, SEED + seed, 3))
        for added in range(2000, 2000 + ROUNDS):
            found = world.compare()
            assert all(diff.equal for diff in found.values()), found
            lane, kind, key = random.choice(LANES), random.choice(list(PLANTED)), random.choice(own)
            plant(world, lane, kind, key, added)
            [diff] = world.compare((lane,)).values()
            named = added if kind == "extra row" else key
            differences = [(one.kind, one.key["id"]) for one in diff.differences]
            assert differences == [(PLANTED[kind][0], named)], (lane, kind, diff)
            repaired = world.comparison().repair(diff.keys, lambda _: None)
            assert (repaired.rows, repaired.deletes) == ((0, 1) if kind == "extra row" else (1, 0))
    world.apply()
    world.check()
