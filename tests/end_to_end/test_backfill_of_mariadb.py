"""`replicator backfill` of MariaDB tables while their rows change."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pymysql
import pytest
from servers.mariadb import PASSWORD, USER, MariaDb

from adapters.stack.connect import ConnectService

from .compare import read_lake_table, read_postgres_table
from .daemon import await_condition
from .mariadb_source import start_mariadb_connector
from .mirrored_items import read_histories
from .stack import World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SINKS = ("lake", "target")
ROWS, UNSEEN = 2_000, 9_000
COLUMNS = {"id": "id", "note": "note", "turn": "turn"}
MARK = "INSERT INTO items VALUES (0, 'mark', 1) ON DUPLICATE KEY UPDATE turn = turn + 1"
Rows = dict[int, dict[str, Any]]


def prepare_world(world: World, database: MariaDb, script: str, **more: Any) -> str:
    """A database with the table, and a pipeline with its rows and history in a lake and in PostgreSQL."""
    name = database.database().rpartition("/")[2]
    database.execute(f"USE {name}; {script}")
    world.overrides[0] = f'sources.shop.topics=["{world.prefix}.{name}.items", "{world.prefix}.transaction"]'
    world.rewrite_config(
        {
            "sources": {
                "shop": {
                    "format": "debezium_json",
                    "transport": "kafka",
                    "bootstrap_servers": world.stack.bootstrap_servers,
                    "topics": ["none"],
                    "database": {"dsn": f"mariadb://{USER}:{PASSWORD}@127.0.0.1:{database.port}", **more},
                }
            },
            "tables": [
                {
                    "match": f"{name}.items",
                    "source": "shop",
                    "to": [{"sink": s, **kind} for s in SINKS for kind in ({}, {"into": "versions", "policy": "scd2"})],
                }
            ],
        }
    )
    return name


def read_journal(world: World, name: str) -> list[dict[str, Any]]:
    """The records in the journal of the last backfill."""
    (folder,) = (world.folder / "state").glob(f"*/backfills/shop/{name}.items")
    files = sorted(Path(folder).glob("*.parquet"))
    return [json.loads(value) for file in files for value in pq.read_table(file)["value"].to_pylist()]


TYPES = """
CREATE TABLE items (id bigint unsigned, kind varchar(10) COLLATE utf8mb4_bin,
    b boolean NOT NULL, t tinyint, tu tinyint unsigned, s smallint, su smallint unsigned, m mediumint,
    mu mediumint unsigned, i int, iu int unsigned, iz int(6) zerofill, l bigint, lu bigint unsigned,
    n decimal(10, 2), w decimal(38, 10), nu decimal(5, 0) unsigned, r float, d double, dm double(12, 4),
    day date, y year, t0 time, t6 time(6), dt datetime, dt3 datetime(3), dt6 datetime(6),
    ts timestamp NULL, ts3 timestamp(3) NULL, ts6 timestamp(6) NULL,
    c char(6), vc varchar(20) CHARACTER SET latin1, tx text, lt longtext, j json, e enum('x', 'y z', 'it''s'),
    st set('a', 'b'), u uuid, b1 bit, b9 bit(9), b64 bit(64), by4 binary(4), vb varbinary(20), bl blob, mb mediumblob,
    made int AS (i + 1) STORED, virt int AS (i + 2) VIRTUAL, hid int INVISIBLE DEFAULT 5, PRIMARY KEY (id, kind));
INSERT INTO items (id, kind, b, l) VALUES (1, 'k', 0, 1);
INSERT INTO items (id, kind, b, t, tu, s, su, m, mu, i, iu, iz, l, lu, n, w, nu, r, d, dm, day, y, t0, t6,
    dt, dt3, dt6, ts, ts3, ts6, c, vc, tx, lt, j, e, st, u, b1, b9, b64, by4, vb, bl, mb) VALUES
    (18446744073709551615, 'K', true, -128, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295, 42,
    -9223372036854775808, 18446744073709551615, -0.01, -1234567890123456789012345678.0123456789, 99999, 1.1, 1e-300, 0.1,
    '1000-01-01', 1901, '-838:59:59', '23:59:59.999999', '1900-01-01 00:00:00', '2024-02-29 12:00:00.12',
    '9999-12-31 23:59:59.999999', '2024-06-01 00:00:00', '2024-06-01 00:00:00.120', '1999-12-31 23:59:59.900001',
    'ab', 'äöü', 'ä ☃ "quoted" \\\\ % {} \\n', '', '{"a":  1}', 'y z', 'a,b', '11111111-1111-1111-1111-111111111111', 1,
    b'101010101', 0xFF00000000000001, x'0100', x'00ff10', '', repeat('x', 300)),
    (3, 'ü', false, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9223372036854775807, 99999999.99, 0.5, 0, 16777215, -1.7e308, -1,
    '9999-12-31', 2155, '00:00', '-00:00:00.000001', '1969-12-31 23:59:59', '1969-12-31 23:59:59.999',
    '1969-12-31 23:59:59.999999', '1970-01-01 00:00:01', '2024-01-01', '2024-01-01', '', '', '', 'x', '[]', 'it''s', '',
    '00000000-0000-0000-0000-000000000000', 0, 0, 0, x'', x'', x'00', x'')
