"""The command `replicator diff`: it finds rows that another program wrote into a target, and repairs them."""

from __future__ import annotations

import pytest

from .mirrored_items import current
from .stack import World, run
from .test_backfill import prepared_world, read_up_to_now

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

DIFF = ("diff", "items", "--sink", "target")


def test_rows_that_differ_are_printed_and_repaired(world: World) -> None:
    prepared_world(world).register()
    daemon = world.daemon()
    read_up_to_now(world, daemon)
    world.execute("INSERT INTO items VALUES (3001, 'here', 1), (3002, NULL, 1)")
    daemon.until(lambda: not current(world), "the targets equal the source", seconds=120)
    run(world.target, "UPDATE items SET note = 'NULL' WHERE id = 3002")
    run(world.target, "INSERT INTO items SELECT 4000, note, turn FROM items WHERE id = 3001")
    done = world.program(*DIFF, "--report", "diff.html", "--rate", "1000000")
    assert done.returncode == 7, done.stdout + done.stderr
    assert (
        "target.items: 2 rows differ (1 extra, 1 different) of " in done.stdout and "target.versions: equal" in done.stdout
    )
    line = next(line for line in done.stdout.splitlines() if line.strip().startswith("id=3002"))
    assert line.split() == ["id=3002", "different", "note", "NULL", "'NULL'"]
    assert "id=4000" in (world.folder / "diff.html").read_text()
    refused = world.answer(*DIFF, "--repair", code=2)
    assert refused["error"]["next_step"] == "Repeat on a terminal, or add --yes."
    repaired = {one["lane"]: one for one in world.ask(*DIFF, "--repair", "--yes", "--anew")}
    assert all(one["equal"] for one in repaired.values())
    assert repaired["target.items"]["repaired"] == {"rows": 1, "deletes": 1}
    assert repaired["target.versions"]["repaired"] is None
    assert world.program(*DIFF).returncode == 0 and not current(world)
    assert daemon.stop() == 0
