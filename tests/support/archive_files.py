"""Recorded topics as files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from replicator.application.operations.archive_files import open_archive


def write_archive(records: pa.Table, path: Path) -> None:
    """Writes a raw frame as one archive file."""
    with open_archive(path) as write:
        write(records)
