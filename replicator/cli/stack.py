"""`replicator stack`: the embedded servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from replicator.domain.errors import ConfigProblem

from .session import DEFAULT_CONFIG, CommandSession, command, echo


@click.group("stack")
def stack() -> None:
    """PostgreSQL, Kafka and Kafka Connect with Debezium as local processes, without Docker."""


@command("up")
def up(session: CommandSession) -> None:
    """Start the servers, healthy, with the connector registered; may be repeated."""
    embedded = _load_stack(session)
    embedded.up()
    name = embedded.register_connector()
    rows = _list_rows(embedded)
    session.emit(rows, f"the stack is up, connector {name} is running", text=lambda: _print_services(rows))


@command("down")
@click.option("--clean", is_flag=True, help="Remove the servers' data too.")
def down(session: CommandSession, clean: bool) -> None:
    """Stop the servers; data stays unless `--clean`."""
    _load_stack(session).down(clean=clean)
    session.emit(None, "the stack is down")


@command("status")
def status(session: CommandSession) -> None:
    """Which servers run, and where."""
    rows = _list_rows(_load_stack(session))
    session.emit(rows, "status of the stack", text=lambda: _print_services(rows))


@command("logs")
@click.argument("service", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on printing.")
def logs(session: CommandSession, service: str | None, follow: bool) -> None:
    """Print the servers' logs."""
    for line in _load_stack(session).read_logs(service, follow=follow):
        echo(line)
    session.print_note("")


def _load_stack(session: CommandSession) -> Any:
    """The servers of the project that the config belongs to: its folder is the parent of the config file's. Without a config
    the project is the current folder."""
    from replicator.wiring.plugins import load_adapter

    if not session.config.is_file() and session.config != Path(DEFAULT_CONFIG):
        raise ConfigProblem(f"{session.config}: there is no such file.", next_step="Name the config of the project with -c.")
    project = session.config.absolute().parent.parent
    return load_adapter("replicator.stacks", "embedded")(project, tell=session.print_note)


def _list_rows(embedded: Any) -> list[dict[str, Any]]:
    return [{name: getattr(s, name) for name in s.__dataclass_fields__} for s in embedded.status()]


def _print_services(found: list[dict[str, Any]]) -> None:
    rows = [("service", "state", "pid", "listens on", "log"), *map(_list_cells, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for detail in (one["detail"] for one in found if one["detail"]):
        echo(detail)


def _list_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    listens = " ".join(f"127.0.0.1:{port}" for port in row["ports"].values())
    return row["name"], str(row["state"]), str(row["pid"] or ""), listens, str(row["log"])


for _command in (up, down, status, logs):
    stack.add_command(_command)
