"""`replicator diff`: a MariaDB table against its targets, while both change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest
from deltalake import DeltaTable
from servers.mariadb import MariaDb

from adapters.stack.connect import ConnectService
from replicator.domain.differences import LaneDiff
from replicator.domain.errors import EnvironmentProblem
from replicator.settings import Loaded, load_settings
from replicator.wiring.backfill import diff_tables, repair_table

from .compare import read_lake_table, read_postgres_table
from .daemon import await_condition
from .mariadb_source import start_mariadb_connector
from .stack import World, execute_statements
from .test_backfill_of_mariadb import COLUMNS, CREATE, Clerk, prepare_world

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(600)]

PAUSE = 0.05
"""Between two changes."""
QUICK = {"heartbeat.interval.ms": "200", "connect.keep.alive.interval.ms": "1000"}
"""A server without changes tells its readers after this time how far they have read."""


def load_config(world: World, *more: str) -> Loaded:
    file = world.folder / "config" / "replicator.yaml"
    return load_settings(file, overrides=[*world.overrides, *more], environ=world.environ)


def diff_table(loaded: Loaded, table: str, **options: Any) -> dict[str, LaneDiff]:
    return {diff.lane: diff for diff in diff_tables(loaded, [table], print, **options)}


def list_row_differences(diff: LaneDiff) -> set[tuple[str, int]]:
    return {(one.kind, one.key["id"]) for one in diff.differences}


@contextmanager
def pause_connector(worker: ConnectService, name: str) -> Iterator[None]:
    """The connector sends nothing meanwhile."""
    url = f"http://127.0.0.1:{worker.ports['rest']}/connectors/{name}/pause"
    with urlopen(Request(url, method="PUT"), timeout=30):
        pass
    await_condition(lambda: (state := worker.rest.state(name)) and set(state.tasks) == {"PAUSED"}, "the connector is paused")
    yield
    worker.rest.resume(name)


def test_diff_reports_only_real_differences_while_both_sides_change(
    world: World, mariadb_server: MariaDb, mariadb_worker: ConnectService
) -> None:
    """A change in flight is no difference. A row that another program wrote, removed or added in a target is one. The
    comparison waits for changes that the connector has not sent; without Kafka Connect it cannot."""
    name = prepare_world(world, mariadb_server, CREATE)
    table = f"{name}.items"
    world.overrides.append(f"tables=[{{match: {table}, source: shop, to: [{{sink: lake}}, {{sink: target}}]}}]")
    worker = f"{{url: 'http://127.0.0.1:{mariadb_worker.ports['rest']}', connector: {world.prefix}-mariadb}}"
    with start_mariadb_connector(world, mariadb_server, mariadb_worker, name, **QUICK):
        daemon = world.daemon()

        def is_current() -> bool:
            rows = mariadb_server.rows(table, COLUMNS)
            expected = {int(row["id"] or 0): (row["note"], int(row["turn"] or 0)) for row in rows}
            targets = read_lake_table(world.lake / "items"), read_postgres_table(world.target, "public", "items")
            return all({row["id"]: (row["note"], row["turn"]) for row in found} == expected for found in targets)

        daemon.await_condition(is_current, "the targets are the table")
        loaded = load_config(world, f"sources.shop.connect={worker}")
        with Clerk(mariadb_server, name, PAUSE):
            found = diff_table(loaded, table)
        assert set(found) == {"lake.items", "target.items"}
        assert all(diff.equal and diff.rows > 1000 for diff in found.values()), found
        with pause_connector(mariadb_worker, f"{world.prefix}-mariadb"):
            mariadb_server.execute(f"INSERT INTO {table} VALUES (3001, 'here', 1), (3002, NULL, 1), (3003, 'there ', 1)")
            with pytest.raises(EnvironmentProblem, match="The connector has not confirmed"):
                diff_table(loaded, table, timeout=2)
        daemon.await_condition(is_current, "the targets are the table")
        execute_statements(
            world.target, "UPDATE items SET note = 'there' WHERE id = 3003; DELETE FROM items WHERE id = 3001"
        )
        execute_statements(world.target, "INSERT INTO items SELECT 4000, note, turn FROM items WHERE id = 3003")
        DeltaTable(world.lake / "items").update(new_values={"note": ""}, predicate="id = 3002")
        with pytest.raises(EnvironmentProblem, match=r"Add `connect: \{url: ..., connector: ...\}` to the source"):
            diff_table(load_config(world), table)
        with Clerk(mariadb_server, name, PAUSE):
            found = diff_table(loaded, table)
            assert list_row_differences(found["target.items"]) == {("different", 3003), ("missing", 3001), ("extra", 4000)}
            assert list_row_differences(found["lake.items"]) == {("different", 3002)}
            written = [repair_table(loaded, diff, print) for diff in found.values()]
        assert [(one.rows, one.deletes) for one in written] == [(1, 0), (2, 1)]
        daemon.await_condition(is_current, "the targets are the table")
        assert all(diff.equal for diff in diff_table(load_config(world), table).values())
        assert daemon.stop() == 0
