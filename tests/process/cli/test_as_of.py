"""`query --as-of` by source time and by position: the versions of the target, the event log and the model agree."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from support.snapshotted_shop import ENTRIES, CheckpointedShop, equals_model, list_change_times

from adapters.delta.commits import POSITION_METADATA
from replicator.application.operations import lanes
from replicator.application.operations.read_side import read_target
from replicator.domain.errors import ConfigProblem, Fatal
from replicator.domain.policy.plan import CDC_APPLIED_AT
from replicator.domain.position import Position, TopicPartition
from replicator.domain.read_query import InvalidReadQuery, ReadQuery
from replicator.testing.histories import History, make_random_history
from replicator.testing.source import Statement, StreamShape

POLICIES = {"plain": "scd1", "versions": "scd2", "changes": "append"}
SEEDS = [(entry, 1) for entry in POLICIES]
MORE = [pytest.param(entry, seed, marks=pytest.mark.long) for entry in ENTRIES for seed in range(2, 12)]
Rows = list[dict[str, Any]]


def to_sorted_rows(table: pa.Table) -> list[str]:
    """The rows without the time of the commit."""
    return sorted(repr(sorted(row.items())) for row in table.drop_columns([CDC_APPLIED_AT]).to_pylist())


def query_as_of(shop: CheckpointedShop, as_of: datetime | Position, **how: Any) -> tuple[pa.Table, str]:
    """The rows, and whether the target or the log supplied them."""
    said: list[str] = []
    found = read_target(shop.parts, f"lake.{shop.lane.into}", as_of=as_of, show_line=said.append, **how)
    return found, said[0].rsplit(": ", 1)[1].split()[0]


@pytest.mark.parametrize(("entry", "seed"), [*SEEDS, *MORE])
def test_versions_log_and_model_agree(tmp_path: Path, entry: str, seed: int) -> None:
    """Random histories, committed in random pieces; at the position of every commit, and at random times."""
    chance = random.Random(seed)
    disorder = 0 if seed == 1 else chance.choice((0, 0, 6))
    history = make_random_history(seed, 40, toast=True, keys=("int",), disorder=disorder)
    if entry == "soft":  # Of several partitions a change below a truncate depends on where batches end.
        history = replace(history, shape=replace(history.shape, partitions=1, shuffle=None))
    shop = CheckpointedShop(tmp_path / "shop", history, entry)
    count, told = len(history.events), set[str]()
    ends = sorted(chance.sample(range(1, count), 2))
    for end in (*ends, count):
        shop.reach(end)
    for end in ends:
        place = Position({place: at for place, at in history.position(end).items() if at})
        if set(place) != set(history.position(count)):
            continue  # Nothing had come of some partition, of which there is no place then.
        (found, by), (other, other_by) = query_as_of(shop, place), query_as_of(shop, place, from_log=True)
        assert to_sorted_rows(found) == to_sorted_rows(other) and other_by == "from", (entry, seed, end)
        told.add(by)
    for _ in range(3):
        _, moment = chance.choice(list_change_times(history))
        told.add(check_moment(shop, entry, moment))
    if seed == 1:
        assert "version" in told


def check_moment(shop: CheckpointedShop, entry: str, moment: datetime) -> str:
    """The supplier of the rows at a time. Target, log and model must have the same rows."""
    (found, by), (other, _) = query_as_of(shop, moment), query_as_of(shop, moment, from_log=True)
    assert to_sorted_rows(found) == to_sorted_rows(other), (entry, moment)
    if entry in POLICIES:
        assert equals_model(shop.history, POLICIES[entry], moment, other), (entry, moment)
    return by


def make_shop(folder: Path) -> CheckpointedShop:
    """Forty changes of one partition, in three commits of the lake."""
    writes = tuple(Statement("write", n % 7, salt=n) for n in range(40))
    shop = CheckpointedShop(folder / "shop", History(StreamShape(values=("text", "int"), tombstones=False), writes), "plain")
    for end in (10, 20, 40):
        shop.reach(end)
    return shop


def test_version_with_missing_files_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    shop = make_shop(tmp_path)
    place, wanted = shop.history.position(20), {"where": "k1 IS NOT NULL"}
    before, by = query_as_of(shop, place)
    assert by == "version"
    page = {"choose": lambda _: ReadQuery(limit=100)}
    DeltaTable(str(shop.folder / "lake" / "plain")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    for how in ({}, wanted, page):
        after, by = query_as_of(shop, place, **how)
        assert by == "from" and to_sorted_rows(after) == to_sorted_rows(before) != to_sorted_rows(
            query_as_of(shop, shop.history.position(40))[0]
        )


def test_version_of_another_writer_has_no_position(tmp_path: Path) -> None:
    """The version before it holds only rows of records."""
    shop = make_shop(tmp_path)
    before, _ = query_as_of(shop, shop.history.position(40))
    table = DeltaTable(str(shop.folder / "lake" / "plain"))
    table.optimize.compact()
    table.delete("k1 = 1")
    found, by = query_as_of(shop, shop.history.position(40))
    assert (
        by == "version"
        and to_sorted_rows(found) == to_sorted_rows(before)
        and table.to_pyarrow_table().num_rows < found.num_rows
    )


def make_shop_with_one_batch(folder: Path, entry: str = "plain", begun: int = 0) -> CheckpointedShop:
    """A history of two schemas. The changes before a key change are one commit, of a table that has the later column
    already."""
    before, behind = ([Statement("write", n, salt=n + more) for n in range(6)] for more in (0, 1))
    writes = (*before, Statement("chain", 1, 9, salt=1, mask=3), Statement("add_column"), *behind)
    shop = CheckpointedShop(
        folder / "shop", History(StreamShape(values=("text", "int"), toast=True, tombstones=False), writes), entry
    )
    if begun:
        shop.reach(begun)
    shop.reach(len(shop.history.events))
    place = json.dumps(shop.history.position(6).to_json(), separators=(",", ":"))
    assert any(
        place in str(entry.get(POSITION_METADATA)) for entry in DeltaTable(str(shop.folder / "lake" / "plain")).history()
    )
    return shop


def test_version_with_a_column_of_later_records_is_not_used(tmp_path: Path) -> None:
    shop = make_shop_with_one_batch(tmp_path)
    place, end = shop.history.position(6), shop.history.position(len(shop.history.events))
    (found, by), (other, _) = query_as_of(shop, place), query_as_of(shop, place, from_log=True)
    assert by == "from" and found.schema == other.schema and to_sorted_rows(found) == to_sorted_rows(other)
    (now, by), (other, _) = query_as_of(shop, end), query_as_of(shop, end, from_log=True)
    assert by == "version" and now.schema == other.schema and to_sorted_rows(now) == to_sorted_rows(other)
    assert set(now.column_names) - set(found.column_names) == {"v3"}


def test_version_is_used_if_the_log_cannot_be_replayed(tmp_path: Path) -> None:
    """A rule of today's config names a column that no record of that time has."""
    shop = make_shop_with_one_batch(tmp_path, "{sink: lake, into: plain, columns: {v3: {rename: w3}}}")
    said: list[str] = []
    with pytest.raises(Fatal, match="'columns' names column 'v3'"):
        read_target(shop.parts, "lake.plain", as_of=shop.history.position(6), from_log=True)
    found = read_target(shop.parts, "lake.plain", as_of=shop.history.position(6), show_line=said.append)
    assert found.num_rows == 6 and found["w3"].null_count == 6
    assert "version 1, with columns of later records; the event log has no answer: 'columns' names" in said[-1]


