"""`replicator plan`: what will run."""

from __future__ import annotations

from typing import Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count

from .completion import complete_tables
from .session import CommandSession, command, echo

NO_TABLE = "No source has a record of a table that an entry of `tables` matches. `replicator doctor` checks the sources."


@command("plan", "replicator plan", "replicator plan public.orders --sql")
@click.argument("table", required=False, shell_complete=complete_tables)
@click.option("--sql", is_flag=True, help="Also print the SQL that each sink runs.")
def plan(session: CommandSession, table: str | None, sql: bool) -> None:
    """Show the tables that the sources have now, and their lanes.

    With TABLE, shows the lanes of this table and their schemas. Changes nothing.

    With --sql, the step `reconcile` of an scd2 table in PostgreSQL is printed as SQL of the server. Most writes run this
    step in Replicator's own process, with DuckDB, and then copy the new versions to the server.
    """
    from replicator.application.operations.plan import list_plans
    from replicator.wiring.configuration import describe_defaults

    for sentence in describe_defaults(session.loaded):
        session.print_note(sentence)
    every = list(list_plans(session.components))
    found = [p for p in every if table is None or table in (p["table"], p["table"].rpartition(".")[2])]
    if table is not None and not found:
        known = ", ".join(sorted({p["table"] for p in every})) or "none, the sources have no records"
        raise ConfigProblem(f"no lane has a source table {table!r}", next_step=f"Available: {known}.")
    sources = session.components.sources if table is None else {}
    logs = [f"event log {x.id} of source {name}" for name in sorted(sources) for x in sources[name].event_logs]
    summary = format_count(len(found) + len(logs), "lane") + (
        f", with {format_count(len(logs), 'event log')}" if logs else ""
    )
    last = [*logs, summary, *([] if every else [NO_TABLE])]
    session.emit(found, summary, text=lambda: _print_plans(found, last, in_full=table is not None, sql=sql))


def _describe_policy(lane: dict[str, Any]) -> str:
    from replicator.domain.transform.rows import SOFT_DELETE_TEXT

    late = [f"late after {lane['watermark']}"] if lane["watermark"] else []
    kept = f"{SOFT_DELETE_TEXT}, for {lane['retention'] or 'ever'}"
    return ", ".join([lane["policy"], *late, *(kept if said == SOFT_DELETE_TEXT else said for said in lane["shape"])])


def _list_schema_lines(schemas: list[dict[str, Any]], *, in_full: bool) -> list[str]:
    """A line for each schema of the lane. Without `in_full` only the schema that waits for acceptance."""
    from .schema import list_lines

    return list_lines([one for one in schemas if in_full or one["state"] == "pending"])


def _print_plans(found: list[dict[str, Any]], last: list[str], *, in_full: bool, sql: bool) -> None:
    for lane in found:
        echo(f"{lane['table']} -> {lane['lane']}  policy {_describe_policy(lane)}  key ({', '.join(lane['keys'])})")
        if lane["problem"]:
            echo(f"    will be suspended: {lane['problem']}")
        if lane["dead_letters"]:
            echo(f"    {format_count(lane['dead_letters'], 'open dead letter')}")
        if lane["schema_changes"] != "evolve":
            echo(f"    schema changes: {lane['schema_changes']}")
        for line in _list_schema_lines(lane["schemas"] or [], in_full=in_full):
            echo(f"    schema {line}")
        for stage, text in lane["stages"].items() if sql else ():
            echo(f"  -- {stage}\n{text}\n")
    echo("\n".join(last))
