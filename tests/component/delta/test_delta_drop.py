"""Dropping a lane of a lake: kills at any step, tables of other writers, unreadable logs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from servers.object_store import ObjectStore
from support.delta_writes import ITEMS, make_item_changes, make_write

from adapters.delta import stored_folder
from adapters.delta.folders import LocalFolder
from adapters.delta.lake import Lake
from adapters.sinks.delta import lanes
from adapters.sinks.delta.sink import DeltaRsSink
from replicator.domain.errors import DataLoss, Fatal, Fenced
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.domain.schema_evolution import SchemaVersion
from replicator.ports.frames import Lane
from replicator.testing.delivery import make_lane
from replicator.testing.sink_base import refuse_rejects

LANE = make_lane("scd1")
LOG = make_lane("append")
WHOLE = [
    *make_item_changes(1, 2),
    *make_item_changes(1, op="d"),
    *make_item_changes(3),
    *make_item_changes(2, op="u", v="new"),
    *make_item_changes(4),
]


class Killed(BaseException):
    """A kill: no code catches it."""


class Killer:
    """Allows `after` removals, then raises `Killed`."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, removal: Callable[[], Any]) -> None:
        if not self.left:
            raise Killed
        self.left -= 1
        removal()


FIRST = SchemaVersion(1, ITEMS, ITEMS.columns, Position(), datetime(2026, 3, 1, tzinfo=UTC))


def fill(options: Any, lane: Lane) -> DeltaRsSink:
    """A table of several commits. One commit looks like the first, because it contains all metadata of the table."""
    sink = DeltaRsSink(options)
    sink.prepare(lane, plan_for(lane.policy, ITEMS))
    for start in range(len(WHOLE)):
        sink.apply([make_write(WHOLE[start : start + 1], start, lane=lane)], refuse_rejects)
        if start == 3:
            table = Lake.from_path(options["path"], stored_folder.Storage.model_validate(options.get("storage", {}))).table(
                lane.into
            )
            DeltaTable(table.uri, storage_options=table.options).alter.set_table_properties(
                {"delta.enableChangeDataFeed": "true"}
            )
            sink.close()
            sink = DeltaRsSink(options)
            sink.prepare(lane, plan_for(lane.policy, ITEMS))
    return sink


def rows(sink: DeltaRsSink) -> list[tuple[int, str]]:
    found = sink.read("items")
    return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def load(sink: DeltaRsSink, lane: Lane) -> list[tuple[int, str]]:
    """Rows of the target after all records were applied from the start."""
    sink.prepare(lane, plan_for(lane.policy, ITEMS))
    sink.apply([make_write(WHOLE, lane=lane)], refuse_rejects)
    return rows(sink)


def clear_in_any_order(killer: Killer, seed: int) -> Callable[[LocalFolder], None]:
    """`LocalFolder.clear` as in an object store: files are deleted one by one, in random order."""

    def clear(folder: LocalFolder) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        random.Random(seed).shuffle(files)
        for file in files:
            killer(file.unlink)
        shutil.rmtree(folder, ignore_errors=True)

    return clear


def check_killed_drops(options: Callable[[], Any], lane: Lane, arm: Callable[[Killer], Any], step: int = 1) -> None:
    """Kills a drop after each number of removals. Then either nothing was removed, or the lane is refused, or it does
    not exist. A repeated drop removes the rest."""
    refusals = 0
    for after in count(0, step):
        lake = options()
        sink = fill(lake, lane)
        before, expected = sink.state(lane), rows(sink)
        sink.close()
        with pytest.MonkeyPatch.context() as patched:
            killer = Killer(after)
            arm(killer)(patched)
            sink = DeltaRsSink(lake)
            try:
                sink.drop(lane)
            except Killed:
                pass
            else:
                assert refusals > 3, "no drop was killed in the middle"
                return
            finally:
                sink.close()
        again = DeltaRsSink(lake)
        try:
            state = again.state(lane)
        except DataLoss as refused:
            refusals += 1
            assert f"`replicator drop {lane.id}`" in refused.next_step
            with pytest.raises(DataLoss, match="half dropped"):
                again.prepare(lane, plan_for(lane.policy, ITEMS))
            with pytest.raises(DataLoss, match="half dropped"):
                again.reset(lane)
        else:
            assert (rows(again) == expected) if state == before else (state is None and load(again, lane) == expected), after
        again.drop(lane)
        assert not again.list_artifacts(lane) and again.state(lane) is None
        assert load(again, lane) == expected
        again.close()


