"""`replicator backfill`: writes the present rows of a source table into its targets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from replicator.domain.plain_values import format_count

from .completion import complete_sources, complete_tables
from .session import CommandSession, command, echo

if TYPE_CHECKING:
    from replicator.application.operations.backfill import BackfillOutcome


@command("backfill", "replicator backfill public.orders")
@click.argument("table", shell_complete=complete_tables)
@click.option(
    "--source", metavar="NAME", shell_complete=complete_sources, help="Source, if several have a table of this name."
)
@click.option("--anew", is_flag=True, help="Start over instead of resuming an interrupted backfill.")
def backfill(session: CommandSession, table: str, source: str | None, anew: bool) -> None:
    """Read a source table again, and update its targets.

    TABLE is the name of the table in a PostgreSQL or MariaDB source, with or without its schema. The lanes of the table
    apply its rows, while its changes continue. At the end, rows that the source no longer has are deleted in the targets.

    The daemon may run meanwhile. If the command is interrupted, run it again: it resumes.
    """
    from replicator.application.operations.lanes import find_source_table
    from replicator.wiring import backfill

    table = find_source_table(session.components, table)
    outcome = backfill.backfill_table(session.loaded, table, session.print_note, source=source, from_scratch=anew)
    session.emit(asdict(outcome), _summarize(outcome), text=lambda: echo("\n".join([_summarize(outcome), *outcome.without])))


def _summarize(outcome: BackfillOutcome) -> str:
    went_on = " (some by an earlier run of the command)" if outcome.resumed else ""
    return f"{outcome.table}: {format_count(outcome.rows, 'row')} read{went_on}, {outcome.deleted:,} deleted in the targets"