"""
CHANGED = "UPDATE items SET b = NOT b"


@pytest.mark.parametrize("mode", ["long", pytest.param("precise", marks=pytest.mark.long)])
def test_backfill_stores_rows_with_the_types_of_debezium(
    mode: str, world: World, mariadb_server: MariaDb, mariadb_worker: ConnectService
) -> None:
    """For all types, whether the connector takes a snapshot or follows changes."""
    name = prepare_world(world, mariadb_server, TYPES, bigint_unsigned=mode)
    topic = f"{world.prefix}.{name}.items"
    with start_mariadb_connector(world, mariadb_server, mariadb_worker, name, **{"bigint.unsigned.handling.mode": mode}):
        await_condition(lambda: len(world.topics.read([topic])) == 3, "the connector has read the rows")
        world.get_result("backfill", f"{name}.items")
        mariadb_server.execute(f"USE {name}; {CHANGED}")
        await_condition(lambda: len(world.topics.read([topic])) == 6, "the connector has sent the changes")
    mine = {get_number(event): event for event in read_journal(world, name)}
    assert len(mine) == 3
    for record in world.topics.read([topic]):
        theirs = json.loads(record.value or b"")
        event = mine[get_number(theirs)]
        after = normalize_row(event["payload"]["after"])
        if theirs["payload"]["op"] == "u":
            after |= {"b": 1 - after["b"]}
        elif after["r"] is not None:
            after |= {"r": to_single(float(f"{after['r']:.6g}"))}  # All that the connector sees of it in its snapshot.
        assert after == normalize_row(theirs["payload"]["after"]), theirs["payload"]["op"]
        assert list_column_types(event["schema"]) == list_column_types(theirs["schema"])


def get_number(event: Mapping[str, Any]) -> Any:
    return event["payload"]["after"]["l"]


def normalize_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and times as values, independent of their encoded length."""
    out = dict(row)
    for name in ("n", "w", "nu", "id", "lu"):
        if isinstance(row[name], str):
            out[name] = int.from_bytes(base64.b64decode(row[name]), "big", signed=True)
    out["r"] = None if row["r"] is None else to_single(row["r"])
    for name in ("ts", "ts3", "ts6"):
        out[name] = None if row[name] is None else datetime.fromisoformat(row[name])
    return out


def to_single(number: float) -> float:
    """The nearest 32-bit float."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def list_column_types(schema: Mapping[str, Any]) -> list[Any]:
    """The parts of the schema that decide the columns' types."""
    [after] = [field for field in schema["fields"] if field["field"] == "after"]
    return [
        (f["field"], f["type"], f.get("name"), f.get("parameters", {}).get("scale"), f["optional"]) for f in after["fields"]
    ]


CREATE = f"""
CREATE TABLE items (id int PRIMARY KEY, note text, turn int);
INSERT INTO items SELECT seq, 'as it was', 0 FROM seq_1_to_{ROWS};
INSERT INTO items SELECT seq, 'unseen', 0 FROM seq_{UNSEEN + 1}_to_{UNSEEN + 20};"""


DEADLOCK = 1213
DELETE = "DELETE FROM items WHERE id = %s"
PUT = "INSERT INTO items VALUES (%s, 'changed', %s) ON DUPLICATE KEY UPDATE note = 'again', turn = VALUES(turn)"


