"""`replicator record`: topics, written as an archive."""

from __future__ import annotations

from pathlib import Path

import click

from .session import Session, command, counted


@command("record")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--source", help="The Kafka source whose broker is read, where the config has several.")
def record(session: Session, topics: tuple[str, ...], file: Path, source: str | None) -> None:
    """Write the records that topics hold now to FILE: .jsonl, .jsonl.gz or .parquet.

    A source with `transport: archive` reads the file.

    TOPIC is a name or a glob. The running pipeline is not touched.

    Example: replicator record 'cdc.public.*' shop.jsonl.gz
    """
    from replicator.wiring import recording

    records = recording.record(session.loaded, topics, file, session.note, source)
    session.emit({"path": str(file), "records": records}, f"{counted(records, 'record')} in {file}")
