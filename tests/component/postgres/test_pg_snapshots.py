"""Checkpoints of lanes in PostgreSQL: a rebuild from a checkpoint equals a rebuild from the whole log."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.snapshotted_shop import ENTRIES, CheckpointedShop
from test_pg_as_of import have_same_rows, shop_into

from replicator.application.operations import (
    checkpoint,
    checkpoint_schedule,
    drop,
    read_side,
    table_swap,
)
from replicator.application.operations.rebuild import make_rebuild_lane
from replicator.domain.errors import DataLoss, RejectCode
from replicator.domain.position import Position
from replicator.ports.components import Components, RebuildRequest
from replicator.ports.stores import DeadLetter
from replicator.wiring.container import Container, run_until_caught_up

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]
OPTIONS = {
    name: entry.partition(f"into: {name}")[2].strip(", }") for name, entry in ENTRIES.items() if name != "partitioned"
}
SEEDS = [("plain", 1), *(pytest.param(name, 2, marks=pytest.mark.long) for name in OPTIONS)]
MORE = [pytest.param(name, seed, marks=pytest.mark.long) for name in OPTIONS for seed in (3, 4, 5)]


def run_pipeline(rebuild: Components) -> dict[str, Any]:
    rebuild.catch_up()
    return {"records": 0, "applied": 0, "rejected": 0}


def read_rows(shop: CheckpointedShop, name: str) -> pa.Table:
    return read_side.read_target(shop.parts, f"target.{name}")


@pytest.mark.parametrize(("name", "seed"), [*SEEDS, *MORE])
def test_rebuild_starts_from_a_checkpoint(postgres_dsn: str, tmp_path: Path, name: str, seed: int) -> None:
    """It works for a second target and for the lane's own table, also after the log was truncated. The lane then
    continues."""
    shop, table = shop_into(postgres_dsn, tmp_path, seed), f"items_{seed}"
    entry = f"{{sink: target, into: {table}{', ' if OPTIONS[name] else ''}{OPTIONS[name]}}}"
    parts = read_target_options(shop)
    shop.config(entry, f", retention: 1 milliseconds{parts}")
    count = len(shop.history.events)
    shop.reach(count // 2)
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    shop.reach(count)
    live, messages = read_rows(shop, table), list[str]()
    run_pipeline(checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "again"), messages.append))
    assert len(messages) == 1 and "target.again: starting from checkpoint 1" in messages[0]
    assert have_same_rows(read_rows(shop, "again"), live)
    compared = table_swap.compare_target(shop.parts, shop.lane, run_pipeline)
    assert compared["exact"] and compared["same"] == live.num_rows and not compared["differing"]
    drop.drop_lane(
        shop.parts,
        make_rebuild_lane(shop.lane, "again"),
    )
    done = checkpoint_schedule.truncate_logs(shop.parts, checkpoint_schedule.make_sink_caller(shop.parts))
    assert done["raw"], "records before the checkpoint are not needed"
    table_swap.swap_target(shop.parts, shop.lane, run_pipeline, messages.append)
    assert (
        len(messages) == 2 and "starting from checkpoint 1" in messages[1] and have_same_rows(read_rows(shop, table), live)
    )
    again = Container(loaded=shop.load_config)
    run_until_caught_up(again)
    assert {lane.counts["applied"] for lane in again.status().report().lanes} == {0}


def read_target_options(shop: CheckpointedShop) -> str:
    """Options of the target that `shop_into` wrote into the config."""
    text = (shop.folder / "config" / "replicator.yaml").read_text()
    return text.partition("keep: 2}")[2].partition("}\ndead_letters")[0]


def test_as_of_query_starts_from_a_checkpoint_of_a_truncated_log(postgres_dsn: str, tmp_path: Path) -> None:
    """The log keeps all records that the oldest checkpoint needs."""
    shop = shop_into(postgres_dsn, tmp_path, 6)
    shop.config("{sink: target, into: items_6}", f", retention: 1 milliseconds{read_target_options(shop)}")
    shorten = partial(checkpoint_schedule.truncate_logs, call_sink=checkpoint_schedule.make_sink_caller(shop.parts))
    count, held = len(shop.history.events), {}
    for end in (count // 3, count // 2, count):
        shop.reach(end)
        held[end] = read_rows(shop, "items_6")
        assert end > count // 3 or shorten(shop.parts) == {}, "no checkpoint exists yet"
        if end < count:
            checkpoint.take_checkpoint(shop.parts, shop.lane)
    first = checkpoint.list_checkpoints(shop.parts, shop.lane)[0]
    assert shorten(shop.parts)["raw"] == dict(first.position)
    for end, rows in held.items():
        assert have_same_rows(
            read_side.read_target(shop.parts, "target.items_6", as_of=Position(shop.history.position(end))), rows
        )
    with pytest.raises(DataLoss, match="ends at the requested time"):
        read_side.read_target(shop.parts, "target.items_6", as_of=Position(shop.history.position(count // 3 - 1)))


def test_checkpoint_with_a_row_that_the_target_refuses_is_not_used(postgres_dsn: str, tmp_path: Path) -> None:
    """An event trigger adds a constraint to the new table."""
    shop, messages = shop_into(postgres_dsn, tmp_path, 7), list[str]()
    count = len(shop.history.events)
    shop.reach(count)
    checkpoint.take_checkpoint(shop.parts, shop.lane)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity = 'mirror.again') THEN "
            "ALTER TABLE mirror.again ADD CHECK (k1 IS NULL); END IF; END $$; "
            "CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()"
        )
        try:
            config = checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "again"), messages.append)
        finally:
            connection.execute("DROP EVENT TRIGGER refuse; DROP FUNCTION refuse()")
    run_pipeline(config)
    assert "number 1 has a row that the target refuses (SQLSTATE 23514)" in messages[1]
    assert have_same_rows(read_rows(shop, "again"), read_rows(shop, "items_7"))


def test_checkpoint_without_a_row_that_a_lake_refuses_is_not_used(postgres_dsn: str, tmp_path: Path) -> None:
    """The checkpoint rejected a row for a value that a lake cannot store, but a database might."""
    shop, messages = shop_into(postgres_dsn, tmp_path, 8), list[str]()
    shop.reach(len(shop.history.events))
    taken, checkpoints = (
        checkpoint.take_checkpoint(shop.parts, shop.lane),
        checkpoint.find_store(shop.parts, shop.lane),
    )
    assert checkpoints is not None
    fields = ("apply", RejectCode.OUT_OF_RANGE, "no", "public.items", "", None, datetime.now(UTC), datetime.now(UTC))
    store = shop.parts.use_lake(shop.lane.sink, checkpoints.get_folder(taken)).open_dead_letters()
    store.write([DeadLetter("one", f"target.{checkpoint.AS_OF_TARGET}", *fields)])
    store.close()
    run_pipeline(checkpoint.prepare_restored_rebuild(shop.parts, RebuildRequest(shop.lane, "again"), messages.append))
    assert "number 1 lacks rows with values that a lake cannot store" in messages[1]
    assert have_same_rows(read_rows(shop, "again"), read_rows(shop, "items_8"))
