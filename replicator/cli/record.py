"""`replicator record`: topics, written as an archive."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from replicator.domain.plain_values import format_count

from .completion import complete_files, complete_sources
from .session import CommandSession, command


@command("record")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_files)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--source", shell_complete=complete_sources, help="The Kafka source whose broker is read, where the config has several."
)
def record(session: CommandSession, topics: tuple[str, ...], file: Path, source: str | None) -> None:
    """Write the records that topics hold now to FILE: .jsonl, .jsonl.gz or .parquet.

    A source with `transport: archive` reads the file.

    TOPIC is a name or a glob. The running pipeline is not touched.

    Example: replicator record 'cdc.public.*' shop.jsonl.gz
    """
    from replicator.application.operations.archive_files import record_topics
    from replicator.wiring.adapters import build_topic_reader

    records = record_topics(partial(build_topic_reader, session.loaded, source, topics), topics, file, session.print_note)
    session.emit({"path": str(file), "records": records}, f"{format_count(records, 'record')} in {file}")
