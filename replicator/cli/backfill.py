"""`replicator backfill`: a table's rows as they are now, into its targets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from replicator.domain.plain_values import format_count

from .completion import complete_sources, complete_tables
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    from replicator.application.operations.backfill import BackfillOutcome


@command("backfill")
@click.argument("table", shell_complete=complete_tables)
@click.option("--source", shell_complete=complete_sources, help="The source, where several have a table of that name.")
@click.option("--anew", is_flag=True, help="Do not go on with an unfinished one: read every row again.")
def backfill(session: CommandSession, table: str, source: str | None, anew: bool) -> None:
    """Read TABLE (or SCHEMA.TABLE) of a PostgreSQL or MariaDB source whole, while its changes go on; its lanes apply
    the rows. Rows of the targets that it no longer holds are deleted at the end. Killed or failed, the command goes on where
    it was when it is repeated."""
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring import backfill

    table = find_source_table(session.components, table)
    outcome = backfill.backfill_table(session.loaded, table, session.print_note, source=source, from_scratch=anew)
    session.emit(asdict(outcome), _summarize(outcome), text=lambda: echo("\n".join([_summarize(outcome), *outcome.without])))


def _summarize(outcome: BackfillOutcome) -> str:
    went_on = ", some by an earlier call" if outcome.resumed else ""
    return f"{outcome.table}: {format_count(outcome.rows, 'row')} read{went_on}, {outcome.deleted:,} deleted in the targets"
