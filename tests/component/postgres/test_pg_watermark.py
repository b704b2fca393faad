"""The watermark names complete transactions where lanes do not wait for each other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import psycopg
import pytest
from support.shop_stream import COLUMNS, Broker, Shop
from test_pg_transactions import RULES, WATERMARK_QUERY, Reader, World, rows_of

from replicator.domain.errors import ExitCode

pytestmark = pytest.mark.postgres


@dataclass
class Believer(Reader):
    """Expects the rows of the published transaction from its publication on, unless the source deletes them later."""

    lacking: list[str] = field(default_factory=list)

    def look(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            watermark = connection.execute("SELECT to_regclass('_replicator.transactions')").fetchone()
            if watermark is None or watermark[0] is None:
                return
            for name, exact, _ in connection.execute(WATERMARK_QUERY.encode()).fetchall():
                self.seen.append(name)
                self.exact += exact
                if name is not None:
                    there = rows_of(connection)
                    stays = {t: self.shop.after[name][t].keys() & self.shop.rows[t].keys() for t in COLUMNS}
                    self.lacking += [f"{name}: {t}" for t in COLUMNS if stays[t] - there[t].keys()]


@pytest.mark.parametrize("seed", [1, 2])
def test_published_transaction_is_complete_in_the_target(postgres_dsn: str, tmp_path, seed: int) -> None:
    shop = Shop(Random(seed), partitions=1 + seed % 3)
    reader = Believer(postgres_dsn, shop)
    world = World(postgres_dsn, tmp_path, replace(RULES, together=False))
    world.options = replace(world.options, state_patience=600.0)
    for _ in range(2):
        for _ in range(6):
            shop.anything()
        supervisor, _ = world.start(Broker(shop.pieces()), reader)
        assert supervisor.run(once=True) is ExitCode.OK, supervisor.problem
    reader.look()
    assert not reader.lacking and not reader.exact
    assert reader.seen[-1] == list(shop.after)[-1] and len({*reader.seen} - {None}) > 2
    with psycopg.connect(postgres_dsn) as connection:
        assert rows_of(connection) == shop.rows
