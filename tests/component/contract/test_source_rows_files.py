"""`RowsFilesSource` follows the contract of `ports.source`."""

import pytest
from support.rows_folder import ReadsRowFiles, RowsFolder

from adapters.sources.files import files_source
from replicator.testing.source_contract import SourceContract


class TestRowsFilesSource(ReadsRowFiles, SourceContract):
    """`RowsFilesSource`."""

    @pytest.fixture(
        autouse=True, params=[(1, "csv", False), (6, "jsonl", False), (1000, "csv", True), (7, "parquet", False)]
    )
    def folder(self, tmp_path, request):
        self.path, (self.batch_records, self.kind, self.compressed) = tmp_path, request.param

    def new_stream(self):
        return RowsFolder(self.path, files_source, {"batch_records": self.batch_records}, self.kind, self.compressed)
