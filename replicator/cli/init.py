"""`replicator init`: writes a config from the tables of a source."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem
from replicator.domain.plain_values import format_count

from .session import CommandSession, command, echo, is_on_terminal, to_cell

if TYPE_CHECKING:
    from replicator.ports.discovery import DiscoveredSource, PasswordNeeded

LAKE = "./lake"
SOURCE_KINDS = "postgresql://USER@HOST:PORT/DATABASE, kafka://BROKER[,BROKER][/TOPICS] or a folder"
SOURCE = f"Source ({SOURCE_KINDS})"
TARGETS = "Targets, separated by spaces, such as: ./lake postgresql://USER@HOST:PORT/DATABASE\nTargets"
NEXT = ("replicator doctor", "replicator run", "replicator query TABLE")


@command(
    "init",
    "replicator init shop --from postgresql://app@localhost/shop --to ./lake --to postgresql://app@dwh/mirror",
)
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--from", "source", metavar="URL", help=f"The source: {SOURCE_KINDS}.")
@click.option(
    "--to",
    "targets",
    multiple=True,
    metavar="TARGET",
    help=f"A folder or s3://BUCKET/FOLDER for Delta tables, or postgresql://... Repeatable.  [default: {LAKE}]",
)
def init(session: CommandSession, folder: Path, source: str | None, targets: tuple[str, ...]) -> None:
    """Create a project: a config from the tables of a source.

    Writes config/replicator.yaml and its schema for editors, the file of the connector, and passwords into .env. Prints the
    SQL that the source still needs, and the next commands. Changes nothing in source and targets, and never overwrites a
    file. On a terminal, it prompts for missing options. FOLDER is the current folder by default; a relative folder of --to
    starts in FOLDER.

    TOPICS are names and globs, separated by commas; by default all topics. If the URL has no password, it is read from
    PGPASSWORD, ~/.pgpass or a prompt.
    """
    from replicator.wiring.starting_project import find_sources, make_project, write_project

    may_ask = is_on_terminal() and not session.as_json
    if not source:
        source = str(click.prompt(SOURCE, err=True)) if may_ask else _refuse_missing()
    ask_password = _ask_password if may_ask else _refuse
    sources = find_sources(folder, source, ask_password)
    if not targets:
        targets = tuple(click.prompt(TARGETS, default=LAKE, err=True).split()) if may_ask else (LAKE,)
    written = write_project(folder, make_project(folder, sources, targets, ask_password))
    next_steps = [*([_to_cd(folder)] if folder != Path() else []), *(s for one in sources for s in one.steps), *NEXT]
    sql = [statement for one in sources for statement in one.sql]
    tables = _list_tables(sources)
    result = {"tables": tables, "files": written, "sql": sql, "next": next_steps}
    summary = f"{format_count(len(tables), 'table')}, {format_count(len(written), 'file')} written"
    titles = [one.title for one in sources]
    session.emit(result, summary, text=lambda: _print_project([*titles, "", *_format_tables(tables)], result))


def _to_cd(folder: Path) -> str:
    return f"cd {shlex.quote(f'./{folder}' if str(folder).startswith('-') else str(folder))}"


def _refuse_missing() -> str:
    raise ConfigProblem("--from is missing, and there is no terminal for a prompt", next_step=f"Add --from {SOURCE_KINDS}.")


def _ask_password(needed: PasswordNeeded) -> str:
    return str(click.prompt(f"{needed.sentence}. Password", hide_input=True, err=True))


def _refuse(needed: PasswordNeeded) -> str:
    raise needed


def _list_tables(sources: Sequence[DiscoveredSource]) -> list[dict[str, Any]]:
    from replicator.settings.starting_config import choose_policy

    return [
        {
            "source": source.name,
            "table": table.name,
            "rows": table.rows,
            "key": list(table.keys),
            "replica_identity": table.identity,
            "policy": choose_policy(table),
        }
        for source in sources
        for table in source.tables
    ]


def _format_tables(tables: list[dict[str, Any]]) -> list[str]:
    """A line for each table, without columns that are empty for all of them."""
    rows = [["table", "rows (about)", "key", "replica identity", "policy"]]
    for table in tables:
        count = "" if table["rows"] is None else f"{table['rows']:,}"
        key = ", ".join(table["key"]) or "none"
        rows.append([to_cell(text) for text in (table["table"], count, key, table["replica_identity"], table["policy"])])
    shown = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in shown]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*shown, strict=True)]


def _print_project(lines: list[str], result: dict[str, Any]) -> None:
    lines += ["", f"Written: {', '.join(result['files']) or 'nothing, all files exist already'}"]
    if result["sql"]:
        lines += ["", "The source still needs, as an administrator:", *(f"  {sql}" for sql in result["sql"])]
    echo("\n".join([*lines, "", "Next:", *(f"  {step}" for step in result["next"])]))
