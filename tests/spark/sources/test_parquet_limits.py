"""Small Parquet files whose rows are large."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from support.recorded_log import RecordedLog

from adapters.arrow import parquet_slices
from adapters.sources.delta import delta_source
from adapters.sources.delta_table.splits import first_change_offset, first_whole_offset
from adapters.sources.event_log.delta_source import DeltaSource
from adapters.sources.files import file_reader
from adapters.sources.files.connect import ConnectFilesSource
from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.rows import RowsFilesSource
from adapters.sources.files.source import ArchiveSource
from adapters.sources.files.spark_splits import FileSplit, SliceLimits, SplitScan
from adapters.sources.snapshot_diff.source import SnapshotsCheck, SnapshotsSource
from replicator.domain.change import ERROR_HEADER, RAW
from replicator.domain.errors import ConfigProblem
from replicator.domain.position import Position, TopicPartition

MIB = 1 << 20
LONG = b"a" * MIB
POOLS: list[pa.MemoryPool] = []
"""Arrays give their memory back to them later."""
Values = pa.Array | pa.ChunkedArray


def of_archive(values: Values) -> pa.Table:
    count = len(values)
    headers = pa.array([[{"name": "h", "value": b"1"}]] * count, RAW.field("headers").type)
    columns = {
        "topic": pa.array(["t"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.nulls(count, RAW.field("timestamp").type),
        "headers": headers,
        "key": pa.array([b"%d" % n for n in range(count)]),
        "value": values,
    }
    return pa.table(columns)


def of_rows(values: Values) -> pa.Table:
    return pa.table({"id": list(range(len(values))), "text": values})


def of_connect(values: Values) -> pa.Table:
    texts = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    return pa.table({"id": list(range(len(values))), "texts": texts})


FIELDS = [{"name": "id", "type": "long"}, {"name": "texts", "type": {"type": "array", "items": ["null", "bytes"]}}]
SCHEMA = {"type": "record", "name": "R", "fields": FIELDS}


class Kind(NamedTuple):
    """A kind of files: where one is, who reads it, and what table of values it holds."""

    name: str
    source: Any
    options: dict[str, Any]
    table: Callable[[Values], pa.Table]

    def put(self, folder: Path, values: Values, **options: Any) -> Path:
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        table, size = self.table(values), options.pop("row_group_size", None)
        with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False, **options) as writer:
            writer.write_table(table, size)
            writer.add_key_value_metadata({"parquet.avro.schema": json.dumps(SCHEMA)})
        os.utime(path, (1_600_000_000, 1_600_000_000))
        return path

    def open(self, folder: Path, **options: Any) -> Any:
        return self.source({"path": str(folder), "settle": "0 seconds", **self.options, **options})


KINDS = [
    Kind("a.parquet", ArchiveSource, {}, of_archive),
    Kind("users/1.parquet", RowsFilesSource, {"files": "parquet"}, of_rows),
    Kind("public/users/LOAD00000001.parquet", DmsFilesSource, {"format": "dms_parquet"}, of_rows),
    Kind("topics/t/partition=0/t+0+0000000000.parquet", ConnectFilesSource, {}, of_connect),
]
EVERY = pytest.mark.parametrize("kind", KINDS, ids=[kind.source.__name__ for kind in KINDS])


def repeat_value(values: list[bytes], count: int) -> pa.Array:
    """`count` values that take the memory of one."""
    indices = pa.array([n % len(values) for n in range(count)], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(values))


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most bytes that Arrow holds meanwhile, once it is over."""
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    found: list[int] = []
    try:
        yield found
    finally:
        pa.set_memory_pool(before)
        found.append(pool.max_memory())


def read(source: Any, engine: str = "local", most: float = float("inf")) -> list[dict[str, Any]]:
    """The records, up to the first batch behind `most` bytes."""
    rows: list[dict[str, Any]] = []
    stop = threading.Event()

    def take(frame: Any, size: int) -> int:
        rows.extend({**row, "headers": {h["name"]: h["value"] for h in row["headers"] or ()}} for row in frame.to_pylist())
        return size

    if engine == "spark":
        (file,) = source._list_files()
        groups = tuple(range(pq.ParquetFile(file.path).num_row_groups))
        size = 0
        for chunk, _, _ in SplitScan(
            source._form, FileSplit(file, 0, file.size, 0, 0, 0, groups), SliceLimits(100_000, MIB)
        ).read_slices():
            size += take(chunk, chunk.nbytes)
            if size > most:
                break
        return rows

    def apply(batch: Any) -> None:
        if batch.records:
            take(batch.frame, batch.size)
        if sum(len(row["value"] or b"") for row in rows) > most:
            stop.set()

    source.run(Position(), apply, stop, once=True)
    return rows


