"""Rows of groups are replaced by rewriting the files that contain them."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from adapters.delta.folders import LocalFolder
from adapters.delta.tables import FILE_BYTES
from adapters.gold import local
from adapters.gold.local import GroupRewrite, find_file_ranges, plan_rewrite, replace_groups, scale_bytes, sort_by_group
from adapters.gold.table_version import ColumnBounds, DataFile, TableVersion
from adapters.sinks.delta.sink import CHANGE_DATA_FEED

LONG = "x" * 70
VALUES: dict[str, list[Any]] = {
    "numbers": list(range(-40, 40)),
    "texts": [f"{'z' * (n % 3)}{n:02}" for n in range(30)]
    + [LONG + s for s in ("", "a", "é", "\U0010ffff" * 20)]
    + ["", "é"],
    "days": [date(2023, 12, 1) + timedelta(days=n) for n in range(60)],
    "truths": [True, False],
}
KINDS = {"numbers": pa.int32(), "texts": pa.string(), "days": pa.date32(), "truths": pa.bool_()}
SAID = CommitProperties(max_commit_retries=0)


def rows_of(kind: str, groups: list[Any], number: int) -> pa.Table:
    values = {"city": pa.array(groups, KINDS[kind]), "n": pa.array([number] * len(groups), pa.int64())}
    return pa.table({**values, "tags": pa.array([[("k", str(number))]] * len(groups), pa.map_(pa.string(), pa.string()))})


def count_rows(rows: pa.Table) -> Counter[Any]:
    return Counter((row["city"], row["n"]) for row in rows.to_pylist())


def of_group(rows: Counter[Any], group: Any) -> dict[Any, int]:
    return {row: n for row, n in rows.items() if row[0] == group}


def version_of(path: Path) -> TableVersion:
    return TableVersion(DeltaTable(path), LocalFolder(path))


def rewrite_groups(path: Path, rows: pa.Table, groups: frozenset[Any]) -> tuple[int, int]:
    """Replace the rows of the groups; how many files went, and how many came."""
    before = version_of(path)
    what = plan_rewrite(before, "city", groups)
    assert what is not None
    paths = before.paths
    number = replace_groups(before, rows, what, SAID)
    after = version_of(path)
    assert number == after.number
    return len(paths - after.paths), len(after.paths - paths)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VALUES)
def test_replaced_groups_equal_the_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of many replacements, the rows equal a model, and each is found by its group."""
    monkeypatch.setattr(local, "SMALLEST", 1200)
    chance = random.Random(kind)
    values = [*VALUES[kind], None]
    model: Counter[Any] = Counter()
    for number in range(4):
        rows = rows_of(kind, chance.choices(values, k=30), -number)
        write_deltalake(tmp_path, rows, mode="append")
        model += count_rows(rows)
    for number in range(8):
        groups = frozenset({*chance.sample(values, min(len(values), chance.randint(1, 4))), *([None] * (number % 2))})
        rows = rows_of(kind, chance.choices([*groups], k=chance.randint(0, 9)), number)
        rewrite_groups(tmp_path, rows, groups)
        model = Counter({row: n for row, n in model.items() if row[0] not in groups}) + count_rows(rows)
        version = version_of(tmp_path)
        assert count_rows(version.table.to_pyarrow_table()) == model
        for group in (None, *chance.sample(values, min(len(values), 12))):
            there = count_rows(version.rows(version.find_candidate_files("city", frozenset({group}))).to_table())
            assert {row: n for row, n in there.items() if row[0] == group} == {
                r: n for r, n in model.items() if r[0] == group
            }


