"""Decodes records without a lane, for `inspect`. Writes nothing, and keeps no position."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.ports.decoder import Decoder
from replicator.ports.frames import Batch
from replicator.ports.source import Source
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter

from . import adapters

PLACE_COLUMNS = ("topic", "partition", "offset")
ERROR = "error"


def inspect_archive(path: Path, form: str, most: int) -> pa.Table:
    """The first `most` records (0: all) of the archive at `path`, with the columns of the format `form`."""
    given = {"format": form, "path": str(path.absolute()), **_make_bounds(most)}
    return _describe_records(load_adapter("replicator.sources", "archive")(given), adapters.build_plain_decoder(form), most)


def inspect_source(loaded: Loaded, name: str, form: str | None, most: int) -> pa.Table:
    """The first records of a configured source, by default in its own format.

    ConfigProblem for an unknown source, and for one that stores state.
    """
    settings = loaded.settings.sources.get(name)
    if settings is None:
        known = ", ".join(loaded.settings.sources) or "none"
        raise ConfigProblem(f"there is no source {name!r}, and no file or folder", next_step=f"The sources are: {known}.")
    if settings.stateful_table is not None:
        raise ConfigProblem(
            f"source {name!r} stores the rows that it reads, so it cannot be inspected",
            next_step="Query its targets instead.",
        )
    engine = adapters.find_reading_engine(loaded)
    if engine != adapters.LOCAL:
        raise ConfigProblem(
            f"only the engine {engine!r} can read source {name!r}, so it cannot be inspected",
            next_step="Query its rows with Spark SQL.",
        )
    own = form in (None, settings.format)
    decoder = adapters.build_unfiltered_decoder(loaded, name) if own else adapters.build_plain_decoder(str(form))
    return _describe_records(adapters.build_source(loaded, name, engine), decoder, most)


def _make_bounds(most: int) -> dict[str, Any]:
    return {"batch_records": most} if most else {}


def _describe_records(source: Source[pa.Table], decoder: Decoder, most: int) -> pa.Table:
    raw = _read_records(source, most)
    print_records = decoder.features.print_records
    if print_records is not None:
        found = print_records(raw)
        return found if found[ERROR].null_count < len(found) else found.drop_columns([ERROR])
    said = decoder.envelope(raw)
    found = pa.table([*(raw[name] for name in PLACE_COLUMNS), *said.columns], names=[*PLACE_COLUMNS, *said.column_names])
    # A format does not fill all columns.
    return found.drop_columns([name for name in found.column_names if found[name].null_count == len(found) > 0])


def _read_records(source: Source[pa.Table], most: int) -> pa.Table:
    stop, parts = threading.Event(), [RAW.empty_table()]

    def take(batch: Batch[pa.Table]) -> None:
        parts.append(batch.frame)
        if most and sum(part.num_rows for part in parts) >= most:
            stop.set()

    try:
        source.run(source.start(), take, stop, once=True)
    finally:
        source.close()
    return pa.concat_tables(parts).slice(0, most or None)
