"""`LineFileSource` follows the contract of `ports.source`."""

import pytest
from support.line_file import LineFile, ReadsLineFile

from adapters.sources.files import archive_source
from replicator.testing.source_contract import SourceContract


class TestLineFileSource(ReadsLineFile, SourceContract):
    """`LineFileSource`."""

    @pytest.fixture(autouse=True, params=[1, 6, 1000])
    def folder(self, tmp_path, request):
        self.path, self.batch_records = tmp_path / "items.json", request.param

    def new_stream(self):
        return LineFile(self.path, archive_source, {"batch_records": self.batch_records})
