"""Files in an object store: replaced, late, deleted, refused and unreachable."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.object_store import BUCKET, ObjectStore, object_store
from support.stored_files import StoredFiles

from adapters.object_store import files as stored_files
from adapters.object_store import options
from adapters.sources.files import archive_check, files_check
from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.source import ArchiveSource
from replicator.domain.errors import ConfigProblem, DataLoss, EnvironmentProblem, Retryable
from replicator.domain.position import Position

USERS = "public/users"
LINE = '{"topic": "t", "partition": 0, "offset": %d, "key": "k", "value": "v%d"}\n'


@pytest.fixture
def files(s3: ObjectStore) -> StoredFiles:
    return StoredFiles(s3)


@pytest.fixture(autouse=True)
def tick_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.sources.files.source.TICK", 0.05)


def read(options: dict[str, Any], start: Position | None = None, of: Any = DmsFilesSource) -> list[bytes]:
    found: list[bytes] = []
    source = of(options)
    source.run(start or Position(), lambda b: found.extend(b.frame["value"].to_pylist()), threading.Event(), once=True)
    return found


def follow(options: dict[str, Any], act: Callable[[list[bytes]], bool], of: Any = DmsFilesSource) -> list[bytes]:
    """Runs a source and returns its records. `act` gets the records after every batch and returns whether to stop."""
    source, found, stop = of(options), [], threading.Event()

    def take(batch: Any) -> None:
        found.extend(batch.frame["value"].to_pylist())
        if act(found):
            stop.set()

    late = threading.Timer(60, stop.set)
    late.start()
    try:
        source.run(Position(), take, stop, once=False)
    finally:
        late.cancel()
    return found


def make_polling_options(files: StoredFiles) -> dict[str, Any]:
    """Options that poll the store often."""
    return {**files.options, "look_every": "100 milliseconds"}


def test_bucket_written_by_dms_is_read_in_order(files: StoredFiles) -> None:
    """It has date folders, compressed files, names that URLs escape, and folder markers of consoles. An object is
    complete from its first listing."""
    files.put("public/", b"")
    files.put(f"{USERS}/2021/10/18/20211018-000000000.csv", "U,1,third\n")
    files.put(f"{USERS}/2021/10/17/20211017-194324349.csv.gz", gzip.compress(b"U,1,second\n"))
    files.put(f"{USERS}/LOAD00000001.csv", "1,first\n")
    files.put("public/odd name+ü%/LOAD00000001.csv", "1,odd\n")
    files.put(f"{USERS}/readme.txt", "no rows")
    assert read(files.options) == [b"1,odd", b"1,first", b"U,1,second", b"U,1,third"]
    source = DmsFilesSource(files.options)
    assert {place.topic for place in source.end()} == {"public.users", "public.odd name+ü%"}
    assert read({**files.options, "path": f"{files.options['path']}/{USERS}/LOAD00000001.csv"}) == [b"1,first"]


def test_file_of_many_blocks_is_read(files: StoredFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "BLOCK", 64)
    rows = [b"I,%d,%s" % (n, b"x" * (n % 50)) for n in range(100)]
    files.put(f"{USERS}/20211017-194324349.csv", b"\n".join(rows))
    assert read(files.options) == rows


def test_object_replaced_after_its_read_is_data_loss(files: StoredFiles) -> None:
    """The new contents have the same size. Storing equal contents again is allowed."""
    name = f"{USERS}/20211017-194324349.csv"
    files.put(name, "I,1\nI,2\n")
    left = [lambda: files.put(name, "I,1\nI,3\n"), lambda: files.put(name, "I,1\nI,2\n")]

    def act(found: list[bytes]) -> bool:
        if left:
            left.pop()()
        return len(found) > 2

    with pytest.raises(DataLoss, match="was replaced after it was read"):
        follow(make_polling_options(files), act)


def test_object_replaced_during_its_read_is_retryable(files: StoredFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "BLOCK", 64)
    name = f"{USERS}/20211017-194324349.csv"
    files.put(name, "".join(f"I,{n}\n" for n in range(100)))
    original = stored_files.StoredPath.read_block

    def block(path: Any, start: int, end: int) -> Any:
        if start:
            files.put(name, "".join(f"U,{n}\n" for n in range(100)))
        return original(path, start, end)

    monkeypatch.setattr(stored_files.StoredPath, "read_block", block)
    with pytest.raises(Retryable, match="was replaced while it was read"):
        read(files.options)


def test_late_object_is_data_loss(files: StoredFiles) -> None:
    files.put(f"{USERS}/20211017-194324400.csv", "I,2\n")

    def act(found: list[bytes]) -> bool:
        files.put(f"{USERS}/20211017-194324300.csv", "I,1\n")
        return len(found) > 1

    with pytest.raises(DataLoss, match=r"s3://.*/20211017-194324300.csv appeared after later files of table public.users"):
        follow(make_polling_options(files), act)


def test_new_object_is_read(files: StoredFiles) -> None:
    files.put(f"{USERS}/LOAD00000001.csv", "1\n")

    def act(found: list[bytes]) -> bool:
        files.put(f"{USERS}/20211017-194324349.csv", "I,2\n")
        return len(found) == 2

    assert follow(make_polling_options(files), act) == [b"1", b"I,2"]


def test_archive_that_grew_is_read_from_its_previous_end(files: StoredFiles) -> None:
    files.put("a.jsonl", LINE % (0, 0))

    def act(found: list[bytes]) -> bool:
        files.put("a.jsonl", LINE % (0, 0) + LINE % (1, 1))
        return len(found) == 2

    assert follow(make_polling_options(files), act, ArchiveSource) == [b"v0", b"v1"]


def test_object_deleted_after_the_listing_is_skipped(files: StoredFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put("a.jsonl", LINE % (0, 0))
    files.put("b.jsonl", LINE % (1, 1))
    listed = ArchiveSource(files.options)._list_files()
    monkeypatch.setattr(ArchiveSource, "_list_files", lambda _: listed)
    files.drop("a.jsonl")
    assert read(files.options, of=ArchiveSource) == [b"v1"]


def test_file_that_dms_did_not_write_is_refused(files: StoredFiles) -> None:
    files.put(f"{USERS}/export.csv", "I,1\n")
    with pytest.raises(ConfigProblem, match=r"s3://.*/export.csv is no file of AWS DMS"):
        read(files.options)


def test_empty_folder_is_a_warning_of_doctor(files: StoredFiles) -> None:
    assert read(files.options) == []
    (finding,) = files_check("s", files.options).diagnose()
    assert (finding.severity, finding.sentence) == ("warning", f"{files.options['path']} has no file yet.")
    files.put(f"{USERS}/LOAD00000001.csv", "1\n")
    (finding,) = files_check("s", files.options).diagnose()
    assert (finding.severity, finding.sentence) == ("ok", f"{files.options['path']} has 1 file.")


def test_missing_bucket_is_refused(s3: ObjectStore) -> None:
    with pytest.raises(EnvironmentProblem, match="the bucket of s3://no-such-bucket/x does not exist") as refused:
        read({"path": "s3://no-such-bucket/x", "storage": s3.storage})
    assert "`path`" in refused.value.next_step


@pytest.fixture(scope="module")
def rejecting_store() -> Iterator[ObjectStore]:
    """A store that rejects every key after its bucket was created."""
    with object_store(asks_after=1) as store:
        yield store


@pytest.mark.parametrize("of", [ArchiveSource, DmsFilesSource])
def test_refused_key_is_reported_and_not_shown(rejecting_store: ObjectStore, of: Any) -> None:
    options = {"path": f"s3://{BUCKET}/x", "storage": rejecting_store.storage}
    with pytest.raises(EnvironmentProblem, match=r"refuses access to s3://.*(InvalidAccessKeyId|403)") as refused:
        read(options, of=of)
    shown = f"{refused.value} {refused.value!r} {of(options)._options!r} {of(options)._options}"
    assert "not-to-be-seen" not in shown and "secret_access_key" in refused.value.next_step
    (finding,) = archive_check("s", options).diagnose()
    assert finding.severity == "error" and "AWS_SECRET_ACCESS_KEY" in finding.next_step


def test_unreachable_store_is_retryable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "RETRIES", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    keys = {"access_key_id": "AKID", "secret_access_key": "x", "endpoint": f"http://127.0.0.1:{port}", "allow_http": True}
    with pytest.raises(Retryable, match=r"the object store of s3://bucket/x cannot be reached"):
        read({"path": "s3://bucket/x", "storage": keys})


def test_store_that_stops_during_a_read_is_retryable() -> None:
    with object_store() as store:
        files = StoredFiles(store)
        files.put("a.jsonl", LINE % (0, 0))
        source = ArchiveSource(files.options)
        listed = source._list_files()
        store.stop()
        with pytest.raises(Retryable, match="cannot be reached"):
            source.begin_delivery(deliver_records(), lambda _: None, threading.Event()).read(listed)


def deliver_records() -> Any:
    from adapters.sources.files.delivery import DeliveryProgress

    return DeliveryProgress({})


def test_path_without_a_bucket_is_refused(files: StoredFiles) -> None:
    with pytest.raises(ConfigProblem, match="must be s3://BUCKET/FOLDER"):
        read({"path": "s3://", "storage": files.store.storage})
