"""`RowsSource` follows the contract of `ports.source`."""

import pytest
from support.table_of_rows import ReadsRows, RowsStream

from replicator.testing.source_contract import SourceContract


class TestRowsSource(ReadsRows, SourceContract):
    """`RowsSource` over appended rows, and over the change data feed of such a table."""

    @pytest.fixture(autouse=True, params=[(1, "feed"), (6, "appended"), (1000, "feed")])
    def folder(self, tmp_path, request):
        self.path, (self.batch_records, self.changes) = tmp_path, request.param

    def new_stream(self):
        return RowsStream(self.path, self.batch_records, self.changes)
