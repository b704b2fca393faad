"""`ArchiveSource` on executors equals the local one, and the driver reads no records."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from paths import GOLDEN
from pyspark.sql import DataFrame
from support.archive_files import write_archive
from support.archive_folder import Folder
from support.debezium_events import make_column
from support.dms_folder import DmsFolder, ReadsDms
from support.line_file import LineFile, ReadsLineFile
from support.rows_folder import write_closed_file
from support.sink_folder import BYTES, SinkFolder, encode_avro, encode_parquet
from support.spark_case import OPTIONS, OnSpark, get_spark_engine
from support.variants import READ_TESTS, SPLIT_TESTS

from adapters.sources.files import ArchiveSource, archive_source
from adapters.sources.files import spark as spark_files
from adapters.sources.files.dms import DmsFilesSource
from adapters.spark.frames import to_arrow
from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem
from replicator.domain.position import Position, TopicPartition
from replicator.ports.frames import Batch
from replicator.testing.contract import EXAMPLES, SEED
from replicator.testing.source_contract import BatchRecorder, SourceContract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""A JVM starts, and every job takes a moment."""

T = TopicPartition("t", 0)
AVRO_FILES = GOLDEN / "connect_avro"
BOMB = encode_avro(BYTES, [bytes(4 << 20)], "deflate")


def rows_of(frame: DataFrame) -> pa.Table:
    """Inside a list Spark has names of its own."""
    return to_arrow(frame).cast(RAW)


def same(table: pa.Table) -> pa.Table:
    return table


def spark_source(path: Path, **options: Any) -> ArchiveSource:
    get_spark_engine()
    return ArchiveSource({"path": str(path), **options, **OPTIONS})


@dataclass
class SparkFolder(Folder):
    def open(self):
        return spark_source(self.path, batch_records=self.batch_records)


class TestArchiveSparkSource(SourceContract):
    """`ArchiveSource` on executors."""

    always = READ_TESTS

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path, self.batch_records = tmp_path / "archive", 6

    def new_stream(self):
        return SparkFolder(self.path, self.batch_records)

    def to_arrow(self, frame):
        return rows_of(frame)


class TestDmsFilesSparkSource(ReadsDms, SourceContract):
    """`DmsFilesSource` on executors."""

    always = SPLIT_TESTS

    # What a file looks like is told by the format, which `TestDmsFilesSource` reads with each header and packing.
    @pytest.fixture(autouse=True, params=[(True, False), pytest.param((False, True), marks=pytest.mark.long)])
    def folder(self, tmp_path, request):
        self.path, (self.header, self.compressed) = tmp_path, request.param

    def new_stream(self):
        get_spark_engine()
        return DmsFolder(self.path, DmsFilesSource, {"batch_records": 6, **OPTIONS}, self.header, self.compressed)

    def to_arrow(self, frame):
        return rows_of(frame)


class TestConnectFilesSparkSource(SourceContract):
    """`ConnectFilesSource` on executors."""

    always = SPLIT_TESTS
    odd_times = ()

    # `test_avro_of_a_sink_equals_the_local_source` reads the other format on executors.
    @pytest.fixture(autouse=True, params=[".json.gz", pytest.param(".avro", marks=pytest.mark.long)])
    def folder(self, tmp_path, request):
        self.path, self.ending = tmp_path, request.param

    def new_stream(self):
        get_spark_engine()
        return SinkFolder(self.path, archive_source, {"batch_records": 6, "settle": "0 seconds", **OPTIONS}, self.ending)

    def to_arrow(self, frame):
        return rows_of(frame)


class TestLineFileSparkSource(ReadsLineFile, SourceContract):
    """`LineFileSource` on executors."""

    always = SPLIT_TESTS

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path):
        self.path = tmp_path / "items.txt"

    def new_stream(self):
        get_spark_engine()
        return LineFile(self.path, archive_source, {"batch_records": 6, **OPTIONS})

    def to_arrow(self, frame):
        return rows_of(frame)


def test_parquet_of_a_sink_equals_the_local_source(tmp_path):
    """In pieces of row groups, with the keys of the second file."""
    connect = {"type": "struct", "name": "t.Value", "fields": [make_column("id", "int64"), make_column("at", "int32")]}
    table = pa.table({"id": range(5), "at": pa.array(range(5), pa.int32())})
    write_closed_file(tmp_path / "t+0+7.snappy.parquet", encode_parquet(connect, table))
    write_closed_file(tmp_path / "t+0+7.keys.json.gz", b"".join(b"%d\n" % n for n in range(5)))
    found = read_by_both(tmp_path)
    assert [(row["offset"], row["key"]) for row in found] == [(7 + n, b"%d" % n) for n in range(5)]


def test_avro_of_a_sink_equals_the_local_source(tmp_path):
    for file, name in (("t+0+7.avro", "events.snappy"), ("t+0+7.keys.avro", "extra.keys"), ("t+0+10.avro", "extra.bytes")):
        write_closed_file(tmp_path / file, (AVRO_FILES / f"{name}.avro").read_bytes())
    write_closed_file(tmp_path / "t+0+10.keys.avro", (AVRO_FILES / "extra.keys.avro").read_bytes())
    found = read_by_both(tmp_path)
    assert [(row["offset"], row["key"]) for row in found] == [(7 + n, b"key %d" % (n % 3)) for n in range(6)]
    assert found[3]["value"] == b"\0\n\0\xff"


