"""Files in an object store, read by Spark's executors."""

from __future__ import annotations

import gzip
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.object_store import ObjectStore
from support.archive_files import write_archive
from support.debezium_events import make_change_event, make_column, make_event_key, make_raw_records
from support.recorded_log import RecordedLog
from support.spark_case import OPTIONS, get_spark_engine
from support.stored_files import StoredFiles

from adapters.sources.delta_spark import DeltaSparkSource
from adapters.sources.event_log.delta_source import DeltaSource
from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.source import ArchiveSource
from adapters.spark.frames import to_arrow
from replicator.domain.change import RAW
from replicator.domain.errors import EnvironmentProblem, Retryable
from replicator.domain.position import Position

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LINE = '{"topic": "t", "partition": 0, "offset": %d, "key": "k", "value": "v%d"}\n'


def rows(source: Any) -> list[dict[str, Any]]:
    found: list[pa.Table] = []
    source.run(Position(), lambda batch: found.append(_local(batch.frame)), threading.Event(), once=True)
    return pa.concat_tables(found).sort_by([("topic", "ascending"), ("offset", "ascending")]).to_pylist()


def _local(frame: Any) -> pa.Table:
    return frame if isinstance(frame, pa.Table) else to_arrow(frame).cast(RAW)


def test_files_equal_the_local_source(s3: ObjectStore, tmp_path):
    files = StoredFiles(s3)
    files.put("public/users/LOAD00000001.csv", "id,name\n1,a\n2,b\n")
    files.put("public/users/2021/10/17/20211017-194324349.csv.gz", gzip.compress(b'Op,id,name\nU,1,"c\nd"\nD,2,\n'))
    files.put("public/odd name+%/LOAD00000001.csv", "id\n7\n")
    files.put("archive/a.jsonl", "".join(LINE % (n, n) for n in range(300)))
    files.put("archive/b.jsonl.gz", gzip.compress((LINE % (300, 300)).encode()))
    row = {"topic": "t", "partition": 0, "offset": 301, "timestamp": None, "headers": None, "key": None, "value": b"p"}
    write_archive(pa.Table.from_pylist([row], RAW), tmp_path / "c.parquet")
    files.put("archive/c.parquet", (tmp_path / "c.parquet").read_bytes())
    get_spark_engine()
    dms = {**files.options, "path": f"{files.options['path']}/public", "csv": {"header": True}}
    expected = rows(DmsFilesSource(dms))
    assert [row["value"] for row in expected] == [b"7", b"1,a", b"2,b", b'U,1,"c\nd"', b"D,2,"]
    spark = DmsFilesSource({**dms, **OPTIONS})
    assert rows(spark) == expected and spark.end() == DmsFilesSource(dms).end()
    archive = {**files.options, "path": f"{files.options['path']}/archive"}
    found = rows(ArchiveSource({**archive, **OPTIONS}))
    assert found == rows(ArchiveSource(archive)) and len(found) == 302


def test_event_log_is_read_by_executors(s3: ObjectStore):
    """With the credentials of the driver."""
    lake = s3.lake()
    log = RecordedLog(str(lake["path"]), lake["storage"])
    texts = [make_change_event([make_column("id", "int32")], at=100 + n, after={"id": n}) for n in range(5)]
    log.append(make_raw_records([*texts, b"no event"], [make_event_key(id=n) for n in range(6)]))
    get_spark_engine()
    found = rows(DeltaSparkSource({**log.options, **OPTIONS}))
    assert found == rows(DeltaSource(log.options)) and len(found) == 6


def test_parquet_and_transaction_files_of_dms(s3: ObjectStore, tmp_path):
    """Row groups are read separately, and row numbers continue over them."""
    files = StoredFiles(s3)
    pq.write_table(pa.table({"id": range(50)}), tmp_path / "load.parquet", row_group_size=9)
    pq.write_table(pa.table({"Op": ["U", "D"], "id": [1, 2]}), tmp_path / "cdc.parquet")
    files.put("p/public/users/LOAD00000001.parquet", (tmp_path / "load.parquet").read_bytes())
    files.put("p/public/users/20211017-194324349.parquet", (tmp_path / "cdc.parquet").read_bytes())
    files.put("t/changes/CDC_TXN-20211017194324349.csv", "I,users,public,1\nnonsense\nU,orders,public,2\n")
    get_spark_engine()
    for folder, options, count in (("p", {"format": "dms_parquet"}, 52), ("t", {}, 3)):
        told = {**files.options, **options, "path": f"{files.options['path']}/{folder}"}
        expected = rows(DmsFilesSource(told))
        assert rows(DmsFilesSource({**told, **OPTIONS})) == expected and len(expected) == count


def test_replaced_object_is_read_again(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    """Replaced between the listing and the job, which requests the listed object."""
    files = StoredFiles(s3)
    files.put("a.jsonl", LINE % (0, 0))
    get_spark_engine()
    source = ArchiveSource({**files.options, **OPTIONS})
    listed = source._list_files()
    files.put("a.jsonl", LINE % (0, 1))
    monkeypatch.setattr(source, "_list_files", lambda: listed)
    assert source.end() == Position()
    monkeypatch.undo()
    assert [row["value"] for row in rows(source)] == [b"v1"]


def test_errors_of_executors_about_the_store_are_translated(s3: ObjectStore):
    from adapters.spark.errors import translate_error

    said = "org.apache.spark.SparkException: x\nadapters.y.{}: the object store of s3://b/x cannot be reached\n"
    assert type(translate_error(Exception(said.format("Retryable")), "reading files")) is Retryable
    assert type(translate_error(Exception(said.format("EnvironmentProblem")), "reading files")) is EnvironmentProblem
