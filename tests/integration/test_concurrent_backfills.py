"""Rows that are read whole beside streams in Avro, and beside transactions that are told."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from servers.mariadb import MariaDb
from servers.schema_registry import API
from support.avro_of_connect import Avro, decode_runs
from support.backfilled_table import LANES, BackfilledTable
from support.loaded_items import MariaDbItems
from support.slot_reader import OF_MARKS, make_frame

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from replicator.ports.components import TransactionRules

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]


@pytest.mark.parametrize("database", ["postgresql", pytest.param("mariadb", marks=pytest.mark.long)])
def test_backfill_during_a_stream_in_avro(
    database: str, postgres_dsn: str, registry: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With changes that the stream delivers, and some that it does not. The backfill registers no schema."""
    random, avro = Random(2), Avro(f"{registry}{API}")
    server: MariaDb | None = request.getfixturevalue("mariadb_server") if database == "mariadb" else None
    items = MariaDbItems(server, random) if server else None
    world = BackfilledTable(postgres_dsn, tmp_path, random, piece_rows=15, items=items, avro=avro)
    assert world.backfill().rows == 40
    world.check()
    with world.change_unseen():
        world.execute("DELETE FROM items WHERE id < 10")
        world.execute("UPDATE items SET note = 'unseen' WHERE id BETWEEN 10 AND 15")
    world.execute("UPDATE items SET note = 'seen' WHERE id BETWEEN 14 AND 20")
    outcome = world.backfill()
    assert (outcome.deleted, outcome.rows, len(outcome.deletes_of)) == (9, 31, len(LANES))
    world.check()
    assert not [name for name in avro.client.get_subjects() if "backfill" in name]
    world.slot.drop()


TYPES = """
DROP TABLE items; CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE items (id int PRIMARY KEY, s smallint, b bigint NOT NULL, o oid, f boolean, r real, d double precision,
    n numeric(10,2), w numeric(38,10), v numeric, day date, t time, t3 time(3), ts timestamp, ts3 timestamp(2),
    at timestamptz, tx text, vc varchar(20), c char(6), u uuid, j json, jb jsonb, x xml, e mood, i inet, by bytea,
    li int[], lb bigint[], lt text[], lo boolean[]);
ALTER PUBLICATION shop SET TABLE items;
INSERT INTO items (id, b) VALUES (1, 0);
INSERT INTO items VALUES (2, 1, 9223372036854775807, 4294967295, true, 1.1, 1e-300, -0.01,
    -1234567890123456789012345678.0123456789, -123.4500, '0001-01-01', '00:00', '23:59:59.999',
    '1900-01-01 00:00:00.000001', '2024-02-29 12:00:00.12', '2024-02-29 12:00:00.123456+05', 'äöü "quoted" \\ % {}', '',
    'ab', '00000000-0000-0000-0000-000000000001', '{"a":  1}', '{"b": [1, 2.50]}', '<a>1</a>', 'ok', '10.0.0.1', '\\x00ff',
    '{1,NULL,-3}', '{}', '{"a","b,c",NULL}', '{true,false}');
INSERT INTO items (id, b, f, r, d) VALUES (3, -1, false, 'NaN', 'Infinity')"""


def test_backfill_and_avro_converter_give_the_same_types(postgres_dsn: str, registry: str, tmp_path: Path) -> None:
    """The table and its values are the same, whichever of the two arrives first."""
    world = BackfilledTable(postgres_dsn, tmp_path, Random(1))
    world.execute(TYPES)
    reading = world.reading()
    reading.rows(lambda _: None)
    reading.close()
    written = make_frame(world.written_down())
    avro = Avro(f"{registry}{API}")
    renamed = written.set_column(0, written.schema.field(0), [["cdc.public.items"] * written.num_rows])
    in_avro = avro.frame(renamed)
    assert all(value.startswith(b"\0") for value in in_avro["value"].to_pylist())
    decoder = DebeziumAvroDecoder({"registry": {"url": avro.url}})
    ((_, mine, read),) = decode_runs(decoder, written)
    ((_, theirs, sent),) = decode_runs(decoder, in_avro)
    assert mine == theirs and len(mine.columns) == 30
    assert read.num_rows == 3 and set(read["_error"].to_pylist()) == {None}
    plain = [name for name in read.column_names if name not in ("_topic", "_partition", "_offset")]
    assert repr(read.select(plain).to_pylist()) == repr(sent.select(plain).to_pylist())


def read_watermark(world: BackfilledTable) -> tuple[Any, ...]:
    [row] = world.execute("SELECT transaction, exact FROM _replicator.transactions")
    return tuple(row)


def test_backfilled_rows_suspend_the_completeness_claim(postgres_dsn: str, tmp_path: Path) -> None:
    """They may show transactions whose changes have not arrived. The claim returns with a later transaction, also after
    restarts, and no row waits meanwhile."""
    world = BackfilledTable(postgres_dsn, tmp_path, Random(1), transactions=TransactionRules(OF_MARKS, patience=1000.0))
    world.execute("UPDATE items SET turn = 1 WHERE id IN (1, 7)")
    world.apply()
    before, exact = read_watermark(world)
    assert exact
    world.execute("UPDATE items SET turn = 2 WHERE id < 5")
    world.execute("DELETE FROM items WHERE id = 7")
    world.lags = True
    outcome = world.backfill()
    assert (outcome.rows, outcome.deleted) == (39, 1)
    world.check()
    assert read_watermark(world) == (before, False)
    world.apply()
    assert read_watermark(world) == (before, False), "a start changes nothing"
    world.lags = False
    world.apply()
    world.check()
    between, exact = read_watermark(world)
    assert between != before and not exact, "it ended before the rows were read"
    world.execute("UPDATE items SET turn = 3 WHERE id = 3")
    world.apply()
    world.check()
    last, exact = read_watermark(world)
    assert last not in (before, between) and exact
    world.execute("UPDATE items SET turn = 4 WHERE id = 3")
    assert len(world.slot.poll()) == 1, "a transform drops it"
    world.execute("UPDATE items SET turn = 5 WHERE id IN (3, 4)")
    world.apply()
    world.check()
    assert read_watermark(world)[0] != last, (
        "a later transaction shows that nothing more comes, though none is in a backfill's topic"
    )
