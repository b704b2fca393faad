"""An event log in an object store keeps the promises of `ports.source`."""

import pytest
from recorded_log import TIMES, LogStream

from replicator.testing.source_contract import SourceContract


class TestStoredLog(SourceContract):
    """`DeltaSource` over a bucket."""

    odd_times = TIMES

    @pytest.fixture(autouse=True, params=[6, pytest.param(1000, marks=pytest.mark.long)])
    def server(self, s3, request):
        self.s3, self.batch_records = s3, request.param

    def new_stream(self):
        lake = self.s3.lake()
        return LogStream(lake["path"], self.batch_records, lake["storage"])
