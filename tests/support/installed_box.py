"""Installs the package in `box_package` into a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from paths import TESTS

ENTRY_POINTS = """\
[replicator.sinks]
box_log = box:BoxLog
box_tables = box:BoxTables
[replicator.sink_options]
box_log = box_options:BoxLogOptions
box_tables = box_options:BoxTableOptions
[replicator.sources]
box_log = box:read_box
[replicator.decoders]
box_json = box:BoxDecoder
[replicator.decoder_options]
box_json = box_options:BoxFormatOptions
[replicator.event_stores]
box_events = box:BoxEventStore
[replicator.dead_letters]
box_letters = box:BoxDeadLetters
"""


def install_box(folder: Path) -> None:
    """Writes the package and its entry points into a folder of the import path."""
    for file in (TESTS / "support" / "box_package").glob("*.py"):
        shutil.copyfile(file, folder / file.name)
    about = folder / "box-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: box\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
