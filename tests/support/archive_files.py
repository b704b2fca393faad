"""Recorded topics as files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from replicator.application.archive_files import archive_writer


def write_archive(records: pa.Table, path: Path) -> None:
    """Write a raw frame as one archive file."""
    with archive_writer(path) as writer:
        writer.write(records)
