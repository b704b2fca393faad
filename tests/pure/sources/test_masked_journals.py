"""Private columns of sources with a journal."""

from __future__ import annotations

import json
import threading
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.exported_records import write_parquet_snapshot
from support.masked_records import CUT, FIXED, HMAC, KEY, NOTHING, compute_hmac, decode_changes
from support.queried_database import QueriedDatabase
from support.queried_database import make_query_source as of_query

from adapters.decoders.rows import RowsDecoder
from adapters.sources.snapshot_diff.source import SnapshotsSource
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss
from replicator.domain.position import Position
from replicator.domain.transform.columns import Mask

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("email", pa.string()),
        ("born", pa.date32()),
        ("owes", pa.decimal128(7, 2)),
        ("phone", pa.string()),
    ]
)
ALICE = (47110815, "alice@example.com", date(1970, 2, 28), Decimal("4711.50"), "0176-55")
BOB = (47120816, "bob@example.com", date(1971, 3, 27), None, "0176-55")
CLEAR = ("47110815", "47120816", "alice@", "bob@", "1970, 2", "1970-02", "1971, 3", "4711.50", "0176-55", KEY.decode())
MASKS = {"id": HMAC, "email": CUT, "born": HMAC, "owes": HMAC, "phone": NOTHING}
HIDDEN = (
    compute_hmac("47110815"),
    f"al-{compute_hmac('alice@example.com')[:16]}",
    compute_hmac("1970-02-28"),
    compute_hmac("4711.5"),
    None,
)
OTHER = Mask("hmac", b"o" * 16)


def snapshots(folder: Path, masks: Any = MASKS, **more: Any) -> SnapshotsSource:
    given = {"path": str(folder / "items"), "state": str(folder / "state"), "keys": ("id",), "private": masks}
    return SnapshotsSource({**given, **more})


def read(one: Any, start: Position | None = None) -> tuple[pa.Table, Position]:
    """The records that are left to read, and where they end."""
    frames, at = [RAW.empty_table()], dict(start or {})

    def take(batch: Any) -> None:
        frames.append(batch.frame)
        at.update(batch.span.end)

    one.run(start or Position(), take, threading.Event(), once=True)
    return pa.concat_tables(frames), Position(at)


def rows(records: pa.Table, names: Any = SCHEMA.names) -> list[tuple[Any, ...]]:
    found = (json.loads(value)["payload"] for value in records["value"].to_pylist())
    return [(row["_change"], *(row.get(name) for name in names)) for row in found]


def read_state_text(folder: Path) -> str:
    """All that is below `state`, in clear."""
    files = [file for file in (folder / "state").rglob("*") if file.is_file()]
    return "\n".join(
        repr(pq.read_table(file, partitioning=None).to_pylist()) if file.suffix == ".parquet" else file.read_text()
        for file in files
    )


def assert_private(folder: Path, *clear: str) -> None:
    text = read_state_text(folder)
    assert compute_hmac("47110815") in text
    assert [value for value in (*CLEAR, *clear) if value in text] == []


def make_decoder(masks: Any = MASKS) -> RowsDecoder:
    told = {"keys": {"*": ["id"]}, "private": {"*": masks}}
    return RowsDecoder({**told, "operation_column": "_change", "sequence_columns": ["_snapshot"]})


def test_snapshot_rows_are_stored_masked(tmp_path: Path) -> None:
    write_parquet_snapshot(tmp_path, 1, [ALICE, BOB], SCHEMA)
    records, at = read(snapshots(tmp_path))
    assert ("c", *HIDDEN) in rows(records)
    assert_private(tmp_path)
    write_parquet_snapshot(tmp_path, 2, [(*ALICE[:1], "alice@example.org", *ALICE[2:])], SCHEMA)
    later, _ = read(snapshots(tmp_path), at)
    changed = (HIDDEN[0], f"al-{compute_hmac('alice@example.org')[:16]}", *HIDDEN[2:])
    assert sorted(row[:2] for row in rows(later)) == [("d", compute_hmac("47120816")), ("u", compute_hmac("47110815"))]
    assert ("u", *changed) in rows(later)
    assert_private(tmp_path)


def test_records_are_marked_as_masked_and_masked_once(tmp_path: Path) -> None:
    """Like records of an event log: a pipeline that reads them may configure the same masks."""
    write_parquet_snapshot(tmp_path, 1, [ALICE, BOB], SCHEMA)
    records, _ = read(snapshots(tmp_path))
    assert make_decoder().mask_records(records).equals(records)
    alice = next(row for row in decode_changes(records, make_decoder()) if row["id"] == HIDDEN[0])
    assert tuple(alice[name] for name in SCHEMA.names) == HIDDEN
    table = make_decoder().learn(records, "items", make_decoder().route(records)["fingerprint"][0].as_py())
    assert (table.keys, table.column("owes").type) == (("id",), pa.string())


