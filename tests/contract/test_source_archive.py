"""`ArchiveSource` keeps the promises of `ports.source`."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from archive_files import write_archive

from adapters.sources.files import ArchiveSource
from replicator.testing.source_contract import SourceContract


@dataclass
class Folder:
    path: Path
    batch_records: int
    topic: str = "cdc.public.items"
    partitions: int = 3
    numbers: count = field(default_factory=count)

    def publish(self, records):
        self.path.mkdir(exist_ok=True)
        write_archive(records, self.path / f"part-{next(self.numbers):03}.jsonl")

    def open(self):
        return ArchiveSource({"path": str(self.path), "batch_records": self.batch_records})

    def close(self):
        pass


class TestArchiveSource(SourceContract):
    @pytest.fixture(autouse=True, params=[1, 6, 1000])
    def folder(self, tmp_path, request):
        self.path, self.batch_records = tmp_path / "archive", request.param

    def new_stream(self):
        return Folder(self.path, self.batch_records)
