"""Files in an object store follow the contract of `ports.source`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from support.archive_files import write_archive
from support.dms_folder import DmsFolder, ReadsDms
from support.stored_files import StoredFiles
from support.variants import READ_TESTS

from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.source import ArchiveSource
from replicator.testing.source_contract import SourceContract

OFTEN = {"look_every": "300 milliseconds"}


@dataclass
class StoredArchive:
    """`source_contract.SourceStream` of recorded topics in a bucket."""

    files: StoredFiles
    folder: Any
    suffix: str
    topic: str = "cdc.public.items"
    partitions: int = 3
    numbers: Any = field(default_factory=count)

    def publish(self, records):
        self.folder.mkdir(exist_ok=True)
        write_archive(records, self.folder / f"part-{next(self.numbers):03}{self.suffix}")
        self.files.move(self.folder)

    def open(self):
        return ArchiveSource({**self.files.options, **OFTEN, "batch_records": 6})

    def close(self):
        pass


class TestStoredArchive(SourceContract):
    """`ArchiveSource` over a bucket."""

    always = READ_TESTS

    @pytest.fixture(autouse=True, params=[".jsonl", pytest.param(".jsonl.gz", marks=pytest.mark.long), ".parquet"])
    def folder(self, tmp_path, s3, request):
        self.path, self.s3, self.suffix = tmp_path / "archive", s3, request.param

    def new_stream(self):
        return StoredArchive(StoredFiles(self.s3), self.path, self.suffix)


@dataclass
class StoredDms(DmsFolder):
    """`DmsFolder` in a bucket."""

    files: StoredFiles | None = None

    def publish(self, records):
        super().publish(records)
        self.files.move(self.path / "bucket")

    def open(self):
        return self.source({**self.files.options, **OFTEN, "csv": {"header": self.header}, **self.options})


class TestStoredDmsFiles(ReadsDms, SourceContract):
    """`DmsFilesSource` over a bucket."""

    always = READ_TESTS

    @pytest.fixture(autouse=True, params=[(1, True, False), (1000, False, True)])
    def folder(self, tmp_path, s3, request):
        self.path, self.s3, (self.batch_records, self.header, self.compressed) = tmp_path, s3, request.param

    def new_stream(self):
        options = {"batch_records": self.batch_records}
        files = StoredFiles(self.s3)
        return StoredDms(self.path, DmsFilesSource, options, self.header, self.compressed, files=files)
