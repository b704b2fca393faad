"""`mode` of a source: the sources that have it, and its consequences."""

from __future__ import annotations

import pytest

from replicator.wiring import adapters
from replicator.wiring.container import MAX_OFFSETS, PipelineSetup

ARCHIVE = "    transport: archive\n"


def test_batch_mode_allows_a_large_batch(folder):
    stream = folder.load()
    assert stream.settings.sources["recorded"].mode is None
    folder.write(folder.file.read_text().replace(ARCHIVE, ARCHIVE + "    mode: batch\n", 1))
    batch = folder.load()
    options = [adapters.build_source(loaded, "recorded")._options for loaded in (stream, batch)]
    assert [(o.mode or "stream", o.batch_bytes) for o in options] == [
        ("stream", adapters.compute_batch_bytes(stream)),
        ("batch", adapters.compute_whole_bytes(batch)),
    ]
    assert adapters.compute_whole_bytes(batch) > adapters.compute_batch_bytes(batch)
    # Other sources of this pipeline are streams: a lane that is behind in one reads in pieces.
    options = [PipelineSetup.from_config(loaded).build_options() for loaded in (batch, stream)]
    assert options[0].catch_up_offsets == options[1].catch_up_offsets


def test_catch_up_reads_whole_sources_in_batch_mode(tmp_path, folder):
    folder.write(
        "pipeline: p\nsources:\n  a: {format: rows, transport: archive, path: ./a, mode: batch}\n"
        "sinks:\n  lake: {kind: delta, path: ./lake}\ndead_letters: {path: ./d}\n"
        "tables:\n  - {match: t, source: a, keys: [id], to: [{sink: lake}]}\n"
    )
    assert PipelineSetup.from_config(folder.load()).build_options().catch_up_offsets == MAX_OFFSETS


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (ARCHIVE, ARCHIVE + "    mode: once\n", "unknown_value"),
        ("    transport: kafka\n", "    transport: kafka\n    mode: batch\n", "unknown_key"),
    ],
)
def test_invalid_options_are_refused(folder, old, new, code):
    folder.write(folder.file.read_text().replace(old, new, 1))
    assert folder.findings()[0].code == code
