"""Commands that start a project: init, import, schema and demo."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.errors import ConfigProblem, EnvironmentProblem
from replicator.domain.plain_values import format_count

from .parameters import complete_targets
from .session import DEFAULT_CONFIG, CommandSession, command, echo, format_position, is_on_terminal, to_cell

if TYPE_CHECKING:
    from replicator.ports.source import PasswordNeeded

# `replicator init`: writes a config from the tables of a source.

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
    from replicator.settings.starting_config import choose_policy
    from replicator.wiring.starting_project import find_sources, make_project, write_project

    may_ask = is_on_terminal() and not session.as_json
    if not source and not may_ask:
        problem = "--from is missing, and there is no terminal for a prompt"
        raise ConfigProblem(problem, next_step=f"Add --from {SOURCE_KINDS}.")
    source = source or str(click.prompt(SOURCE, err=True))
    ask_password = _ask_password if may_ask else _refuse
    sources = find_sources(folder, source, ask_password)
    if not targets:
        targets = tuple(click.prompt(TARGETS, default=LAKE, err=True).split()) if may_ask else (LAKE,)
    written = write_project(folder, make_project(folder, sources, targets, ask_password))
    path = f"./{folder}" if str(folder).startswith("-") else str(folder)
    steps = [step for one in sources for step in one.steps]
    next_steps = [*([f"cd {shlex.quote(path)}"] if folder != Path() else []), *steps, *NEXT]
    sql = [statement for one in sources for statement in one.sql]
    tables = [
        {
            "source": one.name,
            "table": table.name,
            "rows": table.rows,
            "key": list(table.keys),
            "replica_identity": table.identity,
            "policy": choose_policy(table),
        }
        for one in sources
        for table in one.tables
    ]
    result = {"tables": tables, "files": written, "sql": sql, "next": next_steps}
    summary = f"{format_count(len(tables), 'table')}, {format_count(len(written), 'file')} written"
    lines = [*(one.title for one in sources), "", *_format_tables(tables)]
    lines += ["", f"Written: {', '.join(written) or 'nothing, all files exist already'}"]
    if sql:
        lines += ["", "The source still needs, as an administrator:", *(f"  {statement}" for statement in sql)]
    lines += ["", "Next:", *(f"  {step}" for step in next_steps)]
    session.emit(result, summary, text=lambda: echo("\n".join(lines)))


def _ask_password(needed: PasswordNeeded) -> str:
    return str(click.prompt(f"{needed.sentence}. Password", hide_input=True, err=True))


def _refuse(needed: PasswordNeeded) -> str:
    raise needed


def _format_tables(tables: list[dict[str, Any]]) -> list[str]:
    """A line for each table, without columns that are empty for all of them."""
    rows = [["table", "rows (about)", "key", "replica identity", "policy"]]
    for table in tables:
        count = "" if table["rows"] is None else f"{table['rows']:,}"
        key = ", ".join(table["key"]) or "none"
        rows.append([to_cell(text) for text in (table["table"], count, key, table["replica_identity"], table["policy"])])
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True)]


# `replicator import`: makes a config from connectors of Kafka Connect.


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
    from replicator.settings.starting_config import import_connectors

    config = import_connectors([(name, _read_file(name)) for name in files])
    if out is not None:
        try:
            with out.open("x", encoding="utf-8") as file:
                file.write(config.text)
        except OSError as error:
            step = "Name a new file in an existing folder."
            raise ConfigProblem(f"{out} cannot be written: {error.strerror}", next_step=step) from None
    if not session.as_json:
        for left in config.left_out:
            session.print_note(f"not carried over: {left.setting}{f'={left.value}' * bool(left.value)}: {left.reason}")
    left_out = [{"setting": left.setting, "value": left.value, "reason": left.reason} for left in config.left_out]
    summary = f"{format_count(len(left_out), 'setting')} not carried over"
    text = None if out is not None else lambda: click.echo(config.text, nl=False)
    session.emit({"config": config.text, "left_out": left_out}, f"{out}: written, {summary}" if out else summary, text=text)


def _read_file(name: str) -> str:
    try:
        return sys.stdin.buffer.read().decode() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigProblem(f"{name} cannot be read: {why}", next_step="Name a JSON file with a connector.") from None


# `replicator schema`: the JSON Schema of the config, and the schema versions of lanes.


@command("history", "replicator schema history public.orders")
@click.argument("table", shell_complete=complete_targets)
def history(session: CommandSession, table: str) -> None:
    """Print the schema versions of a table.

    TABLE is the name of the table in the source, the name of the target, or a lane (SINK.TARGET). For each lane and version:
    time, state, position of its first record, and the schema changes.
    """
    from replicator.application.operations.lanes import read_schema_history

    lanes = read_schema_history(session.components, table)
    lines = []
    for lane in lanes:
        lines += [lane["lane"], *(f"  {line}" for line in list_schema_lines(lane["schemas"]))]
    versions = format_count(sum(len(lane["schemas"]) for lane in lanes), "schema version")
    session.emit(lanes, versions, text=lambda: echo("\n".join(lines)))


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

    config_schema = build_config_schema(overlay=environment)
    session.emit(config_schema, config_schema["title"], text=lambda: click.echo(render_file(overlay=environment), nl=False))


def list_schema_lines(schemas: list[dict[str, Any]]) -> list[str]:
    """A line for each version: number, time, state, position, changes."""
    rows = [
        (
            str(one["number"]),
            datetime.fromisoformat(one["at"]).astimezone().isoformat(sep=" ", timespec="seconds"),
            one["state"],
            format_position(one["position"]),
            "; ".join(one["changes"]) or "the first",
        )
        for one in schemas
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    return ["  ".join((*(cell.ljust(w) for cell, w in zip(row[:4], widths, strict=True)), row[4])) for row in rows]


# `replicator demo`: starts a whole system in a temporary folder.

SECONDS = {"local": 120.0, "spark": 600.0}
"""Time limit until the targets equal the source."""
PROGRESS_SECONDS = 15.0
DRAIN_SECONDS = 60
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DAEMON = "from replicator.cli import entry; entry()"


@command("demo", "replicator demo --keep")
@click.option("--spark", is_flag=True, help="Use the Spark engine. It takes minutes on two cores.")
@click.option("--keep", is_flag=True, help="Keep the servers running and the folder at the end.")
def demo(session: CommandSession, spark: bool, keep: bool) -> None:
    """Replicate a sample database on this machine, without Docker.

    Starts three PostgreSQL servers, Kafka, and Kafka Connect with Debezium as local processes on free ports. Replicates a
    small shop into five targets, changes rows in the source, and shows that all targets equal the source. Then it stops
    the servers and removes its folder.

    Reads no config. Needs the extra `stack`, and `spark` with --spark.
    """
    from replicator.settings.environment import ENV_FILE, render_env_file
    from replicator.settings.plugins import load_adapter

    for ending in ENDINGS[1:]:
        signal.signal(ending, signal.default_int_handler)
    began, engine = time.monotonic(), "spark" if spark else "local"
    with ExitStack() as cleanup:
        make_system = load_adapter("replicator.stacks", "demo")
        folder = Path(tempfile.mkdtemp(prefix="replicator-demo-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        system = make_system(folder, tell=session.print_note)
        cleanup.callback(system.down)
        cleanup.callback(_ignore_signals)
        _print_step(session, "The servers: PostgreSQL (source, data lake, target), Kafka, Kafka Connect with Debezium")
        system.up()
        with _run_daemon(session, folder, engine, system.environment) as daemon:
            system.register_connector()
            _await_equal(session, system, daemon, SECONDS[engine])
            _print_step(session, f"Changes in the source\n{system.changes}")
            system.change()
            seconds = _await_equal(session, system, daemon, SECONDS[engine])
            _print_step(session, f"Every target equals the source, {seconds:.1f} s after the last commit")
            result = {"seconds": round(seconds, 2), "tables": system.describe_tables(), "newest": system.list_newest()}
            session.emit(result, "every target equals the source", text=partial(_print_tables, result))
        if keep:
            addresses = render_env_file(system.environment, "The servers of this demo.")
            (folder / ENV_FILE).write_text(addresses, encoding="utf-8")
            program = "replicator" if shutil.which("replicator") else str(Path(sys.executable).with_name("replicator"))
            place, program = shlex.quote(str(folder)), shlex.quote(program)
            next_commands = (
                "The servers still run. In another terminal:",
                f"cd {place}; set -a; . ./{ENV_FILE}; set +a",  # Reads the addresses of the servers.
                f"{program} run",
                f"{program} query customers",
                'psql "$SOURCE_DSN"    # also $DATALAKE_DSN, $TARGET_DSN; the administrator is postgres, password postgres',
                f"{program} stack down --clean; rm -r {place}",
            )
            _print_step(session, "\n  ".join(next_commands))
            cleanup.pop_all()
    _print_step(session, f"Done in {time.monotonic() - began:.0f} s")


@contextmanager
def _run_daemon(
    session: CommandSession, folder: Path, engine: str, addresses: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """`replicator run` in the folder. It is always stopped cleanly."""
    arguments = ["run", "-q", "--engine", engine, "-c", DEFAULT_CONFIG, "--set", "http.address=127.0.0.1:0"]
    _print_step(session, f"The daemon: replicator {' '.join(arguments[:-4])}")
    # Variables that the user has set for another pipeline are left out.
    others = {"REPLICATOR_CONFIG", "REPLICATOR_ENV", *(f"{name}_FILE" for name in addresses)}
    environment = {name: value for name, value in os.environ.items() if name not in others} | dict(addresses)
    # In a session of its own: otherwise Ctrl-C reaches it too, and our SIGTERM is the second signal, which ends it at once.
    daemon = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", DAEMON, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield daemon
    finally:
        before = [signal.signal(ending, signal.SIG_IGN) for ending in ENDINGS]
        daemon.terminate()
        try:
            daemon.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
            session.print_note(f"The daemon did not stop within {DRAIN_SECONDS} s. It was killed.")
        for ending, handler in zip(ENDINGS, before, strict=True):
            signal.signal(ending, handler)


def _await_equal(session: CommandSession, system: Any, daemon: subprocess.Popen[bytes], limit: float) -> float:
    """The seconds until every target equals the source. EnvironmentProblem if the daemon ends, or it takes too long."""
    began = printed = time.monotonic()
    while (diff := system.find_difference()) is not None:
        now = time.monotonic()
        if daemon.poll() is not None:
            raise EnvironmentProblem(
                f"The daemon ended with exit code {daemon.returncode}.", next_step="Read its message above."
            )
        if now - began > limit:
            raise EnvironmentProblem(f"After {limit:.0f} s {diff}.", next_step="Try again on a machine with less load.")
        if now - printed > PROGRESS_SECONDS:
            printed = now
            session.print_note(f"  {now - began:.0f} s: {diff}")
        time.sleep(0.2)
    return time.monotonic() - began


def _print_step(session: CommandSession, text: str) -> None:
    session.print_note(f"== {text}")


def _print_tables(result: dict[str, Any]) -> None:
    """Print the counts of every table in every target, and the newest customers of each target."""
    from rich.console import Console
    from rich.table import Table

    targets = list(result["tables"][0]["targets"])
    counts = Table("table", "source_db", title="Rows, compared with the source (event logs: plain columns only)")
    for target in targets:
        counts.add_column(f"{target} replayed" if "events" in target else target, overflow="fold")
    for one in result["tables"]:
        cells = (f"{t['rows']} {'DIFFERENT' if t['differ'] else 'equal'}" for t in map(one["targets"].get, targets))
        counts.add_row(one["table"], str(one["rows"]), *cells)
    newest = Table(*result["newest"][0], title="The newest customers in every target")
    for row in result["newest"]:
        newest.add_row(*map(str, row.values()))
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in (counts, newest):
        table.title_justify = "left"
        console.print(table)


def _ignore_signals() -> None:
    """Ignore Ctrl-C while the servers stop: it would leave servers behind."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
