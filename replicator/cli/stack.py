"""`replicator stack`: the embedded servers."""

from __future__ import annotations

from typing import Any

import click

from .session import Session, command


@click.group("stack")
def stack() -> None:
    """PostgreSQL, Kafka and Kafka Connect with Debezium as local processes, without Docker."""


@command("up")
def up(session: Session) -> None:
    """Start the servers, healthy, with the connector registered; may be repeated."""
    embedded = _stack()
    embedded.up()
    name = embedded.register_connector()
    session.emit(_rows(embedded), f"the stack is up, connector {name} is running", text=lambda: _print(embedded))


@command("down")
@click.option("--clean", is_flag=True, help="Remove the servers' data too.")
def down(session: Session, clean: bool) -> None:
    """Stop the servers; data stays unless `--clean`."""
    _stack().down(clean=clean)
    session.emit(None, "the stack is down")


@command("status")
def status(session: Session) -> None:
    """Which servers run, and where."""
    embedded = _stack()
    session.emit(_rows(embedded), "status of the stack", text=lambda: _print(embedded))


@command("logs")
@click.argument("service", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on printing.")
def logs(session: Session, service: str | None, follow: bool) -> None:
    """Print the servers' logs."""
    for line in _stack().read_logs(service, follow=follow):
        click.echo(line)
    session.note("")


def _stack() -> Any:
    from replicator.wiring.plugins import load

    return load("replicator.stacks", "embedded")()


def _rows(embedded: Any) -> list[dict[str, Any]]:
    return [{name: getattr(s, name) for name in s.__dataclass_fields__} for s in embedded.status()]


def _print(embedded: Any) -> None:
    for row in _rows(embedded):
        click.echo("  ".join(f"{name}={value}" for name, value in row.items() if value not in (None, "", ())))


for _command in (up, down, status, logs):
    stack.add_command(_command)
