"""`replicator diff`: a table against its lake, which Spark writes, while the table changes."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.small_spark import SMALL

from .compare import index_by_key, list_differences, read_lake_table, read_postgres_table
from .stack import World
from .test_backfill import prepare_world
from .test_incremental_snapshot import Clerk

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(1200)]

PATIENCE = 400.0
"""A JVM starts, and a batch takes seconds."""
PAUSE = 0.1
"""Between two changes."""


def find_differences(world: World) -> list[str]:
    """The differences of the lake's rows from the source."""
    expected = index_by_key(read_postgres_table(world.source, "public", "items"), "id")
    return list_differences(expected, index_by_key(read_lake_table(world.lake / "items"), "id"))


def test_diff_reports_only_real_differences_in_a_lake_of_spark(world: World) -> None:
    """A change in flight is no difference. A row that another program wrote, removed or added is one."""
    prepare_world(world)
    world.overrides += [f"spark={json.dumps(SMALL)}"]
    tables = [{"match": "public.items", "source": "shop", "to": [{"sink": "lake"}]}]
    world.rewrite_config({"engine": "spark", "tables": tables})
    world.register(heartbeat__interval__ms="500")
    daemon = world.daemon()
    daemon.await_condition(lambda: not find_differences(world), "the lake equals the source", PATIENCE)
    compare = ("diff", "items", "--timeout", str(PATIENCE))
    with Clerk(world.source, PAUSE):
        [found] = world.get_result(*compare, seconds=PATIENCE)
    assert found["equal"] and found["rows"] > 1000, found

    world.execute("INSERT INTO items VALUES (3001, 'here', 1), (3002, NULL, 1)")
    daemon.await_condition(lambda: not find_differences(world), "the lake equals the source", PATIENCE)
    items = DeltaTable(world.lake / "items")
    added = items.to_pyarrow_table(filters=[("id", "=", 3001)])
    place = added.schema.get_field_index("id")
    field = added.schema.field(place)
    write_deltalake(items, added.set_column(place, field, pa.array([4001], field.type)), mode="append")
    items.delete("id = 3001")
    items.update(new_values={"note": ""}, predicate="id = 3002")
    with Clerk(world.source, PAUSE):
        [found] = world.get_result(*compare, code=7, seconds=PATIENCE)
        seen = {(one["kind"], one["key"]["id"]) for one in found["differences"]}
        assert seen == {("missing", 3001), ("different", 3002), ("extra", 4001)}
        [repaired] = world.get_result(*compare, "--repair", "--yes", seconds=2 * PATIENCE)
        assert repaired["equal"] and repaired["repaired"] == {"rows": 2, "deletes": 1}, repaired
    daemon.await_condition(lambda: not find_differences(world), "the lake equals the source", PATIENCE)
    assert daemon.stop() == 0
