"""A folder of archive files for contract suites."""

from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from adapters.sources.files.source import ArchiveSource
from support.archive_files import write_archive


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
