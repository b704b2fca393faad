"""`replicator inspect`: prints decoded records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count

from .completion import complete_sources_or_files
from .query import print_table, to_json_rows
from .session import COUNT, CommandSession, command

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SHOWN = 100


@command("inspect", "replicator inspect shop --limit 5", "replicator inspect recorded.jsonl --format debezium_json")
@click.argument("source", shell_complete=complete_sources_or_files)
@click.option(
    "--format", "form", metavar="FORMAT", help="Format of the records.  [default: the format of the source in the config]"
)
@click.option("--timezone", "zone", metavar="ZONE", default="UTC", show_default=True, help="Time zone of the printed times.")
@click.option("--limit", type=COUNT, default=MAX_SHOWN, show_default=True, help="Print the first N records; 0 prints all.")
def inspect(session: CommandSession, source: str, form: str | None, zone: str, limit: int) -> None:
    """Print the first records of a source, decoded.

    SOURCE is a source of the config, or an archive: a file or folder, which needs --format. Writes nothing, and moves no
    position.
    """
    from replicator.wiring.record_inspection import inspect_archive, inspect_source

    known = _check_zone(zone)
    path = Path(source)
    if path.exists():
        if form is None:
            raise ConfigProblem(f"the format of {source} is not known", next_step="Add --format, such as dts_avro.")
        found = inspect_archive(path, form, limit)
    else:
        found = inspect_source(session.loaded, source, form, limit)
    found = _convert_zone(found, known)
    result = to_json_rows(found) if session.as_json else None
    session.emit(result, format_count(found.num_rows, "record"), text=lambda: print_table(source, found))


def _check_zone(name: str) -> str:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name).key
    except (KeyError, OSError, ValueError):  # Unknown, a folder of zones, or no name of one.
        sentence = f"there is no time zone {name!r}"
        raise ConfigProblem(sentence, next_step="Name one such as UTC or Asia/Shanghai.") from None


def _convert_zone(table: pa.Table, zone: str) -> pa.Table:
    """Times as text in local time of the zone; whole seconds without a fraction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            local = pc.local_timestamp(table[field.name].cast(pa.timestamp("us", zone)))
            text = pc.replace_substring_regex(local.cast(pa.string()), r"\.0+$", "")
            table = table.set_column(at, field.name, text)
    return table
