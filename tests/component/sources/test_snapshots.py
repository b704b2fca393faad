"""Comparison of successive snapshots: changes, refused snapshots, and storing each snapshot once."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from support.exported_records import SCHEMA, make_random_snapshots, write_parquet_snapshot
from support.full_disk import full_disk

from adapters.delta.folders import LocalLaneLock
from adapters.sources.snapshot_diff.file_snapshots import SnapshotFolder, list_snapshots
from adapters.sources.snapshot_diff.source import SnapshotJournal, SnapshotsCheck, SnapshotsSource
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem
from replicator.domain.position import Position

A, B, C = (1, "a", "x", 1.5), (2, "a", None, 0.0), (3, "a", "z", None)
NAN = (1, "a", "x", float("nan"))


def source(folder: Path, **options: Any) -> SnapshotsSource:
    given = {"format": "rows", "path": str(folder / "items"), "state": str(folder / "state"), "keys": ("id", "Part")}
    return SnapshotsSource({**given, **options})


def read(one: SnapshotsSource, start: Position | None = None) -> tuple[list[tuple], Position]:
    """Returns the changes that are left (operation, version and row) and the end position."""
    rows, at = [], dict(start or {})

    def take(batch: Any) -> None:
        for value in batch.frame["value"].to_pylist():
            found = json.loads(value)["payload"]
            rows.append((found["_change"], found["_snapshot"], *(found.get(name) for name in SCHEMA.names)))
        at.update(batch.span.end)

    one.run(start or Position(), take, threading.Event(), once=True)
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    return sorted(rows, key=lambda row: (row[1], row[0], str(row))), Position(at)


def test_differences_become_changes(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A, B])
    write_parquet_snapshot(tmp_path, 2, [C, (1, "a", None, 1.5)])
    write_parquet_snapshot(tmp_path, 3, [C, (1, "a", None, 1.5)])
    found, _ = read(source(tmp_path))
    assert found[:2] == [("c", 1, *A), ("c", 1, *B)]
    assert found[2:] == [("c", 2, *C), ("d", 2, *B), ("u", 2, 1, "a", None, 1.5)]


def test_equal_rows_are_no_changes(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [NAN, B])
    write_parquet_snapshot(tmp_path, 2, [B, NAN])
    assert len(read(source(tmp_path))[0]) == 2


def test_rows_of_nulls_are_created_and_deleted(tmp_path):
    nothing = (4, "a", None, None)
    for version, rows in enumerate(([A], [A, nothing], [A])):
        write_parquet_snapshot(tmp_path, version, rows)
    assert read(source(tmp_path))[0][1:] == [("c", 1, *nothing), ("d", 2, *nothing)]


def test_all_columns_may_be_the_key(tmp_path):
    keys = pa.schema(list(SCHEMA)[:2])
    for version, rows in enumerate(([(1, "a")], [(2, "a")], [(2, "a"), (1, "A")], [(2, "A")])):
        write_parquet_snapshot(tmp_path, version, rows, keys)
    found = [row[:4] for row in read(source(tmp_path))[0]]
    assert found == [
        ("c", 0, 1, "a"),
        *(("c", 1, 2, "a"), ("d", 1, 1, "a")),
        ("c", 2, 1, "A"),
        *(("c", 3, 2, "A"), ("d", 3, 1, "A"), ("d", 3, 2, "a")),
    ]


@pytest.mark.parametrize("batch_records", [1, 500])
def test_source_resumes_without_the_previous_file(tmp_path, batch_records):
    first = write_parquet_snapshot(tmp_path, 1, [A, B])
    found, at = read(source(tmp_path, batch_records=batch_records))
    first.unlink()
    write_parquet_snapshot(tmp_path, 20, [A])
    more, at = read(source(tmp_path, batch_records=batch_records), at)
    assert (len(found), more) == (2, [("d", 20, *B)])
    assert read(source(tmp_path), at)[0] == []
    assert [row[:3] for row in read(source(tmp_path))[0]] == [("c", 1, 1), ("c", 1, 2), ("d", 20, 2)]
    assert not source(tmp_path).losses(at, {})


def test_running_source_reads_a_new_snapshot(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A])
    stop, rows = threading.Event(), []

    def take(batch: Any) -> None:
        rows.extend(batch.frame["value"].to_pylist())
        if len(rows) == 1 and not (tmp_path / "items" / "2.parquet").exists():
            write_parquet_snapshot(tmp_path, 2, [A, B])
        if len(rows) == 2:
            stop.set()

    threading.Timer(30, stop.set).start()
    source(tmp_path).run(Position(), take, stop, once=False)
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("2024-01-05", 20240105),
        ("customers_20240105T101500Z", 20240105101500),
        ("v000012", 12),
        ("items.2024-01-05T10:15:00", 20240105101500),
        ("0", 0),
    ],
)
def test_version_is_the_end_of_the_file_name(tmp_path, name, version):
    write_parquet_snapshot(tmp_path, name, [A])
    assert [s.version for s in list_snapshots(str(tmp_path / "items"))] == [version]


def test_folder_is_read_once_it_has_its_success_file(tmp_path):
    folder = tmp_path / "items" / "2.parquet"
    for part in ("1", "2"):
        file = write_parquet_snapshot(tmp_path / "parts", part, [A] if part == "1" else [B])
        folder.mkdir(exist_ok=True, parents=True)
        shutil.copyfile(file, folder / f"part-0000{part}.snappy.parquet")
    write_parquet_snapshot(tmp_path, 1, [A])
    write_parquet_snapshot(tmp_path, 3, [])
    found, at = read(source(tmp_path, allow_empty=True))
    assert found == [("c", 1, *A)], "snapshots after an incomplete one wait"
    time.sleep(0.05)  # Files with equal times have no order.
    (folder / "_SUCCESS").touch()
    assert [row[:3] for row in read(source(tmp_path, allow_empty=True), at)[0]] == [("c", 2, 2), ("d", 3, 1), ("d", 3, 2)]


def test_folder_with_an_early_success_file_waits_for_its_files(tmp_path, monkeypatch):
    """A copy wrote the success file first. Rows of the missing files would be deleted."""
    monkeypatch.setattr("adapters.sources.snapshot_diff.file_snapshots.SETTLED_SECONDS", 600.0)
    folder = tmp_path / "items" / "v1"
    folder.mkdir(parents=True)
    (folder / "_SUCCESS").touch()
    supply = SnapshotFolder(str(folder.parent), "")
    assert supply.read_next({}) is None, "no file exists yet"
    write_parquet_snapshot(tmp_path / "parts", 1, [A]).rename(folder / "part-1.parquet")
    os.utime(folder / "part-1.parquet", (0, 0))
    assert supply.read_next({}) is None and supply.seconds_until_stable({}) > 500
    monkeypatch.setattr("adapters.sources.snapshot_diff.file_snapshots.SETTLED_SECONDS", 0.0)
    taken = supply.read_next({})
    assert taken is not None and taken.rows.num_rows == 1


def test_incomplete_file_is_read_when_it_is_complete(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A])
    file = write_parquet_snapshot(tmp_path, 2, [A, B])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    found, at = read(source(tmp_path))
    assert len(found) == 1
    file.write_bytes(whole)
    assert read(source(tmp_path), at)[0] == [("c", 2, *B)]


def test_empty_snapshot_is_data_loss_unless_allowed(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A])
    write_parquet_snapshot(tmp_path, 2, [])
    with pytest.raises(DataLoss, match="has no rows, so it would delete every row") as caught:
        read(source(tmp_path))
    assert "allow_empty: true" in caught.value.next_step
    assert read(source(tmp_path, allow_empty=True))[0] == [("c", 1, *A), ("d", 2, *A)]


def test_first_snapshot_may_be_empty_if_allowed(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [])
    write_parquet_snapshot(tmp_path, 2, [A])
    assert read(source(tmp_path, allow_empty=True))[0] == [("c", 2, *A)]


def test_late_snapshot_is_data_loss(tmp_path):
    write_parquet_snapshot(tmp_path, 5, [A])
    _, at = read(source(tmp_path))
    write_parquet_snapshot(tmp_path, 7, [A])
    read(source(tmp_path), at)
    write_parquet_snapshot(tmp_path, 6, [B])
    with pytest.raises(DataLoss, match=r"6.parquet appeared after version 7 had been read"):
        read(source(tmp_path), at)


def test_rewritten_snapshot_is_data_loss(tmp_path):
    write_parquet_snapshot(tmp_path, 5, [A])
    one = source(tmp_path)
    _, at = read(one)
    write_parquet_snapshot(tmp_path, 5, [A, B, C])
    for opened in (source(tmp_path), source(tmp_path)):
        with pytest.raises(DataLoss, match=r"5.parquet differs from the version 5 that was read before"):
            read(opened, at)
    write_parquet_snapshot(tmp_path, 5, [A])
    write_parquet_snapshot(tmp_path, 6, [A, B, C])
    assert len(read(one, at)[0]) == 2


def test_columns_may_only_be_added(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A, B])
    wider = SCHEMA.append(pa.field("more", pa.int64()))
    write_parquet_snapshot(tmp_path, 2, [(*A, None), (*B, 7)], wider)
    found, at = read(source(tmp_path))
    assert found[2:] == [("u", 2, *B)]
    write_parquet_snapshot(tmp_path, 3, [A, B])
    with pytest.raises(DataLoss, match="lacks the column 'more'"):
        read(source(tmp_path), at)
    write_parquet_snapshot(tmp_path, 3, [(*A, "7")], SCHEMA.append(pa.field("more", pa.string())))
    with pytest.raises(DataLoss, match=r"Column 'more' is string in .*, and was int64 before"):
        read(source(tmp_path), at)


@pytest.mark.parametrize(
    ("rows", "options", "error", "sentence"),
    [
        ([A, (1, "a", "other", 0.0)], {}, DataLoss, "has 1 row more than keys (id, Part)"),
        ([A, (None, "a", "x", 0.0)], {}, DataLoss, "has a NULL in key column 'id' of 1 row"),
        ([A], {"keys": ("ID",)}, ConfigProblem, "has no column 'ID'"),
        ([A], {"keys": ("id", "price")}, ConfigProblem, "Column 'price' of .* is double"),
        ([A], {"keys": ()}, ConfigProblem, "The key of items is unknown"),
        ([A], {"allow_emptyness": True}, ConfigProblem, "allow_emptyness"),
    ],
)
def test_unusable_rows_keys_and_options_are_refused(tmp_path, rows, options, error, sentence):
    write_parquet_snapshot(tmp_path, 1, rows)
    with pytest.raises(error) as caught:
        read(source(tmp_path, **options))
    assert re.search(sentence.replace("(", r"\(").replace(")", r"\)"), caught.value.sentence)


@pytest.mark.parametrize("names", [["export"], ["123456789012345"], ["2024-01-05", "20240105"]])
def test_names_without_a_usable_version_are_refused(tmp_path, names):
    for name in names:
        write_parquet_snapshot(tmp_path, name, [A])
    with pytest.raises(ConfigProblem):
        read(source(tmp_path))


def test_missing_folder_or_snapshot_is_reported(tmp_path):
    with pytest.raises(EnvironmentProblem, match="is not there"):
        source(tmp_path).end()
    (tmp_path / "items").mkdir()
    with pytest.raises(EnvironmentProblem, match="no whole snapshot"):
        source(tmp_path).end()


UNEVEN = [
    ["2024-1-31", "2024-2-1"],
    ["x_v10_2024-01-05", "x_v2_2024-01-06"],
    ["2024-01-05", "20240106"],
    ["9", "10", "2024-01-05"],
]


@pytest.mark.parametrize("names", UNEVEN)
def test_names_without_a_clear_order_are_refused(tmp_path, names):
    for name in names:
        write_parquet_snapshot(tmp_path, name, [A])
    with pytest.raises(ConfigProblem, match="parts of different lengths") as caught:
        read(source(tmp_path))
    listed = [name for name in names if f"/{name}.parquet " in caught.value.sentence]
    assert len(listed) == 2 and listed[-1] == names[-1] and "2024-01-05" in caught.value.next_step


def test_numeric_versions_may_have_any_width(tmp_path):
    for name, row in (("v9", A), ("v10", B), ("x_100", A)):
        write_parquet_snapshot(tmp_path, name, [row])
    assert [s.version for s in list_snapshots(str(tmp_path / "items"))] == [9, 10, 100]


def write_parquet(folder: Path, version: int, columns: list[tuple[str, Any]]) -> Path:
    file = folder / "items" / f"{version}.parquet"
    file.parent.mkdir(exist_ok=True)
    given = [("id", [1]), ("Part", ["a"]), *columns]
    pq.write_table(pa.Table.from_arrays([pa.array(v) for _, v in given], names=[n for n, _ in given]), file)
    return file


def test_duplicate_column_is_data_loss(tmp_path):
    """The file is not mistaken for an incomplete one, which would delay all later files."""
    write_parquet_snapshot(tmp_path, 1, [A])
    _, at = read(source(tmp_path))
    write_parquet(tmp_path, 2, [("v", [1]), ("v", [2])])
    write_parquet_snapshot(tmp_path, 3, [A, B])
    with pytest.raises(DataLoss, match=r"2.parquet has two columns 'v'"):
        read(source(tmp_path), at)


def test_complete_file_that_is_not_parquet_is_data_loss(tmp_path):
    file = write_parquet_snapshot(tmp_path, 1, [A])
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + whole[-8:])
    with pytest.raises(DataLoss, match=r"1.parquet is a whole file and cannot be read as Parquet"):
        read(source(tmp_path))
    for part in (b"", whole[:3], whole[:4], whole[:-1]):
        file.write_bytes(part)
        with pytest.raises(EnvironmentProblem, match="no whole snapshot"):
            read(source(tmp_path))


PAIR = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["d", "D"])


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ([("v", [1]), ("V", [2])], "has columns 'v' and 'V', which differ in case only"),
        ([("v", PAIR)], "has columns 'd' and 'D', which differ in case only within column 'v'"),
        ([("v", pa.ListArray.from_arrays([0, 1], PAIR))], "which differ in case only within column 'v'"),
        *(([(name, [1])], f"has a column '{name}'") for name in ("_op", "_version", "_row", "_order", "_before", "_Change")),
        *(([(name, [1])], f"column '{name}' of table items is reserved") for name in ("_unsent", "_TS", "_seq_1", "_mark")),
        ([("", [1])], "has a column without a name"),
        ([("a\0b", [1])], "has a NUL character in its name"),
    ],
)
def test_invalid_column_name_is_refused_before_the_state_changes(tmp_path, columns, sentence):
    write_parquet(tmp_path, 1, columns)
    with pytest.raises(ConfigProblem) as caught:
        read(source(tmp_path))
    assert sentence in caught.value.sentence and "1.parquet" in caught.value.sentence and caught.value.next_step
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["lock"]
    write_parquet(tmp_path, 1, [("v", [1])])
    _, at = read(source(tmp_path))
    before = sorted(str(file) for file in (tmp_path / "state").rglob("*.[pj]*"))
    write_parquet(tmp_path, 2, [("v", [1]), *((name, value) for name, value in columns if name != "v")])
    if len(columns) > 1 or columns[0][0] != "v":
        with pytest.raises(ConfigProblem):
            read(source(tmp_path), at)
        assert sorted(str(file) for file in (tmp_path / "state").rglob("*.[pj]*")) == before


def days(*numbers: int | None) -> pa.Array:
    return pa.array(numbers, pa.int32()).cast(pa.date32())


FIRST, LAST = -96_465_292, 95_026_236
INFINITE = days(2**31 - 1)


@pytest.mark.parametrize(
    "column",
    [
        INFINITE,
        days(-(2**31)),
        days(FIRST - 1),
        days(LAST + 1),
        pa.ListArray.from_arrays([0, 1], INFINITE),
        pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 1], INFINITE)], ["d"]),
        pa.MapArray.from_arrays([0, 1], pa.array(["a"]), INFINITE),
    ],
)
def test_days_outside_the_range_of_delta_are_data_loss(tmp_path, column):
    write_parquet(tmp_path, 1, [("day", column)])
    with pytest.raises(DataLoss, match=r"Column 'day' of .*1.parquet contains infinity, or a day") as caught:
        read(source(tmp_path))
    assert "as text" in caught.value.next_step
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["lock"]


@pytest.mark.parametrize("day", [FIRST, LAST, None])
def test_days_at_the_limits_of_delta_are_read(tmp_path, day):
    write_parquet(tmp_path, 1, [("day", days(day)), ("all", pa.ListArray.from_arrays([0, 1], days(day)))])
    assert len(read(source(tmp_path))[0]) == 1


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x1c", "\x1d", "\x1e", "\x0b", "\x0c", "\r", "\n"])
def test_line_separators_are_text(tmp_path, sign):
    """They stand unescaped in the statistics of the journal's commits."""
    write_parquet_snapshot(tmp_path, 1, [(1, f"a{sign}b", f"{sign}x", 1.5)])
    found, at = read(source(tmp_path))
    assert found == [("c", 1, 1, f"a{sign}b", f"{sign}x", 1.5)]
    write_parquet_snapshot(tmp_path, 2, [(1, f"a{sign}b", "y", 1.5)])
    assert read(source(tmp_path), at)[0] == [("u", 2, 1, f"a{sign}b", "y", 1.5)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("moment", ["_store_rows", "commit", "_write_versions"])
@pytest.mark.parametrize("after", [False, True])
def test_kill_at_any_step_duplicates_nothing(tmp_path, monkeypatch, seed, moment, after):
    states = make_random_snapshots(random.Random(seed), 6)
    for version, rows in enumerate(states):
        write_parquet_snapshot(tmp_path / "whole", version, rows)
        write_parquet_snapshot(tmp_path / "cut", version, rows)
    expected, _ = read(source(tmp_path / "whole", allow_empty=True))
    original = getattr(SnapshotJournal, moment)
    calls = iter(range(100))

    def kill(self: SnapshotJournal, *given: Any) -> None:
        if after:
            original(self, *given)
        if next(calls) % 3:
            raise Killed
        if not after:
            original(self, *given)

    monkeypatch.setattr(SnapshotJournal, moment, kill)
    for _ in range(40):
        try:
            found, _ = read(source(tmp_path / "cut", allow_empty=True))
            break
        except Killed:
            continue
    assert found == expected
    kept = sorted(p.name for p in (tmp_path / "cut" / "state").glob("*.parquet"))
    assert kept == ["5.parquet"]


@pytest.mark.parametrize("room", [0, 20])
def test_full_disk_is_reported_with_a_next_step(tmp_path, room):
    """The disk has no room for the lock, or room for the lock only."""
    write_parquet_snapshot(tmp_path, 1, [A])
    one = source(tmp_path)
    with full_disk(room), pytest.raises(EnvironmentProblem, match="state cannot be written: File too large") as caught:
        read(one)
    assert "room on its disk" in caught.value.next_step
    assert len(read(one)[0]) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"taken": [1]}', '{"taken": {"x": 1}}'])
