"""`replicator import`: makes a config from connectors of Kafka Connect."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from replicator.domain.plain_values import format_count

from .session import CommandSession, command


@command(
    "import",
    "replicator import shop-source.json shop-target.json --out config/replicator.yaml",
    "curl -s http://connect:8083/connectors/shop-target | replicator import shop-source.json -",
)
@click.argument("files", nargs=-1, required=True, metavar="CONNECTOR.json...")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the config into FILE, which must not exist."
)
def import_(session: CommandSession, files: tuple[str, ...], out: Path | None) -> None:
    """Convert Kafka Connect connectors into a config.

    Name a Debezium source connector, and the JDBC sink connectors of its topics. Each CONNECTOR.json has the format of the
    Kafka Connect REST API: {"name": ..., "config": {...}}, or only the inner config. The name - is standard input.

    Prints the config on stdout. Prints each setting that it leaves out on stderr, with the reason. Passwords are never
    printed: the config reads them from environment variables.
    """
    from replicator.settings.connect_import import import_connectors

    made = import_connectors([(name, _read_file(name)) for name in files])
    if out is not None:
        _write_file(out, made.text)
    if not session.as_json:
        for left in made.left_out:
            session.print_note(f"not carried over: {left.setting}{f'={left.value}' * bool(left.value)}: {left.reason}")
    left_out = [{"setting": left.setting, "value": left.value, "reason": left.reason} for left in made.left_out]
    summary = f"{format_count(len(left_out), 'setting')} not carried over"
    text = None if out is not None else lambda: click.echo(made.text, nl=False)
    session.emit({"config": made.text, "left_out": left_out}, f"{out}: written, {summary}" if out else summary, text=text)


def _read_file(name: str) -> str:
    from replicator.domain.errors import ConfigProblem

    try:
        return sys.stdin.buffer.read().decode() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigProblem(f"{name} cannot be read: {why}", next_step="Name a JSON file with a connector.") from None


def _write_file(out: Path, text: str) -> None:
    from replicator.domain.errors import ConfigProblem

    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        step = "Name a new file in an existing folder."
        raise ConfigProblem(f"{out} cannot be written: {error.strerror}", next_step=step) from None