def test_rows_that_differ_in_removed_values_are_equal(tmp_path: Path) -> None:
    for version, phone in enumerate(("1", "2"), 1):
        write_parquet_snapshot(tmp_path, version, [(*ALICE[:4], phone)], SCHEMA)
    assert len(rows(read(snapshots(tmp_path))[0])) == 1


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(
    ("before", "now"),
    [({}, {"name": HMAC}), ({"name": HMAC}, {}), ({"name": HMAC}, {"name": OTHER}), ({"name": HMAC}, {"name": CUT})],
)
def test_changed_mask_is_refused_with_a_remedy(tmp_path: Path, before: Any, now: Any, asks: bool) -> None:
    def source(masks: Any) -> Any:
        return open_query_source(tmp_path, masks) if asks else snapshots(tmp_path, masks)

    if asks:
        QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}").make_sales()
    else:
        write_parquet_snapshot(tmp_path, 1, [(1, "Robert")], pa.schema([("id", pa.int64()), ("name", pa.string())]))
    read(source(before))
    assert ("Robert" in read_state_text(tmp_path)) == (not before)
    for _ in range(2):
        with pytest.raises(DataLoss, match="another mask of 'name'") as stopped:
            read(source(now))
    assert "Remove the folder" in (stopped.value.next_step or "")
    assert read(source(before))[0].num_rows
    for file in sorted((tmp_path / "state").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    assert read(source(now))[0].num_rows
    assert ("Robert" in read_state_text(tmp_path)) == (not now)


def test_journal_without_recorded_masks_is_not_masked(tmp_path: Path) -> None:
    """An older version did not record them."""
    write_parquet_snapshot(tmp_path, 1, [ALICE], SCHEMA)
    read(snapshots(tmp_path, {}))
    (tmp_path / "state" / "keys.json").unlink()
    with pytest.raises(DataLoss, match="another mask of 'born', 'email', 'id', 'owes', 'phone'"):
        read(snapshots(tmp_path))


def test_mask_of_a_future_column_name_changes_nothing(tmp_path: Path) -> None:
    """The new name of a column that the source may rename."""
    write_parquet_snapshot(tmp_path, 1, [ALICE], SCHEMA)
    _, at = read(snapshots(tmp_path))
    more = {**MASKS, "email": CUT.with_aliases(["mail"]), "mail": CUT.with_aliases(["email"])}
    assert read(snapshots(tmp_path, more), at)[0].num_rows == 0
    write_parquet_snapshot(tmp_path, 2, [(*ALICE, "alice@example.org")], pa.schema([*SCHEMA, ("mail", pa.string())]))
    records, _ = read(snapshots(tmp_path, more), at)
    assert rows(records, ["mail"]) == [("u", f"al-{compute_hmac('alice@example.org')[:16]}")]
    assert_private(tmp_path)


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        ({"id": CUT}, "masks a key column"),
        ({"emial": HMAC}, "does not have"),
        ({"at": HMAC}, "which can be written in several ways"),
    ],
)
def test_unsuitable_mask_is_refused_before_any_write(tmp_path: Path, masks: Any, told: str) -> None:
    write_parquet_snapshot(tmp_path, 1, [(*ALICE, [1.5])], pa.schema([*SCHEMA, ("at", pa.list_(pa.float64()))]))
    with pytest.raises(ConfigProblem, match=told):
        read(snapshots(tmp_path, masks))
    assert "alice" not in read_state_text(tmp_path)


def open_query_source(folder: Path, masks: Any, **more: Any) -> Any:
    return of_query(QueriedDatabase(f"sqlite:///{folder / 'asked.db'}"), folder, private=masks, **more)


@pytest.mark.parametrize("ranges", [1, 3])
def test_query_rows_are_stored_masked(tmp_path: Path, ranges: int) -> None:
    database = QueriedDatabase(f"sqlite:///{tmp_path / 'asked.db'}")
    database.make_sales()
    masks = {"id": HMAC, "name": FIXED, "date": HMAC, "sales": HMAC}
    records, at = read(open_query_source(tmp_path, masks, ranges=ranges))
    names = ["id", "date", "name", "sales", "modified"]
    # Ranges are read side by side: any may come first.
    first = ("r", compute_hmac("1"), compute_hmac("2019-11-11"), "*", compute_hmac("323"), "2019-11-11 12:00:05.000000")
    assert first in rows(records, names)
    database.add_sales((47110815, "2019-11-14", "alice@", "4711.00", "2019-11-13 11:34:00"))
    database.run("UPDATE sales SET name = 'Bob', modified = '2019-11-13 11:33:28' WHERE id = 4")
    records, at = read(open_query_source(tmp_path, masks), at)
    assert sorted(row[1] for row in rows(records, names)) == sorted([compute_hmac("47110815"), compute_hmac("4")])
    assert read(open_query_source(tmp_path, masks), at)[0].num_rows == 0
    assert_private(tmp_path, "Robert", "Lee", "Bob", "323.00", "2019-11-14")
    assert decode_changes(records, make_decoder(masks))[0]["name"] == "*"


def test_cursor_column_cannot_be_masked(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="cursor_column cannot be masked"):
        open_query_source(tmp_path, {"modified": HMAC})
