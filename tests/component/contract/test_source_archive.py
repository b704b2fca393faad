"""`ArchiveSource` follows the contract of `ports.source`."""

import pytest
from support.archive_folder import Folder

from replicator.testing.source_contract import SourceContract


class TestArchiveSource(SourceContract):
    @pytest.fixture(autouse=True, params=[1, 6, 1000])
    def folder(self, tmp_path, request):
        self.path, self.batch_records = tmp_path / "archive", request.param

    def new_stream(self):
        return Folder(self.path, self.batch_records)