def test_versions_before_a_reload_are_not_used(tmp_path: Path) -> None:
    """They were written under other rules: here they hold values that are masked today."""
    shop = make_shop_with_one_batch(tmp_path, begun=6)
    assert query_as_of(shop, shop.history.position(6))[1] == "version"
    shop.config("{sink: lake, into: plain, columns: {v1: {mask: nothing}}}")
    lanes.resync_lane(shop.parts, "lake.plain", accept_missing=True)
    shop.reach(len(shop.history.events))
    found, by = query_as_of(shop, shop.history.position(6))
    assert by == "from" and found["v1"].null_count == found.num_rows == 6


REFUSED = {
    "another partition": ({("cdc.public.items", 7): 3}, "no records of cdc.public.items\\[7\\]"),
    "none of one": ({}, "there is no offset for"),
    "beyond the end": ({("cdc.public.items", 0): 10**6}, "ends before that offset"),
}


def test_invalid_positions_are_refused(tmp_path: Path) -> None:
    shop = make_shop(tmp_path)
    for places, sentence in REFUSED.values():
        with pytest.raises(InvalidReadQuery, match=sentence):
            query_as_of(shop, Position({TopicPartition(*place): at for place, at in places.items()}))
    with pytest.raises(ConfigProblem, match="a version and a time"):
        read_target(shop.parts, "lake.plain", version=1, as_of=shop.history.position(40))
