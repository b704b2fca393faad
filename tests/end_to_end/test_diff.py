"""`replicator diff` while a source changes and a daemon follows it: it finds changes by other programs, and repairs
them."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from .mirrored_items import list_current_differences
from .stack import World, execute_statements
from .test_backfill import await_current, prepare_world
from .test_incremental_snapshot import Clerk

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

PAUSE = 0.05


def test_diff_finds_and_repairs_rows_while_both_sides_change(world: World) -> None:
    prepare_world(world).register()
    daemon = world.daemon()
    await_current(world, daemon)
    with Clerk(world.source, PAUSE):
        found = world.get_result("diff", "items")
    assert [one["lane"] for one in found] == ["lake.items", "lake.versions", "target.items", "target.versions"]
    assert all(one["equal"] and one["rows"] > 1000 for one in found), found

    world.execute("INSERT INTO items VALUES (3001, 'here', 1), (3002, NULL, 1)")
    daemon.await_condition(lambda: not list_current_differences(world), "the targets equal the source", seconds=120)
    execute_statements(world.target, "UPDATE items SET note = 'NULL' WHERE id = 3002")
    execute_statements(world.target, "INSERT INTO items SELECT 4000, note, turn FROM items WHERE id = 3001")
    DeltaTable(world.folder / "deltalake" / "items").delete("id = 3001")
    with Clerk(world.source, PAUSE):
        done = world.program("diff", "items", "--report", "diff.html", "--rate", "1000000")
        assert done.returncode == 7, done.stdout + done.stderr
        assert "target.items: 2 rows differ (1 extra, 1 different) of " in done.stdout
        assert "lake.items: 1 row differs (1 missing) of " in done.stdout
        assert "target.versions: equal" in done.stdout and "lake.versions: equal" in done.stdout
        line = next(line for line in done.stdout.splitlines() if line.strip().startswith("id=3002"))
        assert line.split() == ["id=3002", "different", "note", "NULL", "'NULL'"]
        assert "id=4000" in (world.folder / "diff.html").read_text()
        refused = world.answer("diff", "items", "--repair", code=2)
        assert refused["error"]["next_step"] == "Repeat on a terminal, or add --yes."
        repaired = {one["lane"]: one for one in world.get_result("diff", "items", "--repair", "--yes", "--anew")}
        assert all(one["equal"] for one in repaired.values()), repaired
        assert repaired["target.items"]["repaired"] == {"rows": 1, "deletes": 1}
        assert repaired["lake.items"]["repaired"] == {"rows": 1, "deletes": 0}
        assert repaired["target.versions"]["repaired"] is None
        by_log = world.get_result("diff", "items", "--sink", "lake", "--against", "log")
        assert [(one["against"], one["equal"]) for one in by_log] == [("log", True)] * 2, by_log

    world.get_result("lanes", "pause", "target.items")
    world.execute("UPDATE items SET note = 'late' WHERE id = 3001")
    execute_statements(world.target, "UPDATE items SET note = 'by hand' WHERE id = 3002")
    [halted] = world.answer("diff", "items", "--sink", "target", "--show", "2000", code=7)["result"][:1]
    paused = "Lane target.items is paused. `replicator lanes resume target.items`."
    reasons = {one["key"]["id"]: one["reason"] for one in halted["differences"]}
    assert (reasons.pop(3001), reasons.pop(3002)) == (paused, ""), halted
    assert not {*reasons.values()} - {paused}, "other changes since the pause"
    world.get_result("lanes", "resume", "target.items")
    assert daemon.stop() == 0
