"""An event log, and rows of a table, in an object store follow the contract of `ports.source`."""

import json
import threading

import pytest
from support.recorded_log import TIMES, LogStream
from support.stored_rows import StoredRowsStream
from support.table_of_rows import VERSION, ReadsRows
from support.variants import READ_TESTS

from replicator.domain.errors import DataLoss
from replicator.domain.position import Position
from replicator.testing.source_contract import SourceContract, make_records


class TestStoredLog(SourceContract):
    """`DeltaSource` over a bucket."""

    odd_times = TIMES
    always = READ_TESTS

    @pytest.fixture(autouse=True, params=[6, pytest.param(1000, marks=pytest.mark.long)])
    def server(self, s3, request):
        self.s3, self.batch_records = s3, request.param

    def new_stream(self):
        lake = self.s3.lake()
        return LogStream(lake["path"], self.batch_records, lake["storage"])


def test_removed_file_without_a_size_is_read(s3):
    """A commit need not contain the size of a removed file. If the file was deleted since, its version cannot be read."""
    stream = StoredRowsStream(s3, 1000, "feed")
    stream.publish(make_records(stream, 0, 3))
    first = stream.version()
    stream.table().delete()
    entry = f"_delta_log/{first + 1:020}.json"
    lines = [json.loads(line) for line in stream.text(entry).splitlines()]
    # A writer without a feed commits no change files, so only the removed files show the deletes.
    entries = [line for line in lines if "cdc" not in line]
    removed = next(line["remove"] for line in entries if "remove" in line)
    del removed["size"]
    stream.write(entry, "".join(json.dumps(line) + "\n" for line in entries))
    source = stream.open()
    partition = next(iter(source.end()))
    start, batches = Position({partition: (first + 1) * VERSION}), []
    source.read(start, source.end(), batches.append, threading.Event())
    ops = [json.loads(value)["payload"]["_op"] for batch in batches for value in batch.frame["value"].to_pylist()]
    assert ops == ["d", "d", "d"]
    stream.remove(removed["path"])
    with pytest.raises(DataLoss, match="was removed"):
        stream.open().read(start, source.end(), batches.append, threading.Event())


class TestStoredRows(ReadsRows, SourceContract):
    """`RowsSource` over a bucket."""

    always = READ_TESTS

    @pytest.fixture(autouse=True, params=[(6, "feed"), pytest.param((1000, "appended"), marks=pytest.mark.long)])
    def server(self, s3, request):
        self.s3, (self.batch_records, self.changes) = s3, request.param

    def new_stream(self):
        return StoredRowsStream(self.s3, self.batch_records, self.changes)