def test_unreadable_avro_on_executors_is_reported(tmp_path):
    content = (AVRO_FILES / "events.null.avro").read_bytes()
    get_spark_engine()
    cases = [(content[:-9], EnvironmentProblem, "ends too early"), (BOMB, ConfigProblem, "has a block")]
    for broken, kind, sentence in cases:
        write_closed_file(tmp_path / "t+0+7.avro", broken)
        source = archive_source(
            {"path": str(tmp_path), "files": "connect", "settle": "0 seconds", "message_bytes": 1024, **OPTIONS}
        )
        with pytest.raises(kind, match=sentence):
            source.run(Position(), lambda _: None, threading.Event(), once=True)


def read_by_both(folder: Path) -> list[dict[str, Any]]:
    """What is read by executors, which is what is read in process."""
    get_spark_engine()
    options: dict[str, Any] = {"path": str(folder), "files": "connect", "settle": "0 seconds"}
    found: list[list[dict[str, Any]]] = []
    for source, local in ((archive_source(options), True), (archive_source({**options, **OPTIONS}), False)):
        frames: list[Any] = []
        source.run(Position(), lambda batch, kept=frames: kept.append(batch.frame), threading.Event(), once=True)
        found.append(pa.concat_tables(frame if local else rows_of(frame) for frame in frames).to_pylist())
    assert found[1] == found[0]
    return found[0]


@dataclass
class Archive:
    """A folder to which anything may happen."""

    folder: Path
    random: random.Random
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def change(self) -> None:
        """A file appears, or one grows."""
        lines = [line for _ in range(self.random.randint(1, 12)) if (line := self.line()) is not None]
        half = self.random.choice(["", "", '{"topic": "t", "par'])
        growing = [f for f in self.files if f.name.endswith(".jsonl") and not f.read_bytes().endswith(b"r")]
        if growing and self.random.random() < 0.5:
            with self.random.choice(growing).open("a") as stream:
                stream.write("".join(lines) + half)
            return
        self.appear("".join(lines), half)

    def appear(self, text: str, half: str) -> None:
        suffix = self.random.choice(["jsonl", "jsonl", "jsonl.gz", "parquet"])
        file = self.folder / f"{len(self.files):03}.{suffix}"
        self.files.append(file)
        if suffix == "jsonl.gz":
            packed = gzip.compress(text.encode())
            file.write_bytes(packed[: self.random.choice([len(packed), -6])])
        elif suffix == "parquet":
            rows = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
            named = [{**row, "timestamp": None, "headers": None, "key": None, "value": b"p"} for row in rows]
            write_archive(pa.Table.from_pylist(named, RAW), file)
        else:
            file.write_text(text + half)

    def line(self) -> str:
        kind = self.random.random()
        if kind < 0.1:
            return self.random.choice(["", "  ", "{", "é" * 30]) + "\n"
        place = TopicPartition(self.random.choice("tu"), self.random.randint(0, 1))
        end = self.ends.get(place, 0)
        # Mostly the next one; sometimes a hole, sometimes what was there, or was left out, before.
        offset = max(0, end + self.random.choice([0, 0, 0, 0, 0, 0, 2, -1, -4]))
        self.ends[place] = max(end, offset + 1)
        value = self.random.choice(["v", "é" * self.random.randint(0, 40), None])
        record = {"topic": place.topic, "partition": place.partition, "offset": offset, "key": "k", "value": value}
        return json.dumps(record, ensure_ascii=False) + "\n"


def deliver_while_changing(
    source: ArchiveSource, archive: Archive, to_arrow: Any, start: Position
) -> tuple[BatchRecorder, str]:
    """What comes while the archive changes, and what ended it."""
    stop, steps = threading.Event(), [archive.change] * 3

    def step(reader: BatchRecorder) -> None:
        if reader.empties > 3 - len(steps):
            steps.pop()() if steps else stop.set()

    reader = BatchRecorder(to_arrow, dict(start), after_batch=step)
    try:
        source.run(start, reader, stop, once=False)
    except DataLoss as loss:
        return reader, str(loss)
    return reader, ""


def by_place(reader: BatchRecorder) -> dict[tuple[str, int], list[dict[str, Any]]]:
    out: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in reader.rows:
        out.setdefault((row["topic"], row["partition"]), []).append(row)
    return out