@pytest.mark.parametrize("lane", [LANE, LOG], ids=lambda lane: lane.policy)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_killed_drop_can_be_repeated(tmp_path: Path, lane: Lane, seed: int) -> None:
    lakes = count()

    def arm(killer: Killer) -> Callable[[pytest.MonkeyPatch], None]:
        def patch(patched: pytest.MonkeyPatch) -> None:
            drop = LocalFolder.drop
            patched.setattr(LocalFolder, "clear", clear_in_any_order(killer, seed))
            patched.setattr(LocalFolder, "drop", lambda folder, file: killer(lambda: drop(folder, file)))

        return patch

    check_killed_drops(lambda: {"path": str(tmp_path / str(next(lakes)))}, lane, arm, step=3)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("lane", [LANE, LOG], ids=lambda lane: lane.policy)
def test_killed_drop_in_a_store_can_be_repeated(s3: ObjectStore, lane: Lane) -> None:
    def arm(killer: Killer) -> Callable[[pytest.MonkeyPatch], None]:
        def patch(patched: pytest.MonkeyPatch) -> None:
            delete = obstore.delete

            def one_by_one(store: Any, paths: Any) -> None:
                for path in [paths] if isinstance(paths, str) else list(paths):
                    killer(lambda path=path: delete(store, path))

            patched.setattr(stored_folder.obstore, "delete", one_by_one)

        return patch

    check_killed_drops(s3.lake, lane, arm, step=6)


def test_drop_removes_all_artifacts_except_the_lock(tmp_path: Path) -> None:
    sink = fill({"path": str(tmp_path)}, LANE)
    sink.remember(LANE, FIRST)
    listed = {artifact.what: artifact.where for artifact in sink.list_artifacts(LANE)}
    home = tmp_path / "_replicator"
    assert listed == {
        "table": str(tmp_path / "items"),
        "remembered deletes": str(home / "tombstones" / "items"),
        "schemas": str(home / "schemas" / "items"),
        "positions": str(home / "positions" / "testing" / LANE.id),
    }
    sink.drop(LANE)
    sink.close()
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        f"_replicator/locks/testing/{LANE.id}.lock"
    ]


def test_table_description_names_its_lane(tmp_path: Path) -> None:
    fill({"path": str(tmp_path)}, LANE).close()
    assert (
        DeltaTable(str(tmp_path / "items")).metadata().description
        == f"made by replicator for lane {LANE.id} of pipeline testing"
    )


def test_drop_keeps_an_existing_table_and_its_own_rows(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "items"), pa.table({"id": [10, 2], "v": ["own", "old"]}))
    options = {"path": str(tmp_path)}
    sink = fill(options, LANE)
    assert (10, "own") in rows(sink) and (2, "new") in rows(sink)
    assert {artifact.what for artifact in sink.list_artifacts(LANE) if artifact.stays} == {"table", "positions"}
    for _ in range(2):
        sink.drop(LANE)
        assert rows(sink) == [(10, "own")] and not sink.list_artifacts(LANE) and sink.state(LANE) is None
    assert load(sink, LANE) == [(2, "new"), (3, "v3"), (4, "v4"), (10, "own")]
    sink.close()


