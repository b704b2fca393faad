"""`replicator demo`: starts a whole system in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from replicator.domain.errors import EnvironmentProblem

from .session import DEFAULT_CONFIG, CommandSession, command

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
            _print_step(session, "\n  ".join(("The servers still run. In another terminal:", *_list_next_commands(folder))))
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
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        daemon.terminate()
        try:
            daemon.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
            session.print_note(f"The daemon did not stop within {DRAIN_SECONDS} s. It was killed.")
        signal.signal(signal.SIGINT, before)


def _await_equal(session: CommandSession, system: Any, daemon: subprocess.Popen[bytes], limit: float) -> float:
    """The seconds until every target equals the source. EnvironmentProblem if the daemon ends, or it takes too long."""
    began = printed = time.monotonic()
    while (found := system.find_difference()) is not None:
        now = time.monotonic()
        if daemon.poll() is not None:
            raise EnvironmentProblem(
                f"The daemon ended with exit code {daemon.returncode}.", next_step="Read its message above."
            )
        if now - began > limit:
            raise EnvironmentProblem(f"After {limit:.0f} s {found}.", next_step="Try again on a machine with less load.")
        if now - printed > PROGRESS_SECONDS:
            printed = now
            session.print_note(f"  {now - began:.0f} s: {found}")
        time.sleep(0.2)
    return time.monotonic() - began


def _print_step(session: CommandSession, text: str) -> None:
    session.print_note(f"== {text}")


def _print_tables(result: dict[str, Any]) -> None:
    """Print the counts of every table in every target, and the newest customers of each target."""
    from rich.console import Console
    from rich.table import Table

    places = list(result["tables"][0]["targets"])
    counts = Table("table", "source_db", title="Rows, compared with the source (event logs: plain columns only)")
    for place in places:
        counts.add_column(f"{place} replayed" if "events" in place else place, overflow="fold")
    for one in result["tables"]:
        cells = (f"{t['rows']} {'DIFFERENT' if t['differ'] else 'equal'}" for t in map(one["targets"].get, places))
        counts.add_row(one["table"], str(one["rows"]), *cells)
    newest = Table(*result["newest"][0], title="The newest customers in every target")
    for row in result["newest"]:
        newest.add_row(*map(str, row.values()))
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in (counts, newest):
        table.title_justify = "left"
        console.print(table)


def _list_next_commands(folder: Path) -> Sequence[str]:
    """Commands for a shell that reads the addresses of the servers first."""
    from replicator.settings.environment import ENV_FILE

    program = "replicator" if shutil.which("replicator") else str(Path(sys.executable).with_name("replicator"))
    return (
        f"cd {folder}; set -a; . ./{ENV_FILE}; set +a",
        f"{program} run",
        f"{program} query customers",
        'psql "$SOURCE_DSN"    # also $DATALAKE_DSN, $TARGET_DSN; the administrator is postgres, password postgres',
        f"{program} stack down --clean; rm -r {folder}",
    )


def _ignore_signals() -> None:
    """Ignore Ctrl-C while the servers stop: it would leave servers behind."""
    for ending in ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
