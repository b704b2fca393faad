"""`DeltaSource` follows the contract of `ports.source`."""

import pytest
from support.recorded_log import TIMES, LogStream

from replicator.testing.source_contract import SourceContract


class TestDeltaSource(SourceContract):
    """`DeltaSource`."""

    odd_times = TIMES

    @pytest.fixture(
        autouse=True, params=[pytest.param(1, marks=pytest.mark.slow), 6, pytest.param(1000, marks=pytest.mark.slow)]
    )
    def folder(self, tmp_path, request):
        self.path, self.batch_records = tmp_path / "log", request.param

    def new_stream(self):
        return LogStream(self.path, self.batch_records)