@EVERY
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_value_of_thousands_of_rows_is_unpacked_in_small_batches(tmp_path: Path, engine: str, kind: Kind) -> None:
    assert kind.put(tmp_path, repeat_value([LONG], 4_000)).stat().st_size < MIB
    with peak() as most:
        rows = read(kind.open(tmp_path, batch_bytes=16 * MIB), engine, 40 * MIB)
    assert 20 < len(rows) < 400 and len(rows[0]["value"]) >= len(LONG)
    assert most[0] < 300 * MIB


@EVERY
def test_rows_that_compress_well_are_unpacked_in_small_batches(tmp_path: Path, kind: Kind) -> None:
    assert kind.put(tmp_path, pa.array([LONG] * 200), use_dictionary=False, write_batch_size=1).stat().st_size < MIB
    with peak() as most:
        assert len(read(kind.open(tmp_path, batch_bytes=16 * MIB), most=40 * MIB)) > 20
    assert most[0] < 150 * MIB


@EVERY
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_too_long_row_is_rejected(tmp_path: Path, engine: str, kind: Kind) -> None:
    kind.put(tmp_path, repeat_value([b"x", LONG, b"y"], 30))
    rows = read(kind.open(tmp_path, message_bytes=MIB // 5), engine)
    reasons = [row["headers"].get(ERROR_HEADER, b"").decode() for row in rows]
    assert [reason.partition(":")[0] for reason in reasons] == ["", "TOO_LARGE", ""] * 10
    assert all(f"line {n}:" in said and "limits.message_bytes" in said for n, said in enumerate(reasons, 1) if said)


NESTED = {
    "list": pa.list_(pa.string()),
    "large_list": pa.large_list(pa.string()),
    "fixed_size_list": pa.list_(pa.string(), 2),
    "fixed_size_list_of_lists": pa.list_(pa.list_(pa.binary()), 2),
    "list_view": pa.list_view(pa.string()),
    "large_list_view": pa.large_list_view(pa.string()),
    "map": pa.map_(pa.string(), pa.list_(pa.string(), 1)),
    "struct": pa.struct([("b", pa.string()), ("a", pa.list_(pa.large_string(), 1))]),
    "json": pa.json_(),
}


def nested_value(kind: pa.DataType, text: str) -> Any:
    """A value of this type with the text in it, and nothing else."""
    if isinstance(kind, pa.BaseExtensionType):
        return json.dumps(text)
    if pa.types.is_map(kind):
        return [("", nested_value(kind.item_type, text))]
    if pa.types.is_struct(kind):
        return {"b": None, "a": nested_value(kind.field("a").type, text)}
    return [nested_value(kind.value_type, text)] * getattr(kind, "list_size", 1) if kind.num_fields else text


@pytest.mark.parametrize("kind", NESTED.values(), ids=NESTED)
def test_unread_columns_of_an_archive_count_for_the_limit(tmp_path: Path, kind: pa.DataType) -> None:
    found = [nested_value(kind, text) for text in ("x", "a" * MIB, "y")]
    more = pa.array([None, *found, None] * 5, kind)
    table = of_archive(repeat_value([b"1"], len(more))).append_column("more", more)
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    rows = read(ArchiveSource({"path": str(tmp_path), "message_bytes": MIB // 5}))
    reasons = [row["headers"].get(ERROR_HEADER, b"").decode().partition(":")[0] for row in rows]
    assert reasons == ["", "", "TOO_LARGE", "", ""] * 5
    part = parquet_slices._text_bytes(more.slice(1, 4))
    assert part.equals(parquet_slices._text_bytes(more).slice(1, 4)), "a slice has the bytes of its own rows"


@EVERY
@pytest.mark.parametrize("times", [1, 3_000])
def test_rows_do_not_depend_on_the_read_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, times: int
) -> None:
    values = pa.array([None if n % 7 == 0 else b"%d" % (n % 90) * times for n in range(1_000)], pa.binary())
    kind.put(tmp_path, values, row_group_size=300, data_page_size=4_000, dictionary_pagesize_limit=8_000)
    source = kind.open(tmp_path)
    rows = read(source)
    monkeypatch.setattr(parquet_slices, "MAX_EXPANSION", 0)
    monkeypatch.setattr(file_reader, "MIN_BUDGET_BYTES", 10_000)
    source._form.longest = 40_000
    assert read(source) == rows and len(rows) == 1_000


# -- snapshots and Delta tables ----------------------------------------------------------------------------------------

TEXT = "a" * 400_000


def of_snapshots(folder: Path, memory: int) -> Any:
    return SnapshotsSource({"path": str(folder / "items"), "state": str(folder / "s"), "keys": ("id",), "memory": memory})


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize(("kind", "options"), [("values", {}), ("values", {"use_dictionary": False}), ("numbers", {})])
def test_snapshot_larger_than_memory_is_refused(
    tmp_path: Path, kind: str, options: dict[str, Any], *, is_folder: bool
) -> None:
    """All its files together, before they are unpacked. With more memory it is read, as the message says."""
    count = 6_000_000 if kind == "numbers" else 250
    column = pa.repeat(7, count) if kind == "numbers" else repeat_value([TEXT.encode()], count)
    rows = pa.table({"id": column if kind == "numbers" else pa.array(range(count)), "v": column})
    files = [tmp_path / "items" / name for name in (("1/a.parquet", "1/b.parquet") if is_folder else ("1.parquet",))]
    files[0].parent.mkdir(parents=True)
    half = -(-count // len(files))
    for n, file in enumerate(files):
        pq.write_table(rows.slice(n * half, half), file, compression="zstd", store_schema=False, **options)
    if is_folder:
        time.sleep(0.05)  # So that _SUCCESS is the last file by its time.
        (files[0].parent / "_SUCCESS").touch()
    room = 24_000_000
    with peak() as most, pytest.raises(ConfigProblem, match=f"more than {room} bytes once it is unpacked") as refused:
        read(of_snapshots(tmp_path, room))
    assert most[0] < 2 * room
    assert refused.value.next_step == "Raise `limits.memory`."
    (doctor,) = SnapshotsCheck("source", {"path": str(tmp_path / "items"), "memory": room}).diagnose()
    assert doctor.sentence == refused.value.sentence
    if kind == "values":
        assert len(read(of_snapshots(tmp_path, 101_000_000))) == count


def write_table(path: Path) -> None:
    """A table of values that many rows have, in files that are small."""
    rows = pa.table({"id": range(400), "v": pa.array([TEXT] * 400), "n": pa.repeat(1, 400)})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})


@pytest.mark.parametrize("changes", ["feed", "appended"])
def test_rows_of_a_delta_table_are_unpacked_in_small_batches(tmp_path: Path, changes: str) -> None:
    write_table(tmp_path / "t")
    if changes == "feed":
        DeltaTable(tmp_path / "t").update(updates={"n": "2"})
    small = [file for file in tmp_path.rglob("*.parquet") if file.stat().st_size < MIB]
    assert len(small) == 1 + 2 * (changes == "feed")
    start = Position({TopicPartition("t", 0): first_change_offset(1) if changes == "feed" else first_whole_offset(0)})
    stop, found = threading.Event(), []

    def apply(batch: Any) -> None:
        found.extend(json.loads(text)["payload"] for text in batch.frame["value"].to_pylist())
        if len(found) > 20:
            stop.set()

    source = delta_source({"format": "rows", "path": str(tmp_path / "t"), "changes": changes, "batch_bytes": 8 * MIB})
    with peak() as most:
        source.run(start, apply, stop, once=True)
    assert [row["id"] for row in found] == list(range(len(found))) and all(row["v"] == TEXT for row in found)
    assert all(row["n"] == 2 and row["_before"] == {"n": 1} for row in found) or changes == "appended"
    assert most[0] < 100 * MIB


def test_records_of_an_event_log_are_unpacked_in_small_batches(tmp_path: Path) -> None:
    log = RecordedLog(tmp_path / "log")
    log.create()
    log.append(of_archive(repeat_value([TEXT.encode()], 400)).cast(RAW))
    (file,) = (tmp_path / "log").rglob("*.parquet")
    assert file.stat().st_size < MIB
    with peak() as most:
        rows = read(DeltaSource({"path": str(log.path), "batch_bytes": 8 * MIB}), most=8 * MIB)
    assert len(rows) >= 20 and rows[0]["value"] == TEXT.encode()
    assert most[0] < 60 * MIB
