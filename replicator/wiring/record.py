"""Records topics into an archive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from replicator.application.operations.archive_files import open_archive
from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.ports.frames import Batch
from replicator.settings import Loaded

from . import adapters

KAFKA = "kafka"


def record_topics(loaded: Loaded, topics: Sequence[str], path: Path, note: Callable[[str], None], source: str | None) -> int:
    """Write all records that `topics` (names or globs) have now into a new archive file; returns their number.

    Broker, security and options are those of the Kafka source `source`, or of the only one. No position of the
    pipeline moves. ConfigProblem if the source is not clear, or if the file exists. EnvironmentProblem if no topic
    matches.
    """
    if path.exists():
        raise ConfigProblem(f"{path} is there already", next_step="Name another file, or remove it.")
    reader = adapters.build_topic_reader(loaded, _find_kafka_source(loaded, source), topics)
    stop, written = threading.Event(), 0
    try:
        start = reader.start()
        with open_archive(path) as archive:

            def write(batch: Batch[pa.Table]) -> None:
                nonlocal written
                archive.write(batch.frame)
                written += batch.frame.num_rows
                note(f"{written:,} records")

            reader.run(start, write, stop, once=True)
            if not written and not reader.end():
                names = ", ".join(topics)
                step = "`scripts/kafka.sh kafka-topics --list`, or `replicator doctor`, tells which topics there are."
                raise EnvironmentProblem(f"No topic matches {names}.", next_step=step)
    finally:
        reader.close()
    return written


def _find_kafka_source(loaded: Loaded, named: str | None) -> str:
    known = [name for name, settings in loaded.settings.sources.items() if settings.transport == KAFKA]
    if named in known:
        return str(named)
    if named is None and len(known) == 1:
        return known[0]
    what = f"there is no source {named!r} with `transport: kafka`" if named else f"there are {len(known)} Kafka sources"
    raise ConfigProblem(what, next_step=f"Name one with --source: {', '.join(known) or 'the config has none'}.")