def test_damaged_list_of_read_snapshots_is_data_loss(tmp_path, text):
    write_parquet_snapshot(tmp_path, 1, [A])
    read(source(tmp_path))
    (tmp_path / "state" / "taken.json").write_text(text)
    with pytest.raises(DataLoss, match=r"taken.json is damaged"):
        read(source(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", '{"keys": 1}'])
def test_damaged_keys_are_data_loss(tmp_path, text):
    write_parquet_snapshot(tmp_path, 1, [A])
    read(source(tmp_path))
    (tmp_path / "state" / "keys.json").write_text(text)
    with pytest.raises(DataLoss, match=r"keys.json is damaged"):
        read(source(tmp_path))


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("keys", [("id",), ("id", "Part", "name")])
def test_changed_keys_are_data_loss(tmp_path, keys, is_there):
    """The snapshot to compare may exist or not."""
    file = write_parquet_snapshot(tmp_path, 1, [A])
    _, at = read(source(tmp_path))
    if not is_there:
        file.unlink()
    other = source(tmp_path, keys=keys)
    for act in (other.start, other.end, other.before_refresh, lambda: other.losses(at, {}), lambda: read(other, at)):
        if act == other.before_refresh and not is_there:
            continue  # No snapshot is left to read.
        with pytest.raises(DataLoss, match=r"compared by the keys \(Part, id\), but `keys` is now \(id") as caught:
            act()
        assert f"Remove the folder {tmp_path / 'state'}" in caught.value.next_step
        assert "lanes resync" in caught.value.next_step
    assert read(source(tmp_path, keys=("Part", "id")), at)[0] == [], "the order of keys has no effect"


def test_keys_may_be_corrected_before_the_first_snapshot(tmp_path, monkeypatch):
    write_parquet_snapshot(tmp_path, 1, [A, B, C])
    with monkeypatch.context() as patched:
        patched.setattr(SnapshotJournal, "commit", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            read(source(tmp_path, keys=("id",)))
    assert len(read(source(tmp_path))[0]) == 3
    with pytest.raises(DataLoss, match="`keys` is now"):
        source(tmp_path, keys=("id",)).start()


def test_missing_stored_keys_are_taken_from_the_config(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A])
    _, at = read(source(tmp_path))
    (tmp_path / "state" / "keys.json").unlink()
    assert read(source(tmp_path), at)[0] == []
    with pytest.raises(DataLoss, match="`keys` is now"):
        read(source(tmp_path, keys=("id",)), at)


@pytest.mark.parametrize("lost", ["items", "taken.json", "1.parquet"])
def test_lost_state_is_data_loss_or_is_restored(tmp_path, lost):
    write_parquet_snapshot(tmp_path, 1, [A])
    _, at = read(source(tmp_path))
    write_parquet_snapshot(tmp_path, 2, [B])
    gone = tmp_path / "state" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    if lost == "taken.json":
        assert [row[0] for row in read(source(tmp_path), at)[0]] == ["c", "d"]
        return
    with pytest.raises(DataLoss, match=r"does not exist any more|cannot be read") as caught:
        read(source(tmp_path), at)
    assert "lanes resync" in caught.value.next_step
    shutil.rmtree(tmp_path / "state")
    assert source(tmp_path).losses(at, {"items": "another"})


def test_snapshots_wait_while_another_process_has_the_lock(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A])
    _, at = read(source(tmp_path))
    write_parquet_snapshot(tmp_path, 2, [B])
    lock = LocalLaneLock(tmp_path / "state" / "lock", "items")
    assert read(source(tmp_path), at)[0] == []
    lock.release()
    assert len(read(source(tmp_path), at)[0]) == 2


def test_journal_does_not_clean_up_its_delta_log(tmp_path):
    write_parquet_snapshot(tmp_path, 1, [A])
    read(source(tmp_path))
    table = DeltaTable(str(tmp_path / "state" / "items"))
    assert table.metadata().configuration["delta.enableExpiredLogCleanup"] == "false"


def test_doctor_checks_snapshots_and_writes_no_state(tmp_path):
    def diagnose() -> tuple[str, str]:
        (found,) = SnapshotsCheck("source items", {"path": str(tmp_path / "items"), "positions": {}}).diagnose()
        return found.severity, found.sentence

    assert diagnose()[0] == "error"
    (tmp_path / "items").mkdir()
    assert diagnose()[0] == "warning"
    file = write_parquet_snapshot(tmp_path, 3, [A, B])
    assert diagnose() == ("ok", "items has 1 snapshot; the newest is version 3, with 2 rows.")
    file.write_bytes(file.read_bytes()[:50])
    assert diagnose()[0] == "warning"
    assert not (tmp_path / "state").exists()


def test_types_that_delta_does_not_have_are_converted(tmp_path):
    file = tmp_path / "items" / "1.parquet"
    file.parent.mkdir()
    kinds = {
        "id": pa.array([1], pa.uint64()),
        "Part": pa.array(["a"]).dictionary_encode(),
        "at": pa.array([1], pa.timestamp("ns")),
    }
    pq.write_table(pa.table(kinds), file)
    pq.write_table(pa.table({**kinds, "at": pa.array([2], pa.timestamp("ns"))}), file.with_name("2.parquet"))
    assert [row[:2] for row in read(source(tmp_path))[0]] == [("c", 1), ("u", 2)]
