"""`replicator backfill`: a table's rows as they are now, into its targets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from .session import Session, command, counted, echo

if TYPE_CHECKING:
    from replicator.application.backfilling import Outcome


@command("backfill")
@click.argument("table")
@click.option("--source", help="The source, where several have a table of that name.")
@click.option("--anew", is_flag=True, help="Do not go on with an unfinished one: read every row again.")
def backfill(session: Session, table: str, source: str | None, anew: bool) -> None:
    """Read TABLE (or SCHEMA.TABLE) of a PostgreSQL or MariaDB source whole, while its changes go on; its lanes apply
    the rows. Rows of the targets that it no longer holds are deleted at the end. Killed or failed, the command goes on where
    it was when it is repeated."""
    from replicator.wiring import backfilling
    from replicator.wiring.offline import source_table

    table = source_table(session.loaded, table)
    outcome = backfilling.backfill(session.loaded, table, session.note, source=source, anew=anew)
    session.emit(asdict(outcome), _summary(outcome), text=lambda: echo("\n".join([_summary(outcome), *outcome.without])))


def _summary(outcome: Outcome) -> str:
    went_on = ", some by an earlier call" if outcome.resumed else ""
    return f"{outcome.table}: {counted(outcome.rows, 'row')} read{went_on}, {outcome.deleted:,} deleted in the targets"
