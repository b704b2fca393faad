"""`replicator stack`: the embedded servers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from replicator.domain.errors import ConfigProblem

from .session import DEFAULT_CONFIG, CommandSession, command, echo, format_examples


@click.group("stack", epilog=format_examples("replicator stack up"))
def stack() -> None:
    """Run PostgreSQL, Kafka and Debezium as local processes.

    The servers need no Docker. They belong to the project of the config; without a config, to the current folder. Needs the
    extra `stack`.
    """


@command("up", "replicator stack up")
def up(session: CommandSession) -> None:
    """Start the servers, and register the connector.

    Waits until all servers are healthy. You can repeat the command.

    To use other ports, set REPLICATOR_STACK_PORTS, for example to source=25433,kafka=39092,connect=28083. Its names are
    source, datalake, target, kafka and connect.
    """
    embedded = _load_stack(session)
    embedded.up()
    name = embedded.register_connector()
    rows = _list_rows(embedded)
    session.emit(rows, f"the stack is up, connector {name} is running", text=lambda: _print_services(rows))


@command("down", "replicator stack down")
@click.option("--clean", is_flag=True, help="Also delete the data of the servers.")
def down(session: CommandSession, clean: bool) -> None:
    """Stop the servers.

    Their data stays, unless you add --clean.
    """
    _load_stack(session).down(clean=clean)
    session.emit(None, "the stack is down")


@command("status", "replicator stack status")
def status(session: CommandSession) -> None:
    """Show the state, ports and logs of each server."""
    rows = _list_rows(_load_stack(session))
    session.emit(rows, "status of the stack", text=lambda: _print_services(rows))


@command("logs", "replicator stack logs kafka --follow")
@click.argument("service", required=False)
@click.option("-f", "--follow", is_flag=True, help="Continue to print new lines until Ctrl-C.")
def logs(session: CommandSession, service: str | None, follow: bool) -> None:
    """Print the logs of the servers.

    SERVICE is the name of one server, as `stack status` prints it; by default all.
    """
    for line in _load_stack(session).read_logs(service, follow=follow):
        echo(line)
    session.print_note("")


def _load_stack(session: CommandSession) -> Any:
    """The servers of the project of the config. The project folder is the parent of the folder of the config file; without
    a config it is the current folder."""
    from replicator.settings.plugins import load_adapter

    if not session.config.is_file() and session.config != Path(DEFAULT_CONFIG):
        raise ConfigProblem(
            f"{session.config}: the file does not exist.", next_step="Name the config of the project with -c."
        )
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
