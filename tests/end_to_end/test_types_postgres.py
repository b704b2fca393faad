"""Values of every type, written in PostgreSQL, through a connector into both local sinks. The targets have exactly the
source's values, whether a row arrived by the snapshot or by the log. Values that no target can hold are rejected, row
by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from servers.schema_registry import API
from support.small_spark import SMALL

from . import typed_postgres as types
from .compare import read_lake_table
from .daemon import Daemon
from .stack import World
from .test_avro_connector import make_converter_settings
from .typed import ROWS, SEED, Table, Typed, await_equal, await_rejected, make_rows, postgres_rows, read_table_values

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

CONNECTOR = {"interval__handling__mode": "string"}
BOTH = [{"sink": "lake"}, {"sink": "target"}]


def create_tables(world: World) -> None:
    world.execute(types.PREPARE)
    columns = ", ".join(f'"{column.name}" {column.declared}' for column in types.COLUMNS)
    for table in ("kept", "beyond"):
        world.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, touched int DEFAULT 0, {columns})")


def insert_rows(
    world: World, table: str, first: int, columns: Sequence[Typed], rows: Sequence[Sequence[str | None]]
) -> None:
    """Inserts values given as text of the source, with ids from `first` on."""
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
    values = sql.SQL(", ").join(sql.SQL("CAST(%s AS {})").format(sql.SQL(column.declared)) for column in columns)
    query = sql.SQL("INSERT INTO {} (id, {}) VALUES (%s, {})").format(sql.Identifier(table), names, values)
    with closing(psycopg.connect(world.source)) as connection, connection.cursor() as cursor:
        cursor.executemany(query, [[first + i, *row] for i, row in enumerate(rows)])
        connection.commit()


def read_sink_values(world: World, table: str) -> dict[str, Table]:
    """The comparable values of a table's rows in each sink."""
    found = {"lake": read_lake_table(world.lake / table), "target": postgres_rows(world.target, table)}
    return {sink: read_table_values(types.COLUMNS, rows) for sink, rows in found.items()}


def check_values(world: World, daemon: Daemon, what: str) -> None:
    source = read_table_values(types.COLUMNS, postgres_rows(world.source, "kept"))
    await_equal(daemon, source, lambda: read_sink_values(world, "kept"), what)


@pytest.mark.parametrize(
    "form",
    [
        "json",
        pytest.param("avro", marks=pytest.mark.long),
        pytest.param("spark", marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_values_of_every_type_are_exact_or_rejected(world: World, form: str, request: pytest.FixtureRequest) -> None:
    create_tables(world)
    insert_rows(world, "kept", 1, types.COLUMNS, make_rows(types.COLUMNS, ROWS, SEED))
    avro = form == "avro"
    registry = request.getfixturevalue("registry") if avro else ""
    world.register(**CONNECTOR, **(make_converter_settings(registry) if avro else {}))
    if avro:
        world.overrides += ["sources.shop.format=debezium_avro", f'sources.shop.registry={{"url": "{registry}{API}"}}']
    world.rewrite_config({"tables": [{"match": "public.*", "source": "shop", "to": BOTH}]})
    if form == "spark":
        world.overrides += [f"spark={json.dumps(SMALL)}"]
    daemon = world.daemon(*(("--engine", "spark") if form == "spark" else ()))
    check_values(world, daemon, "the rows of the snapshot")
    insert_rows(world, "kept", ROWS + 1, types.COLUMNS, make_rows(types.COLUMNS, ROWS, SEED + 1))
    early = [column for column in types.COLUMNS if column.name in types.EARLY]
    insert_rows(world, "kept", 0, early, [[types.EARLY[column.name] for column in early]])
    world.execute("UPDATE kept SET touched = touched + 1 WHERE id % 3 = 0; DELETE FROM kept WHERE id % 10 = 9")
    check_values(world, daemon, "the changes")
    by_name = {column.name: column for column in types.COLUMNS}
    for i, (name, value) in enumerate((*types.BEYOND, ("i4", "7"))):
        insert_rows(world, "beyond", i, [by_name[name]], [[value]])
    await_rejected(world, daemon, lambda: read_sink_values(world, "beyond"), [name for name, _ in types.BEYOND])
    assert daemon.stop() == 0
