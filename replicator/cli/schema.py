"""`replicator schema`: the JSON Schema of the config, and the schema versions of lanes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from replicator.domain.plain_values import format_count

from .completion import complete_targets
from .session import CommandSession, command, echo


@command("history", "replicator schema history public.orders")
@click.argument("table", shell_complete=complete_targets)
def history(session: CommandSession, table: str) -> None:
    """Print the schema versions of a table.

    TABLE is the name of the table in the source, the name of the target, or a lane (SINK.TARGET). For each lane and version:
    time, state, position of its first record, and the schema changes.
    """
    from replicator.application.operations.lanes import read_schema_history

    found = read_schema_history(session.components, table)
    session.emit(
        found,
        format_count(sum(len(lane["schemas"]) for lane in found), "schema version"),
        text=lambda: echo(_to_text(found)),
    )


@command(
    "schema", "replicator schema > config/schema.json", cls=click.Group, invoke_without_command=True, commands=[history]
)
@click.option("--environment", is_flag=True, help="Print the schema of environments/NAME.yaml instead.")
def schema(session: CommandSession, environment: bool) -> None:
    """Print the JSON Schema of the config.

    Reads no config. An editor with a YAML language server completes and checks a config if its first line names the schema
    file:

    \b
      # yaml-language-server: $schema=./schema.json
    """
    from replicator.settings.json_schema import build_config_schema, render_file

    found = build_config_schema(overlay=environment)
    session.emit(found, found["title"], text=lambda: click.echo(render_file(overlay=environment), nl=False))


def list_lines(schemas: list[dict[str, Any]]) -> list[str]:
    """A line for each version: number, time, state, position, changes."""
    rows = [
        (
            str(one["number"]),
            datetime.fromisoformat(one["at"]).astimezone().isoformat(sep=" ", timespec="seconds"),
            one["state"],
            ",".join(f"{topic}:{p}:{o}" for topic, parts in one["position"].items() for p, o in parts.items()),
            "; ".join(one["changes"]) or "the first",
        )
        for one in schemas
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    return ["  ".join((*(cell.ljust(w) for cell, w in zip(row[:4], widths, strict=True)), row[4])) for row in rows]


def _to_text(found: list[dict[str, Any]]) -> str:
    return "\n".join(
        line for lane in found for line in (lane["lane"], *(f"  {line}" for line in list_lines(lane["schemas"])))
    )
