"""A MariaDB database through its own Debezium connector: every type, every kind of change, into both local sinks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from servers.mariadb import MariaDb

from adapters.stack.connect import ConnectService

from .compare import index_by_key, list_differences, read_lake_table, read_postgres_table
from .daemon import Daemon, await_condition
from .mariadb_source import start_mariadb_connector
from .stack import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

CREATE = """
CREATE TABLE customers (
    id bigint unsigned AUTO_INCREMENT PRIMARY KEY, name varchar(200) NOT NULL, email varchar(200) UNIQUE,
    active boolean NOT NULL DEFAULT true, credit decimal(10, 2), born date, created_at datetime(6) DEFAULT now(6),
    updated_at timestamp(6) NULL DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6), ext_id uuid, profile json,
    tags set('a', 'b', 'c'), kind enum('x', 'y'), avatar blob, note longtext, rating double, t time(6), y year, bits bit(9),
    tu tinyint unsigned, bu bigint unsigned, dflt timestamp NOT NULL DEFAULT current_timestamp, bin16 binary(16),
    dt0 datetime);
CREATE TABLE orders (id int AUTO_INCREMENT PRIMARY KEY, customer_id bigint unsigned, total decimal(10, 2));
CREATE TABLE order_items (order_id int, line_no int, qty int, PRIMARY KEY (order_id, line_no));
CREATE TABLE nopk (a int, b text);
CREATE TABLE trunc_me (id int PRIMARY KEY, v text);
INSERT INTO customers
    (id, name, email, credit, born, created_at, updated_at, ext_id, profile, tags, kind, avatar, note, rating, t, y, bits,
     tu, bu, dflt, bin16, dt0)
VALUES
    (1, 'Ada', 'ada@x.org', 12.34, '1815-12-10', '2024-02-29 12:34:56.123456', '2024-02-29 12:34:56.123456',
     '11111111-1111-1111-1111-111111111111', '{"a": 1}', 'a,c', 'y', x'deadbeef00', 'n', 1.5, '23:59:59.999999', 2024,
     b'101010101', 255, 18446744073709551615, '2024-01-01 00:00:00', x'00112233445566778899aabbccddeeff',
     '2024-03-01 01:02:03'),
    (2, 'Émile ☃ 🎉', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, now(), NULL, NULL);
