"""Values of every type, written in MariaDB, through a connector into both local sinks. The targets have exactly the
source's values, whether a row arrived by the snapshot or by the log. Values that no target can hold are rejected, row
by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from servers.mariadb import MariaDb

from adapters.stack.connect import ConnectService

from . import typed_mariadb as types
from .compare import read_lake_table
from .mariadb_source import start_mariadb_connector
from .stack import World
from .typed import ROWS, SEED, Table, await_equal, await_rejected, make_rows, postgres_rows, read_table_values

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TABLES = ("kept", "beyond")


def insert_rows(
    database: MariaDb, table: str, first: int, names: Sequence[str], rows: Sequence[Sequence[str | None]]
) -> None:
    """Inserts the values of expressions, with ids from `first` on."""
    columns = ", ".join(f"`{name}`" for name in names)
    values = ",\n".join(f"({first + i}, {', '.join(v or 'NULL' for v in row)})" for i, row in enumerate(rows))
    database.execute(f"INSERT INTO {table} (id, {columns}) VALUES {values};")


def read_source_values(database: MariaDb) -> Table:
    """The values that the server returns."""
    said = {column.name: types.SAID.get(column.name, ("{}", str)) for column in types.COLUMNS}
    asked = {name: expression.format(f"`{name}`") for name, (expression, _) in said.items()}
    rows = database.rows("kept", {"id": "id", "touched": "touched", **asked})
    return read_table_values(types.COLUMNS, [read_values(row, said) for row in rows])


def read_values(row: dict[str, str | None], said: dict[str, types.Asked]) -> dict[str, Any]:
    own = {name: int(row[name] or 0) for name in ("id", "touched")}
    return {**own, **{name: None if row[name] is None else read(row[name] or "") for name, (_, read) in said.items()}}


def read_sink_values(world: World, table: str) -> dict[str, Table]:
    """The comparable values of a table's rows in each sink."""
    found = {"lake": read_lake_table(world.lake / table), "target": postgres_rows(world.target, table)}
    return {sink: read_table_values(types.COLUMNS, rows) for sink, rows in found.items()}


def test_values_of_every_type_are_exact_or_rejected(
    world: World, mariadb_server: MariaDb, mariadb_worker: ConnectService
) -> None:
    database = mariadb_server
    columns = ", ".join(f"`{column.name}` {column.declared}" for column in types.COLUMNS)
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, touched int DEFAULT 0, {columns});")
    names = [column.name for column in types.COLUMNS]
    insert_rows(database, "kept", 1, names, make_rows(types.COLUMNS, ROWS, SEED))
    with start_mariadb_connector(world, database, mariadb_worker, "shop", **{"bigint.unsigned.handling.mode": "precise"}):
        world.overrides[0] = f'sources.shop.topics=["{world.prefix}", "{world.prefix}.shop.*", "{world.prefix}.transaction"]'
        both = [{"sink": "lake"}, {"sink": "target"}]
        world.rewrite_config({"tables": [{"match": f"shop.{table}", "source": "shop", "to": both} for table in TABLES]})
        daemon = world.daemon()
        await_equal(
            daemon, read_source_values(database), lambda: read_sink_values(world, "kept"), "the rows of the snapshot"
        )
        insert_rows(database, "kept", ROWS + 1, names, make_rows(types.COLUMNS, ROWS, SEED + 1))
        database.execute("UPDATE kept SET touched = touched + 1 WHERE id % 3 = 0; DELETE FROM kept WHERE id % 10 = 9;")
        await_equal(daemon, read_source_values(database), lambda: read_sink_values(world, "kept"), "the changes")
        for i, (column, value) in enumerate((*types.BEYOND, ("i", "7"))):
            insert_rows(database, "beyond", i, [column], [[value]])
        await_rejected(world, daemon, lambda: read_sink_values(world, "beyond"), [column for column, _ in types.BEYOND])
        assert daemon.stop() == 0
    database.execute("DROP TABLE kept, beyond;")
