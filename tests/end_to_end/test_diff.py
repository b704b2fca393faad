"""`replicator diff`: a source against its targets, while both change."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from replicator.application.operations.diff_progress import DiffProgressFile, UnfinishedDiff
from replicator.domain.differences import LaneDiff
from replicator.settings import Loaded, load_settings
from replicator.wiring.diff import diff_tables, repair_table

from .mirrored_items import current
from .stack import World, run
from .test_backfill import ROWS, prepared_world, read_up_to_now
from .test_incremental_snapshot import Clerk

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

LANES = ("lake.items", "lake.versions", "target.items", "target.versions")


def settings(world: World) -> Loaded:
    return load_settings(world.folder / "config" / "replicator.yaml", overrides=world.overrides, environ=world.environ)


def compare(world: World, **more: Any) -> dict[str, LaneDiff]:
    return {diff.lane: diff for diff in diff_tables(settings(world), ["public.items"], print, **more)}


def describe(diff: LaneDiff) -> set[tuple[str, int, str]]:
    return {(one.kind, one.key["id"], ",".join(map(str, one.columns.get("note", ())))) for one in diff.differences}


class Killed(Exception):
    """A comparison ends in the middle."""


def resume_after_each_split(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that is killed after each split compares every row once, and changes since its first snapshot again."""
    world.execute("ANALYZE items")
    write = DiffProgressFile.write
    seen = []

    def write_and_end(file: DiffProgressFile, progress: UnfinishedDiff) -> None:
        write(file, progress)
        seen.append(progress.upto)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("replicator.application.operations.diff.SPLIT_ROWS", 600)
        patched.setattr(DiffProgressFile, "write", write_and_end)
        for _ in range(3):
            with pytest.raises(Killed):
                compare(world, sink="lake")
        assert sorted(set(seen)) == seen
        patched.setattr(DiffProgressFile, "write", write)
        found = compare(world, sink="lake")
    assert all(diff.equal and ROWS / 2 < diff.rows < 2 * ROWS for diff in found.values()), found


def test_only_differences_are_reported_while_both_sides_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No change in flight is a difference, and every row that another program wrote, removed or added in a target is one."""
    prepared_world(world).register()
    daemon = world.daemon()
    read_up_to_now(world, daemon)
    with Clerk(world.source):
        found = compare(world)
        assert set(found) == set(LANES)
        assert all(diff.equal and diff.rows > 1000 for diff in found.values()), found
        resume_after_each_split(world, monkeypatch)
    world.execute("INSERT INTO items VALUES (3001, 'here', 1), (3002, NULL, 1), (3003, 'there ', 1)")
    daemon.until(lambda: not current(world), "the targets equal the source", seconds=120)
    for name in ("items", "versions"):
        edits = "UPDATE {0} SET note = 'there' WHERE id = 3003; UPDATE {0} SET note = '' WHERE id = 3002"
        run(world.target, f"{edits}; DELETE FROM {{0}} WHERE id = 3001".format(name))
    run(world.target, "INSERT INTO items SELECT 4000, note, turn FROM items WHERE id = 3003")
    for name in ("items", "versions"):
        table = DeltaTable(world.folder / "deltalake" / name)
        table.update(new_values={"note": "there"}, predicate="id = 3003")
        table.update(new_values={"note": ""}, predicate="id = 3002")
        table.delete("id = 3001")
    with Clerk(world.source):
        found = compare(world)
    expected = {("different", 3003, "there ,there"), ("different", 3002, "None,"), ("missing", 3001, "here,None")}
    assert describe(found["lake.items"]) == expected
    assert describe(found["lake.versions"]) == expected
    assert describe(found["target.versions"]) == expected
    assert describe(found["target.items"]) == {*expected, ("extra", 4000, "None,there")}
    with Clerk(world.source):
        written = [repair_table(settings(world), found[lane], print) for lane in ("lake.items", "target.items")]
        assert [(one.rows, one.deletes) for one in written] == [(3, 0), (3, 1)]
        found = compare(world)
        by_log = compare(world, against="log")
    assert all(diff.equal for diff in found.values()), found
    assert all(by_log[lane].equal for lane in ("lake.items", "target.items")), by_log
    print("YY", by_log["lake.versions"])
    assert not by_log["lake.versions"].equal  # The versions that were edited have ended.
    assert daemon.stop() == 0