INSERT INTO orders VALUES (1, 1, 19.98);
INSERT INTO order_items VALUES (1, 1, 2);
INSERT INTO nopk VALUES (1, 'x'), (1, 'x');
INSERT INTO trunc_me VALUES (1, 'a');
"""
CHANGE = """
INSERT INTO customers (name, email) VALUES ('Carl', 'c@x');
UPDATE customers SET credit = 0.01 WHERE id = 1;
UPDATE customers SET id = 500 WHERE name = 'Carl';
DELETE FROM customers WHERE id = 500;
INSERT INTO customers (id, name) VALUES (18446744073709551614, 'the last');
START TRANSACTION;
INSERT INTO orders VALUES (10, 1, 5);
INSERT INTO order_items VALUES (10, 1, 1), (10, 2, 2);
DELETE FROM order_items WHERE order_id = 10 AND line_no = 1;
COMMIT;
START TRANSACTION;
INSERT INTO orders VALUES (11, 1, 5);
ROLLBACK;
UPDATE orders SET id = 77 WHERE id = 1;
UPDATE nopk SET b = 'y';
DELETE FROM nopk LIMIT 1;
TRUNCATE TABLE trunc_me;
INSERT INTO trunc_me VALUES (2, 'b');
ALTER TABLE customers ADD COLUMN loyalty int DEFAULT 42;
UPDATE customers SET loyalty = 7 WHERE id = 1;
ALTER TABLE customers MODIFY COLUMN name text NOT NULL, DROP COLUMN rating;
UPDATE customers SET name = 'Ada L.' WHERE id = 1;
UPDATE customers SET note = 'changed' WHERE id > 1;
"""
NOPK = Counter({("r", 1, "x"): 2, ("u", 1, "y"): 2, ("d", 1, "y"): 1})


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def parse_instant(text: str) -> datetime:
    return parse_time(text).replace(tzinfo=UTC)


READ: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("id", "bu"), Decimal),
    **dict.fromkeys(("active", "y", "tu", "customer_id", "order_id", "line_no", "qty", "loyalty"), int),
    **dict.fromkeys(("credit", "total"), Decimal),
    **dict.fromkeys(("created_at", "dt0"), parse_time),
    **dict.fromkeys(("updated_at", "dflt"), parse_instant),
    **dict.fromkeys(("avatar", "bin16"), bytes.fromhex),
    "bits": lambda text: int(text).to_bytes(2, "little"),
    "born": date.fromisoformat,
    "t": time.fromisoformat,
    "profile": json.loads,
    "rating": float,
}
"""By column what its text in the source means; others are text."""
ASKED = {"avatar": "hex(avatar)", "bin16": "hex(bin16)", "bits": "bits + 0"}
COLUMNS = {
    "customers": "id name email active credit born created_at updated_at ext_id profile tags kind avatar note t y bits tu "
    "bu dflt bin16 dt0",
    "orders": "id customer_id total",
    "order_items": "order_id line_no qty",
    "trunc_me": "id v",
}
KEYS = {"order_items": ("order_id", "line_no")}


def read_source_rows(database: MariaDb, table: str, *more: str) -> list[dict[str, Any]]:
    names = [*COLUMNS[table].split(), *more]
    rows = database.rows(table, {name: ASKED.get(name, name) for name in names})
    return [{name: None if text is None else READ.get(name, str)(text) for name, text in row.items()} for row in rows]


def list_table_differences(world: World, database: MariaDb, *more: str) -> list[str]:
    """Differences of the tables in both sinks from the source. `more`: columns added to customers."""
    lines: list[str] = []
    for table in COLUMNS:
        keys = KEYS.get(table, ("id",))
        expected = index_by_key(read_source_rows(database, table, *(more if table == "customers" else ())), *keys)
        lake = [row | _parse_times(row) for row in read_lake_table(world.lake / table)]
        found = {"lake": lake, "target": read_postgres_table(world.target, "public", table)}
        for sink, rows in found.items():
            lines += [f"{sink}.{table}: {line}" for line in list_differences(expected, index_by_key(rows, *keys))]
    return lines


def _parse_times(row: Mapping[str, Any]) -> dict[str, time]:
    """Parses times of day, which are text in a lake."""
    return {name: time.fromisoformat(row[name]) for name in ("t",) if row.get(name) is not None}


def await_equal(world: World, database: MariaDb, daemon: Daemon, *more: str) -> None:
    try:
        daemon.await_condition(lambda: not list_table_differences(world, database, *more), "both sinks equal the source")
    except AssertionError as late:
        late.add_note("\n".join(list_table_differences(world, database, *more)))
        raise


def count_keyless_changes(world: World) -> list[Counter[Any]]:
    """The changes of the table without a key. Each is a row."""
    found = (read_lake_table(world.lake / "nopk"), read_postgres_table(world.target, "public", "nopk"))
    return [Counter((row["_cdc_op"], row["a"], row["b"]) for row in rows) for rows in found]


def test_every_type_and_change_of_mariadb_is_replicated(
    world: World, mariadb_server: MariaDb, mariadb_worker: ConnectService
) -> None:
    mariadb_server.execute(CREATE)
    with start_mariadb_connector(
        world, mariadb_server, mariadb_worker, "shop", **{"bigint.unsigned.handling.mode": "precise"}
    ):
        both = [{"sink": "lake"}, {"sink": "target"}]
        tables = [
            {"match": "shop.*", "source": "shop", "to": both},
            {"match": "shop.nopk", "source": "shop", "policy": "append", "to": both},
        ]
        world.rewrite_config({"tables": tables})
        world.overrides[0] = f'sources.shop.topics=["{world.prefix}", "{world.prefix}.shop.*", "{world.prefix}.transaction"]'
        daemon = world.daemon()
        await_equal(world, mariadb_server, daemon)
        await_condition(
            lambda: count_keyless_changes(world) == [Counter({("r", 1, "x"): 2})] * 2, "and the rows without a key"
        )
        mariadb_server.execute(CHANGE)
        await_equal(world, mariadb_server, daemon, "loyalty")
        daemon.await_condition(
            lambda: count_keyless_changes(world) == [NOPK] * 2, "every change of the rows without a key is there once"
        )
        daemon.await_running()
        assert {lane["counts"]["rejected"] for lane in daemon.lanes().values()} == {0}
        assert daemon.stop() == 0 and world.dead_letters() == []
