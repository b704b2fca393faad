"""Random histories in PostgreSQL: as-of queries by position or time return the rows that the table had then."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.snapshotted_shop import CheckpointedShop

from replicator.application.operations.read_side import read_target
from replicator.domain.policy.plan import CDC_APPLIED_AT, EVENT_ID
from replicator.domain.policy.policies import plan_for
from replicator.domain.position import Position
from replicator.testing.delivery import to_canonical_rows
from replicator.testing.histories import make_random_history
from replicator.testing.model import fold_changes

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

RUN_COLUMNS = (CDC_APPLIED_AT, EVENT_ID)


def list_common_columns(*tables: pa.Table) -> list[str]:
    """Columns of all tables. A column that was added later is missing in an earlier table."""
    names = set.intersection(*(set(table.column_names) for table in tables))
    return sorted(names - set(RUN_COLUMNS))


def have_same_rows(one: pa.Table, other: pa.Table) -> bool:
    columns = list_common_columns(one, other)
    return bool(to_canonical_rows(one.to_pylist(), columns) == to_canonical_rows(other.to_pylist(), columns))


def shop_into(dsn: str, folder: Path, seed: int) -> CheckpointedShop:
    """A shop with one partition, whose times follow its offsets. Its only target is in PostgreSQL."""
    parts = conninfo_to_dict(dsn)
    url = f"postgresql://{parts['user']}:{parts.get('password', '')}@{parts['host']}:{parts['port']}/{parts['dbname']}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS mirror")
    history = make_random_history(seed, 40, toast=True, keys=("int",))
    history = replace(history, shape=replace(history.shape, partitions=1, shuffle=None))
    target = f'}}\n  target: {{kind: postgres, dsn: "{url}", schema: mirror'
    return CheckpointedShop(folder / "shop", history, f"{{sink: target, into: items_{seed}}}", target)


def read_as_of(shop: CheckpointedShop, seed: int, as_of: Any = None) -> pa.Table:
    return read_target(shop.parts, f"target.items_{seed}", as_of=as_of)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_as_of_query_equals_an_earlier_read_and_the_model(postgres_dsn: str, tmp_path: Path, seed: int) -> None:
    shop, chance = shop_into(postgres_dsn, tmp_path, seed), random.Random(seed)
    history, held, table = shop.history, dict[int, pa.Table](), shop.history.table()
    count = len(history.events)
    ends = sorted({*chance.sample(range(count // 4, count), 2), count})
    for end in ends:
        shop.reach(end)
        held[end] = read_as_of(shop, seed)
    for end in ends:
        place = Position(history.position(end))
        found = read_as_of(shop, seed, place)
        assert have_same_rows(found, held[end]), (seed, end)
        times = [change.ts for change in history.changes(0, end) if change.ts is not None]
        following = [change.ts for change in history.changes(end) if change.ts is not None]
        if following and min(following) > max(times):
            assert have_same_rows(read_as_of(shop, seed, max(times)), held[end]), (seed, end)
        due, _ = fold_changes("scd1", table.column_names, table.keys, history.changes(0, end))
        there = {c.name for c in plan_for("scd1", table).target} & set(list_common_columns(found))
        assert to_canonical_rows(found.to_pylist(), sorted(there)) == to_canonical_rows(due, sorted(there)), (seed, end)
