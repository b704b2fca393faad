"""Parquet files of DMS: every value has the type of its column."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.dms_folder import set_old_time

from adapters.decoders.rows.dms_parquet import DmsParquetDecoder
from adapters.sources.files import file_reader, files_check
from adapters.sources.files.dms import DmsFilesSource
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.position import Position

CDC = "20211017-194324349.parquet"
KEYS = {"keys": {"public.users": ["id"]}}
AT = datetime(2021, 10, 17, 19, 43, 24, 349_123)
TYPES = {
    "small": (pa.int8(), 7, pa.int8()),
    "whole": (pa.uint32(), 2**32 - 1, pa.uint32()),
    "ratio": (pa.float64(), float("inf"), pa.float64()),
    "money": (pa.decimal128(38, 10), Decimal("-1234567890123456789.0123456789"), pa.decimal128(38, 10)),
    "flag": (pa.bool_(), True, pa.bool_()),
    "note": (pa.large_string(), 'é "\n', pa.string()),
    "kind": (pa.dictionary(pa.int32(), pa.string()), "a", pa.string()),
    "data": (pa.binary(), b"\x00\xff", pa.binary()),
    "day": (pa.date32(), date(2021, 10, 17), pa.date32()),
    "hour": (pa.time32("ms"), time(19, 43, 24, 349_000), pa.time64("us")),
    "at": (pa.timestamp("us"), AT, pa.timestamp("us")),
    "coarse": (pa.timestamp("ms"), datetime(2021, 10, 17, 1, 2, 3, 4000), pa.timestamp("us")),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), AT.replace(tzinfo=UTC), pa.timestamp("us", "UTC")),
}


def put(folder: Path, name: str, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, folder / name, **options)
    set_old_time(folder / name)
    return folder / name


@pytest.fixture
def users(tmp_path):
    return tmp_path / "bucket" / "public" / "users"


def raw_of(folder: Path, **options: Any) -> pa.Table:
    source, found = DmsFilesSource({"path": str(folder), "format": "dms_parquet", **options}), []
    source.run(Position(), lambda batch: found.append(batch.frame), threading.Event(), once=True)
    return pa.concat_tables(found)


def decode_records(raw: pa.Table, **options: Any) -> pa.Table:
    """Every record by the layout of its own."""
    decoder, parts = DmsParquetDecoder({**KEYS, **options}), []
    for at in range(raw.num_rows):
        one = raw.slice(at, 1)
        route = decoder.route(one).to_pylist()[0]
        parts.append(decoder.decode(one, decoder.learn(one, route["table"], route["fingerprint"])).to_pylist()[0])
    return parts


def test_full_load_then_changes(users):
    put(users, "LOAD00000001.parquet", {"id": [1, 2], "name": ["a", "b"]})
    put(users / "2021" / "10" / "17", CDC, {"Op": ["U", "D", "I"], "id": [1, 2, 3], "name": ["c", None, None]})
    rows = decode_records(raw_of(users.parent))
    assert [(r["_op"], r["id"], r["name"], r["_error"]) for r in rows] == [
        ("r", 1, "a", None), ("r", 2, "b", None), ("u", 1, "c", None), ("d", 2, None, None), ("c", 3, None, None),
    ]  # fmt: skip
    sequences = [(r["_seq_1"], r["_seq_2"]) for r in rows]
    assert sequences == sorted(set(sequences)) and sequences[2] == (1634499804349, 1)
    assert [r["_ts"] and r["_ts"].timestamp() for r in rows] == [None, None, *[1634499804.349] * 3]
    assert "Op" not in rows[2]


def test_types(users):
    """One row with values and one with nulls."""
    columns = {name: pa.array([value, None], arrow) for name, (arrow, value, _) in TYPES.items()}
    put(users, CDC, {"Op": ["I", "I"], "id": [1, 2], **columns})
    raw = raw_of(users)
    decoder = DmsParquetDecoder(KEYS)
    spec = decoder.learn(raw, "public.users", decoder.route(raw)["fingerprint"][0].as_py())
    assert {c.name: c.type for c in spec.columns} == {"id": pa.int64()} | {n: told for n, (_, _, told) in TYPES.items()}
    whole, nothing = decoder.decode(raw, spec).to_pylist()
    assert not whole["_error"] and not nothing["_error"]
    for name, (_, value, _) in TYPES.items():
        assert whole[name] == value and nothing[name] is None, name


@pytest.mark.parametrize(
    ("kind", "held", "beyond"),
    [
        (pa.timestamp("ns"), 1_000, 1_001),
        (pa.timestamp("ns", "UTC"), 1_000, 1_001),
        (pa.timestamp("ns", "Europe/Berlin"), 1_000, 1_001),
        (pa.time64("ns"), 1_000, 1_001),
        (pa.timestamp("ms"), 1, 2**62),
    ],
    ids=str,
)
def test_time_that_does_not_fit_microseconds_is_rejected(users, kind, held, beyond):
    values = pa.array([held, beyond, None], pa.int64()).cast(kind)
    put(users, CDC, {"Op": ["I"] * 3, "id": [1, 2, 3], "at": values}, coerce_timestamps=None)
    first, second, third = decode_records(raw_of(users))
    assert (first["_error"], third["_error"]) == (None, None) and first["at"] is not None and third["at"] is None
    assert second["_error"].startswith("OUT_OF_RANGE: column 'at' holds")


def test_row_numbers_continue_over_pieces_of_a_file(users, monkeypatch):
    monkeypatch.setattr(file_reader, "PARQUET_ROWS", 7)
    put(users, CDC, {"Op": ["I"] * 50, "id": range(50)}, row_group_size=9)
    raw = raw_of(users)
    assert [json.loads(v)["payload"]["id"] for v in raw["value"].to_pylist()] == list(range(50))
    assert [o & (2**21 - 1) for o in raw["offset"].to_pylist()] == list(range(1, 51))


def test_configured_operation_names(users):
    put(users, "LOAD00000001.parquet", {"action": ["ins"], "id": [1]})
    put(users, CDC, {"action": ["upd", "?", None], "id": [1, 2, 3]})
    told = {"operation_column": "action"}
    rows = decode_records(
        raw_of(users, **told), **told, operations={"create": ["ins"], "update": ["upd"], "delete": ["del"]}
    )
    assert [r["_op"] for r in rows] == ["c", "u", None, None]
    assert rows[2]["_error"].endswith("holds an operation that is not known; known are del, ins, upd (row 2 of "
                                      "20211017-194324349)")  # fmt: skip


def test_changes_without_operation_column_are_rejected(users):
    put(users, CDC, {"id": [1]})
    put(users, "LOAD00000001.parquet", {"id": [1]})
    load, change = decode_records(raw_of(users))
    assert load["_op"] == "r" and not load["_error"]
    assert "column 'Op' holds no operation" in change["_error"] and "(row 1 of 20211017-194324349)" in change["_error"]


@pytest.mark.parametrize("nothing", [None, ""])
def test_full_load_with_empty_operations_is_read(users, nothing):
    put(users, "LOAD00000001.parquet", {"Op": pa.array([nothing, "I"], pa.string()), "id": [1, 2]})
    put(users, CDC, {"Op": pa.array(["U", nothing], pa.string()), "id": [1, 2]})
    rows = decode_records(raw_of(users))
    assert [row["_op"] for row in rows] == ["r", "c", "u", None]
    assert rows[3]["_error"].startswith("UNKNOWN_OPERATION")


def test_null_key_is_rejected(users):
    put(users, CDC, {"Op": ["I"], "id": pa.array([None], pa.int64())})
    assert decode_records(raw_of(users))[0]["_error"].startswith("NULL_KEY")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1], "odd": pa.array([None], pa.duration("s"))}, "column 'odd' of .* is of type duration"),
        ({"id": [1], "odd": [[1]]}, "column 'odd' of .* is of type list"),
        ({"id": [1], "_row": [1]}, "_file or _row, which are not free"),
    ],
)
def test_unreadable_columns_are_reported(users, columns, said):
    put(users, CDC, columns)
    with pytest.raises(ConfigProblem, match=said):
        raw_of(users)


def test_partial_file_stops_the_source(users):
    file = put(users, CDC, {"Op": ["I"], "id": [1]})
    file.write_bytes(file.read_bytes()[:-5])
    set_old_time(file)
    with pytest.raises(EnvironmentProblem, match=rf"{CDC} is no whole Parquet file"):
        raw_of(users)


@pytest.mark.parametrize(("form", "name"), [("dms_parquet", "LOAD00000001.csv"), ("dms_csv", "LOAD00000001.parquet")])
def test_file_of_the_other_format_stops_the_source(users, form, name):
    users.mkdir(parents=True)
    (users / name).write_bytes(b"1\n")
    set_old_time(users / name)
    with pytest.raises(ConfigProblem, match=f"{name} is not in the source's format") as refused:
        raw_of(users, format=form)
    assert "dms_csv or dms_parquet" in refused.value.next_step
    assert files_check("s", {"path": str(users), "format": form}).diagnose()[0].severity == "error"