class Clerk:
    """Changes, deletes and inserts rows all the time, on two connections with overlapping transactions."""

    def __init__(self, database: MariaDb, name: str, pause: float = 0.004) -> None:
        self._database, self._name, self._pause, self._end = database, name, pause, threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(2)]
        self.failures: list[BaseException] = []

    def _work(self, number: int) -> None:
        begin = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        to = {"host": "127.0.0.1", "port": self._database.port, "user": USER, "password": PASSWORD, "database": self._name}
        try:
            with closing(pymysql.connect(**to, init_command=begin)) as made:
                self._change(made, Random(number), number)
        except BaseException as failure:
            self.failures.append(failure)

    def _change(self, connection: Any, random: Random, number: int) -> None:
        turn = 0
        while not self._end.wait(self._pause):
            turn += 1
            key = 2 * random.randint(1, ROWS // 2 + 20) + number
            statement, given = (DELETE, (key,)) if turn % 3 == 0 else (PUT, (key, turn))
            try:
                connection.cursor().execute(statement, given)
            except pymysql.err.OperationalError as error:
                if error.args[0] != DEADLOCK:  # After which the server has rolled back.
                    raise
            if turn % 4 == 0:
                connection.commit()
        connection.commit()

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(30)
        assert not self.failures


def test_backfill_of_a_changing_table_is_exact(
    world: World, mariadb_server: MariaDb, mariadb_worker: ConnectService
) -> None:
    """The first snapshot plus the changes between both positions equals the second snapshot. Changes that the stream
    lacks are in the second one."""
    name = prepare_world(world, mariadb_server, CREATE)
    table = f"{name}.items"
    with start_mariadb_connector(world, mariadb_server, mariadb_worker, name, **{"snapshot.mode": "no_data"}):
        await_condition(lambda: is_followed(world, mariadb_server, name), f"the connector follows {name}")
        daemon = world.daemon()
        daemon.await_condition(daemon.status, "the daemon answers")  # Without one the command would be the pipeline.
        with Clerk(mariadb_server, name):
            world.get_result("backfill", table)
            before = [event["payload"] for event in read_journal(world, name)]
            mariadb_server.execute(f"USE {name}; SET sql_log_bin = 0; DELETE FROM items WHERE id > {UNSEEN}")
            second = world.get_result("backfill", table)
            after = [event["payload"] for event in read_journal(world, name)]
        expected = {int(r["id"] or 0): (r["note"], int(r["turn"] or 0)) for r in mariadb_server.rows(table, COLUMNS)}
        daemon.await_condition(
            lambda: all(found == expected for found in read_targets(world).values()), "the targets are the table"
        )
        assert all(lane["counts"]["rejected"] == 0 for lane in daemon.lanes().values())
        assert daemon.stop() == 0
    stream = [record.payload for record in world.topics.read([f"{world.prefix}.{name}.items"]) if record.payload]
    low, high = get_position(before[0]), get_position(after[0])
    meanwhile = [payload for payload in stream if low < get_position(payload) < high]
    rows = replay_changes(read_rows(before), meanwhile)
    # Deletes that the stream has yet to bring are among them.
    unseen = {p["before"]["id"] for p in after if p["op"] == "d" and p["before"]["id"] > UNSEEN}
    assert len(meanwhile) > 10 and unseen == set(range(UNSEEN + 1, UNSEEN + 21)) and second["deleted"] >= len(unseen)
    assert {key: row for key, row in rows.items() if key <= UNSEEN} == read_rows(after)


def is_followed(world: World, database: MariaDb, name: str) -> bool:
    """Whether changes arrive already. Other tests may follow the server too."""
    database.execute(f"USE {name}; {MARK}")
    return bool(world.topics.read([f"{world.prefix}.{name}.items"]))


def get_position(payload: Mapping[str, Any]) -> tuple[str, int]:
    return payload["source"]["file"], payload["source"]["pos"]


def read_rows(payloads: Iterable[Mapping[str, Any]]) -> Rows:
    return {p["after"]["id"]: p["after"] for p in payloads if p["op"] == "r"}


def replay_changes(rows: Rows, changes: Iterable[Mapping[str, Any]]) -> Rows:
    """The rows after the changes."""
    now = dict(rows)
    for change in changes:
        if change["op"] == "d":
            now.pop(change["before"]["id"], None)
        else:
            now[change["after"]["id"]] = change["after"]
    return now


def read_targets(world: World) -> dict[str, dict[int, tuple[str, int]]]:
    """The rows of the mirrors, and the open versions of the histories."""
    rows = {
        "lake": read_lake_table(world.lake / "items"),
        "target": read_postgres_table(world.target, "public", "items"),
        **{
            f"{sink}'s history": [r for r in found if r["_cdc_end_seq_1"] is None]
            for sink, found in read_histories(world).items()
        },
    }
    return {name: {row["id"]: (row["note"], row["turn"]) for row in found} for name, found in rows.items()}
