"""`replicator audit`: the changes of a table."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from replicator.domain.plain_values import format_count

from .completion import complete_tables
from .query import print_table, to_json_rows, write_csv
from .session import COUNT, CommandSession, command
from .time_params import IN_UTC, TIME

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SHOWN = 100


@command("audit", "replicator audit public.orders --since 2026-01-31 --by updated_by")
@click.argument("table", shell_complete=complete_tables)
@click.option("--since", type=TIME, help=f"Only changes at this source time or later. {IN_UTC}")
@click.option("--until", type=TIME, help=f"Only changes at this source time or earlier. {IN_UTC}")
@click.option("--by", metavar="COLUMN", help="Column that names the user of a change, such as updated_by.")
@click.option("--limit", type=COUNT, help="Print the last N changes; 0 prints all.  [default: 100 as a table, else all]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def audit(
    session: CommandSession,
    table: str,
    since: datetime | None,
    until: datetime | None,
    by: str | None,
    limit: int | None,
    as_csv: bool,
) -> None:
    """Print all changes of a table, from its event log.

    TABLE is the name of the table in the source, with or without its schema. For each change: time, key, changed columns,
    transaction, and the position of its record. Changed columns are known if the record contains the row before the change.

    Change records do not name the user of a change. If the table has a column such as updated_by, name it with --by.
    """
    from replicator.application.operations.change_history import read_audit
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring.event_logs import open_reader

    table = find_source_table(session.components, table)
    period = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at is not None}
    with open_reader(session.loaded, table, period) as log:
        found, read = read_audit(log, table, session.print_note, by)
    if read.rejected:
        session.print_note(
            f"Left out: {format_count(read.rejected, 'rejected record')} of {table}. See `replicator dlq list`."
        )
    most = MAX_SHOWN if limit is None and not (as_csv or session.as_json) else limit or None
    shown = found if most is None else found.slice(max(0, found.num_rows - most))
    _note_unknown(session, shown)
    if as_csv:
        write_csv(shown)
        return
    for sentence in read.missing_sentences:
        session.print_note(sentence)
    summary = "; ".join([f"{table}: {format_count(found.num_rows, 'change')}", *read.missing_sentences])
    title = table if shown.num_rows == found.num_rows else f"{table}, the last of {format_count(found.num_rows, 'change')}"
    session.emit(to_json_rows(shown) if session.as_json else None, summary, text=lambda: print_table(title, shown))


def _note_unknown(session: CommandSession, shown: pa.Table) -> None:
    """Explain an empty `changed`: the records do not contain the row before the change."""
    import pyarrow.compute as pc

    unknown = pc.sum(pc.and_(pc.equal(shown["operation"], "u"), pc.is_null(shown["changed"]))).as_py()
    if unknown:
        session.print_note(
            f"`changed` is empty in {format_count(unknown, 'update')}: the record does not contain the row before the "
            "change (PostgreSQL sends it with REPLICA IDENTITY FULL). `replicator history TABLE KEY` compares each change "
            "of a row with the one before it."
        )
