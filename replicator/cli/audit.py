"""`replicator audit`: what was changed in a table, and when."""

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


@command("audit")
@click.argument("table", shell_complete=complete_tables)
@click.option("--since", type=TIME, help=f"Changes of this time at the source or later ({IN_UTC}).")
@click.option("--until", type=TIME, help=f"Changes of this time at the source or earlier ({IN_UTC}).")
@click.option("--by", metavar="COLUMN", help="The column in which rows say who changed them, such as updated_by.")
@click.option("--limit", type=COUNT, help="At most so many, the last ones, 0: all. As a table by default 100.")
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
    """Print the changes of TABLE (or SCHEMA.TABLE, as its source calls it) as its event log has them: when, which row, which
    columns (where records tell the row before), by which transaction and, with `--by`, by whom, and where the record
    stands."""
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
    """Say why `changed` is empty, where that is because records do not hold the row before."""
    import pyarrow.compute as pc

    unknown = pc.sum(pc.and_(pc.equal(shown["operation"], "u"), pc.is_null(shown["changed"]))).as_py()
    if unknown:
        session.print_note(
            f"`changed` is empty in {format_count(unknown, 'update')}: the record does not hold the row before "
            f"(PostgreSQL sends "
            "it with REPLICA IDENTITY FULL). `replicator history TABLE KEY` compares a row with what the log has before."
        )
