"""`ConnectFilesSource` follows the contract of `ports.source`."""

import pytest
from support.sink_folder import SinkFolder

from adapters.sources.files import archive_source
from replicator.testing.source_contract import SourceContract


class TestConnectFilesSource(SourceContract):
    """`ConnectFilesSource`."""

    odd_times = ()

    @pytest.fixture(autouse=True, params=[(1, ".json"), (6, ".json.gz"), (1000, ".json"), (6, ".avro")])
    def folder(self, tmp_path, request):
        self.path, (self.batch_records, self.ending) = tmp_path, request.param

    def new_stream(self):
        return SinkFolder(
            self.path, archive_source, {"batch_records": self.batch_records, "settle": "0 seconds"}, self.ending
        )
