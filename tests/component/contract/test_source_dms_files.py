"""`DmsFilesSource` follows the contract of `ports.source`."""

import pytest
from support.dms_folder import DmsFolder, ReadsDms

from adapters.sources.files.dms import DmsFilesSource
from replicator.testing.source_contract import SourceContract


class TestDmsFilesSource(ReadsDms, SourceContract):
    """`DmsFilesSource`."""

    @pytest.fixture(autouse=True, params=[(1, True, False), (6, False, False), (1000, True, True)])
    def folder(self, tmp_path, request):
        self.path, (self.batch_records, self.header, self.compressed) = tmp_path, request.param

    def new_stream(self):
        options = {"batch_records": self.batch_records}
        return DmsFolder(self.path, DmsFilesSource, options, self.header, self.compressed)