def test_few_files_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after many refreshes with new groups anywhere, files keep their own ranges and similar sizes."""
    monkeypatch.setattr(local, "SMALLEST", 4000)
    groups = [n for n in range(0, 4000, 2) for _ in range(5)]
    write_deltalake(tmp_path, rows_of("numbers", groups, 0), target_file_size=1)
    rewrite_groups(tmp_path, rows_of("numbers", [], 0), frozenset({0}))
    first = len(DeltaTable(tmp_path).file_uris())
    assert first >= 10
    for number in range(1, 20):
        groups = [number * 197 % 4000, (number * 197 + 2000) % 4000]
        gone, came = rewrite_groups(tmp_path, rows_of("numbers", groups + groups[1:] * 70, number), frozenset(groups))
        assert gone <= 4 and came <= 6
        assert all(file.bounds.high - file.bounds.low < 1500 for file in version_of(tmp_path).files("city"))
    assert first / 2 <= len(DeltaTable(tmp_path).file_uris()) <= first * 2


def test_files_without_bounds_stay_separate() -> None:
    """Whatever file with only NULL was written between them."""
    unknown = [DataFile(f"unknown-{n}", 10, {}, ColumnBounds(1)) for n in range(2)]
    void, low, high = (
        DataFile("void", 10, {}, ColumnBounds(2, nulls=2)),
        *(DataFile(v, 10, {}, ColumnBounds(1, v, v, 0)) for v in "ac"),
    )
    (first, second) = find_file_ranges([unknown[0], void, unknown[1], low, high], frozenset({"c"}))
    assert (first.low, first.files) == (None, tuple(unknown))
    assert (second.low, second.files) == ("c", (high,))


def test_many_small_files_are_joined(tmp_path: Path) -> None:
    for number in range(30):
        write_deltalake(tmp_path, rows_of("numbers", [number], number), mode="append")
    rewrite_groups(tmp_path, rows_of("numbers", [7], 100), frozenset({7}))
    table = DeltaTable(tmp_path)
    assert len(table.file_uris()) == 1
    assert table.to_pyarrow_table()["city"].to_pylist() == list(range(30))


@pytest.mark.parametrize("text", ["a word that comes again and again, {n}", "{n}"])
def test_files_have_the_target_size(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However well their rows compress; otherwise the next refresh would rewrite them again."""
    monkeypatch.setattr(local, "SMALLEST", 40_000)
    groups = sorted(n % 1000 for n in range(100_000))
    values = {"n": pa.array(range(100_000)), "text": [text.format(n=n * 7919 % 100_003) for n in range(100_000)]}
    rows = pa.table({"city": pa.array(groups, pa.int32()), **values})
    write_deltalake(tmp_path, rows, target_file_size=scale_bytes(rows))
    files = version_of(tmp_path).files("city")
    assert len(files) > 10 and all(25_000 < file.size < 60_000 for file in files[:-1]), [file.size for file in files]
    gone, came = rewrite_groups(tmp_path, rows.slice(0, 1), frozenset({0}))
    assert gone == came == 1


def test_empty_table_has_the_default_file_size() -> None:
    assert scale_bytes(pa.table({"n": pa.array([], pa.int64())})) == FILE_BYTES


def test_second_of_two_concurrent_replacements_fails(tmp_path: Path) -> None:
    write_deltalake(tmp_path, rows_of("numbers", [1, 2], 0))
    version = version_of(tmp_path)
    what = plan_rewrite(version, "city", frozenset({1}))
    assert what is not None
    rewrite_groups(tmp_path, rows_of("numbers", [2], 5), frozenset({2}))
    with pytest.raises(CommitFailedError):
        replace_groups(version, rows_of("numbers", [1], 9), what, SAID)
    assert count_rows(DeltaTable(tmp_path).to_pyarrow_table()) == {(1, 0): 1, (2, 5): 1}


@pytest.mark.parametrize("how", [{"configuration": {CHANGE_DATA_FEED: "true"}}, {"partition_by": ["city"]}])
def test_tables_that_only_delta_rs_can_write(how: dict[str, Any], tmp_path: Path) -> None:
    """Tables with a change data feed or partitions."""
    write_deltalake(tmp_path, rows_of("numbers", [1, 2], 0), **how)
    assert plan_rewrite(version_of(tmp_path), "city", frozenset({1})) is None


@pytest.mark.parametrize("kind", VALUES)
def test_partitions_are_found_by_their_values(kind: str, tmp_path: Path) -> None:
    values = [*(v for v in VALUES[kind] if v != ""), None, *(["it's", "a b", "50%", "x/y"] if kind == "texts" else [])]
    values = [value for value in values if not (isinstance(value, str) and len(value) > 80)]
    write_deltalake(tmp_path, rows_of(kind, values, 0), partition_by=["city"])
    version = version_of(tmp_path)
    for group in values:
        files = version.find_candidate_files("city", frozenset({group}))
        assert [file.partition for file in files] == [{"city": group}]
        assert version.rows(files).to_table()["city"].to_pylist() == [group]


def test_values_of_another_type_are_searched_in_all_files(tmp_path: Path) -> None:
    """A query may find 5 equal to '5'."""
    write_deltalake(tmp_path, rows_of("texts", ["5", "7"], 0))
    assert len(version_of(tmp_path).find_candidate_files("city", frozenset({900}))) == 1


def test_rows_are_sorted_by_group() -> None:
    rows = sort_by_group(rows_of("numbers", [3, None, -1], 0), "city")
    assert rows["city"].to_pylist() == [None, -1, 3]


def test_empty_table_gets_a_new_file(tmp_path: Path) -> None:
    write_deltalake(tmp_path, rows_of("numbers", [], 0))
    assert rewrite_groups(tmp_path, rows_of("numbers", [4], 1), frozenset({4}))[1] == 1
    assert isinstance(plan_rewrite(version_of(tmp_path), "city", frozenset({4})), GroupRewrite)
