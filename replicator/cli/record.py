"""`replicator record`: writes topics to an archive file."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from replicator.domain.plain_values import format_count

from .completion import complete_files, complete_sources
from .session import CommandSession, command


@command("record", "replicator record 'cdc.public.*' shop.jsonl.gz")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_files)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--source", metavar="NAME", shell_complete=complete_sources, help="Kafka source with the broker, if there are several."
)
def record(session: CommandSession, topics: tuple[str, ...], file: Path, source: str | None) -> None:
    """Write the records of Kafka topics to a file.

    TOPIC is a name or a glob. FILE ends in .jsonl, .jsonl.gz or .parquet, and gets the records that the topics hold now. A
    source with `transport: archive` reads it. The running pipeline is not affected.
    """
    from replicator.application.operations.archive_files import record_topics
    from replicator.wiring.adapters import build_topic_reader

    records = record_topics(partial(build_topic_reader, session.loaded, source, topics), topics, file, session.print_note)
    session.emit({"path": str(file), "records": records}, f"{format_count(records, 'record')} in {file}")
