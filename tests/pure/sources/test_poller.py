"""New files are found at once, without repeated scans of folders."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.dms_folder import set_old_time

from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.source import ArchiveSource, FilePoller
from replicator.domain.position import Position

SOON = 0.9
"""Seconds. Without a notice files would be listed after an hour."""
SELDOM = {"look_every": "1 hour"}
LINE = '{"topic": "t", "partition": 0, "offset": %d, "key": "k", "value": "v%d"}\n'


def put(file: Path, text: str) -> None:
    """A file that appears whole, and that nobody writes to."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text)
    set_old_time(partial)
    partial.replace(file)


def list_deliveries(source: Any, acts: list[Callable[[], None]], *, before: int = 0) -> list[tuple[list[bytes], float]]:
    """What is delivered after each of `acts`, and after how many seconds. Each comes while nothing happens, the first after
    so many batches `before` them."""
    stop, started = threading.Event(), [0.0]
    found: list[tuple[list[bytes], float]] = []

    def take(batch: Any) -> None:
        if batch.records and old:
            old.pop()
        elif batch.records:
            found.append((batch.frame["value"].to_pylist(), time.monotonic() - started[0]))
        if len(found) == total:
            stop.set()
        elif not old and len(acts) == total - len(found):
            started[0] = time.monotonic()
            threading.Timer(0.1, acts.pop(0)).start()

    old = [1] * before
    total, late = len(acts), threading.Timer(30, stop.set)
    late.start()
    source.run(Position(), take, stop, once=False)
    late.cancel()
    return found


def test_new_file_is_found_within_a_second(tmp_path):
    users = tmp_path / "public" / "users"
    # The first batch of a program takes longer.
    put(tmp_path / "public" / "old" / "LOAD00000001.csv", "0\n")
    acts = [
        lambda: put(users / "LOAD00000001.csv", "1,a\n"),
        lambda: put(users / "20211017-194324349.csv", "U,1,b\n"),
        lambda: put(users / "2021" / "10" / "18" / "20211018-000000000.csv", "U,1,c\n"),
        lambda: put(tmp_path / "public" / "orders" / "LOAD00000001.csv", "7\n"),
    ]
    found = list_deliveries(DmsFilesSource({"path": str(tmp_path), **SELDOM}), acts, before=1)
    assert [values for values, _ in found] == [[b"1,a"], [b"U,1,b"], [b"U,1,c"], [b"7"]]
    # Of folders that are new a notice may come before their file.
    assert all(seconds < limit for (_, seconds), limit in zip(found, (SOON, SOON, SOON + 1, SOON + 1), strict=True)), found


def test_new_line_is_found_within_a_second(tmp_path):
    def append(file: str, number: int) -> None:
        with (tmp_path / file).open("a") as stream:
            stream.write(LINE % (number, number))

    acts = [lambda: append("a.jsonl", 0), lambda: append("a.jsonl", 1), lambda: append("b.jsonl", 2)]
    found = list_deliveries(ArchiveSource({"path": str(tmp_path / "*.jsonl"), **SELDOM}), acts)
    assert [values for values, _ in found] == [[b"v0"], [b"v1"], [b"v2"]]
    assert all(seconds < SOON for _, seconds in found), found


@pytest.mark.slow
def test_file_is_read_when_it_is_stable(tmp_path):
    users = tmp_path / "public" / "users"
    users.mkdir(parents=True)
    source = DmsFilesSource({"path": str(tmp_path), "settle": "1500 milliseconds", **SELDOM})
    ((values, seconds),) = list_deliveries(source, [lambda: (users / "LOAD00000001.csv").write_text("1,a\n")])
    assert values == [b"1,a"] and 1.5 <= seconds < 1.5 + SOON


@pytest.mark.slow
def test_quiet_folder_is_not_scanned(tmp_path, monkeypatch):
    put(tmp_path / "public" / "users" / "LOAD00000001.csv", "1,a\n")
    monkeypatch.setattr("adapters.sources.files.source.TICK", 0.1)
    source, stop, looks, empty = DmsFilesSource({"path": str(tmp_path), **SELDOM}), threading.Event(), [], []
    listed = source._list_files
    monkeypatch.setattr(source, "_list_files", lambda: looks.append(1) or listed())

    def take(batch):
        empty.append(1)
        if len(empty) == 20:
            stop.set()

    source.run(Position(), take, stop, once=False)
    assert len(looks) == 1


def test_recreated_folder_is_watched(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    watch, stop = FilePoller(str(folder), deep=True, every=0.2), threading.Event()
    shutil.rmtree(folder)
    folder.mkdir()
    for _ in range(3):
        watch.wait(stop, 0.3)
    watch._every = watch._due = float("inf")
    (folder / "new").write_text("")
    assert watch.wait(stop, 5)
    watch.close()


def test_folder_that_cannot_be_watched_is_scanned(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no space left for watches")

    monkeypatch.setattr("adapters.sources.files.source.RustNotify", refuse)
    with caplog.at_level(logging.WARNING):
        watch = FilePoller(str(tmp_path), deep=True, every=0.3)
    assert "is not watched (no space left for watches): it is looked through every 0.3 s" in caplog.text
    started, stop = time.monotonic(), threading.Event()
    while not watch.wait(stop, 0.1):
        assert time.monotonic() < started + 5
    assert time.monotonic() - started >= 0.25


@pytest.mark.parametrize("path", ["", "s3"])
def test_stop_ends_the_wait_at_once(tmp_path, path):
    from adapters.object_store.options import Storage
    from adapters.sources.files.file_list import ObjectFolder

    place = ObjectFolder("bucket", "x", Storage()) if path else str(tmp_path)
    watch, stop, started = FilePoller(place, deep=True, every=60), threading.Event(), time.monotonic()
    threading.Timer(0.2, stop.set).start()
    assert not watch.wait(stop, 30)
    assert time.monotonic() - started < 1