SEEDS = [5, 8] if OnSpark.one_in >= EXAMPLES else range(SEED, SEED + EXAMPLES // 10)
"""A position to begin at, and bad lines; a record that comes too late."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_files_equal_the_local_source(tmp_path, monkeypatch, seed):
    """Overlaps, gaps, duplicates, bad and partial lines, growing files: split in the middle of lines."""
    monkeypatch.setattr(spark_files, "SMALLEST", 1)
    monkeypatch.setattr("adapters.sources.files.source.TICK", 0.0)
    seen = []
    for name, of in (("local", ArchiveSource), ("spark", spark_source)):
        archive = Archive(tmp_path / name, random.Random(seed))
        archive.folder.mkdir()
        archive.change()
        bounds = {"batch_bytes": archive.random.choice([300, 3000]), "batch_records": archive.random.choice([2, 7, 100])}
        bounds["look_every"] = "0 seconds"
        start = Position({T: 3}) if archive.ends.get(T, 0) > 3 and archive.random.random() < 0.5 else Position()
        source = of({"path": str(archive.folder), **bounds}) if name == "local" else of(archive.folder, **bounds)
        reader, ended = deliver_while_changing(source, archive, same if name == "local" else rows_of, start)
        seen.append((reader, ended, source.end(), source.start()))
    (local, *facts), (spark, *found) = seen
    assert found == facts
    if facts[0]:
        assert "had been delivered" in facts[0]
    else:
        assert by_place(spark) == by_place(local)
        assert spark.position == local.position


def write(file: Path, *offsets: int) -> None:
    records = [{"topic": "t", "partition": 0, "offset": o, "key": "k", "value": "v" * 90} for o in offsets]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def counts(source: ArchiveSource, start: Position | None = None) -> list[tuple[int, Batch[DataFrame]]]:
    got: list[Batch[DataFrame]] = []
    source.run(start or Position(), got.append, threading.Event(), once=True)
    return [(batch.records, batch) for batch in got if batch.records]


class Ending(threading.Event):
    """Is set when it was asked for so often."""

    left = 3

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("left", [pytest.param(n, marks=() if n in (3, 4) else pytest.mark.long) for n in range(2, 6)])
def test_stop_skips_no_record(tmp_path, left):
    """All records of a span are delivered, whenever the stop is requested."""
    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        write(tmp_path / f"{name}.jsonl", *range(first, first + 10))
    got: list[Batch[DataFrame]] = []
    stop = Ending()
    stop.left = left
    spark_source(tmp_path).run(Position(), got.append, stop, once=True)
    place = TopicPartition("t", 0)
    covered = max((batch.span.end[place] for batch in got if place in batch.span.end), default=0)
    assert sum(batch.records for batch in got) == covered


def test_driver_reads_no_record(tmp_path, monkeypatch):
    """No fetched result has a column of a record, and the driver creates no rows."""
    write(tmp_path / "a.jsonl", *range(500))
    source = spark_source(tmp_path)
    kind, fetched = type(get_spark_engine().spark.range(1)), []

    def record_collect(name):
        original = getattr(kind, name)

        def fetch(frame, *rest):
            fetched.append(set(frame.columns))
            return original(frame, *rest)

        monkeypatch.setattr(kind, name, fetch)

    for name in ("collect", "toArrow", "toPandas", "toLocalIterator", "take", "tail"):
        record_collect(name)
    ((records, batch),) = counts(source, Position({T: 100}))
    assert (records, source.end()) == (400, Position({T: 500}))
    assert fetched and not {"offset", "key", "value"} & set().union(*fetched)
    plan = batch.frame._jdf.queryExecution().optimizedPlan().toString()
    assert "MapInArrow" in plan and "Range (0, " in plan


def test_large_file_is_read_by_several_tasks(tmp_path):
    write(tmp_path / "a.jsonl", *range(30_000))
    ((records, batch),) = counts(spark_source(tmp_path, batch_bytes=2**23))
    assert records == 30_000
    assert batch.frame.rdd.getNumPartitions() == (tmp_path / "a.jsonl").stat().st_size // 2**21 + 1
    assert rows_of(batch.frame)["offset"].to_pylist() == list(range(30_000))


def test_file_deleted_during_the_read(tmp_path, monkeypatch):
    """It counts as missing; a new file in its place is read from its start."""
    for number in range(3):
        write(tmp_path / f"{number}.jsonl", number)
    source = spark_source(tmp_path)
    listed = source._files(Position())
    (tmp_path / "0.jsonl").unlink()
    shutil.copy(tmp_path / "2.jsonl", tmp_path / "new")
    (tmp_path / "new").replace(tmp_path / "2.jsonl")
    monkeypatch.setattr(source, "_files", lambda _: listed)
    assert [rows_of(batch.frame)["offset"].to_pylist() for _, batch in counts(source)] == [[1]]
    monkeypatch.undo()
    assert source.end() == Position({T: 3})


def test_folder_unreachable_for_executors_is_reported(tmp_path):
    write(tmp_path / "a.jsonl", 0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(EnvironmentProblem, match=r"a\.jsonl is not on .*every machine sees"):
            counts(spark_source(Path(f"/proc/self/fd/{folder}")))
    finally:
        os.close(folder)


def test_damaged_file_is_reported(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"not gzip at all")
    with pytest.raises(EnvironmentProblem, match=r"The file .*a\.jsonl\.gz is damaged: Not a gzipped file"):
        counts(spark_source(tmp_path))