def test_drop_keeps_a_table_that_the_lane_did_not_create(tmp_path: Path) -> None:
    """No lane wrote the table, or it replaced the lane's table before or during a drop."""
    options = {"path": str(tmp_path)}
    foreign = pa.table({"id": [10], "v": ["own"]})
    write_deltalake(str(tmp_path / "items"), foreign)
    sink = DeltaRsSink(options)
    assert not sink.list_artifacts(LANE)
    sink.drop(LANE)
    assert rows(sink) == [(10, "own")]
    shutil.rmtree(tmp_path / "items")
    for half in (False, True):
        fill(options, LANE).close()
        if half:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(LocalFolder, "clear", lambda _: Killer(0)(lambda: None))
                with pytest.raises(Killed):
                    sink.drop(LANE)
        shutil.rmtree(tmp_path / "items")
        write_deltalake(str(tmp_path / "items"), foreign)
        assert "table" not in {artifact.what for artifact in sink.list_artifacts(LANE)}
        sink.drop(LANE)
        assert not sink.list_artifacts(LANE) and rows(sink) == [(10, "own")]
        shutil.rmtree(tmp_path / "items")
    sink.close()


@pytest.mark.parametrize("damage", ["cut", "without its beginning"])
def test_table_with_a_damaged_log_is_dropped(tmp_path: Path, damage: str) -> None:
    fill({"path": str(tmp_path)}, LANE).close()
    log = sorted((tmp_path / "items" / "_delta_log").glob("*.json"))
    if damage == "cut":
        log[-1].write_bytes(log[-1].read_bytes()[:100])
    else:
        for commit in log[:-1]:
            commit.unlink()
    sink = DeltaRsSink({"path": str(tmp_path)})
    assert "table" in {artifact.what for artifact in sink.list_artifacts(LANE)}
    sink.drop(LANE)
    assert load(sink, LANE) == [(2, "new"), (3, "v3"), (4, "v4")]
    sink.close()


def test_lane_without_its_table_is_dropped(tmp_path: Path) -> None:
    sink = fill({"path": str(tmp_path)}, LANE)
    shutil.rmtree(tmp_path / "items")
    assert "table" not in {artifact.what for artifact in sink.list_artifacts(LANE)}
    sink.drop(LANE)
    assert not sink.list_artifacts(LANE)
    sink.close()


def test_drop_of_a_table_shared_with_another_lane_is_refused(tmp_path: Path) -> None:
    sink = fill({"path": str(tmp_path)}, LANE)
    expected = rows(sink)
    other = tmp_path / "_replicator" / "positions" / "else" / "lake.items"
    other.mkdir(parents=True)
    with pytest.raises(Fatal, match=r"by lane lake\.items of pipeline else too; nothing was removed"):
        sink.drop(LANE)
    assert rows(sink) == expected and sink.state(LANE) is not None
    sink.close()


def test_drop_of_a_linked_folder_is_refused(tmp_path: Path) -> None:
    sink = fill({"path": str(tmp_path)}, LANE)
    (tmp_path / "items").rename(tmp_path / ".elsewhere")
    (tmp_path / "items").symlink_to(tmp_path / ".elsewhere")
    with pytest.raises(Fatal, match="is a link; nothing was removed"):
        sink.drop(LANE)
    assert sink.state(LANE) is not None
    sink.close()


def test_commit_during_a_drop_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance on another machine, where locks do not work, commits after the drop started."""
    sink = fill({"path": str(tmp_path)}, LANE)
    clear = LocalFolder.clear

    def clear_and_commit(folder: LocalFolder) -> None:
        clear(folder)
        if folder.name == "items" and folder.parent == tmp_path:
            (folder / "_delta_log").mkdir(parents=True)
            (folder / "_delta_log" / f"{9:020}.json").write_text("{}")

    monkeypatch.setattr(LocalFolder, "clear", clear_and_commit)
    with pytest.raises(Fenced, match="while it was dropped"):
        sink.drop(LANE)
    with pytest.raises(DataLoss, match="half dropped"):
        sink.state(LANE)
    monkeypatch.undo()
    sink.drop(LANE)
    assert not sink.list_artifacts(LANE) and lanes.DROP_MARK not in str(list(tmp_path.rglob("*")))
    sink.close()
