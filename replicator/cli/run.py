"""Commands about the daemon as a whole: run, check, plan, doctor and support-bundle; and stack, the embedded servers."""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ExitCode
from replicator.domain.plain_values import format_count, to_printable

from .parameters import complete_tables
from .session import DEFAULT_CONFIG, CommandSession, command, echo, format_examples

# `replicator run`: the daemon.

IDLE_SECONDS = 60.0
"""Seconds after which `--until-caught-up` gives up."""
VERIFY_SECONDS = 2.0
"""Seconds that a running comparison has to end. It only reads."""


@command("run", "replicator run", "replicator run --until-caught-up --timeout 300")
@click.option("--engine", type=click.Choice(["local", "spark"]), help="Use this engine instead of `engine` of the config.")
@click.option("--until-caught-up", is_flag=True, help="Stop when all records that the sources hold now are applied.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="With --until-caught-up: stop with exit code 3 if a source or sink does not answer for SECONDS, "
    f"and nothing else makes progress.  [default: {IDLE_SECONDS:.0f}]",
)
def run(session: CommandSession, engine: str | None, until_caught_up: bool, timeout: float | None) -> int:
    """Run the daemon: read the sources and update the targets.

    The daemon reads the config once, at its start. SIGTERM and Ctrl-C stop it cleanly: it commits what it has read, and
    exits with 0. A second signal stops it at once.
    """
    if timeout is not None and (not until_caught_up or math.isnan(timeout)):
        raise click.UsageError("--timeout needs --until-caught-up and a number of seconds.")
    # Nothing is open before the daemon is built. An exception amidst imports may come out as anything.
    signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from replicator.application.problem import to_problem
    from replicator.wiring.configuration import describe_defaults
    from replicator.wiring.daemon import build_daemon
    from replicator.wiring.process_setup import configure_logs, raise_limit, tune_collector

    from .progress import log_progress

    configure_logs(session.verbosity)
    raise_limit()
    if engine:
        session.overrides += (f"engine={engine}",)
    daemon: Any = build_daemon(session.loaded)
    for sentence in describe_defaults(session.loaded):
        session.print_note(sentence)
    keeper, snapshotting, verifying = daemon.projection_scheduler(), daemon.checkpoint_scheduler(), daemon.diff_scheduler()
    stop = daemon.stop()
    handle_signals(stop)
    daemon.instance().acquire()
    page = _start_page(session, daemon)
    supervisor = daemon.supervisor()
    tune_collector()
    if not until_caught_up:
        keeper.start()
        snapshotting.start()
        verifying.start()
    with log_progress(daemon.status()):
        code: ExitCode = supervisor.run(once=until_caught_up, timeout=(timeout or IDLE_SECONDS) if until_caught_up else None)
    problem, has_ended = supervisor.problem, until_caught_up and not stop.is_set()
    if has_ended and code is ExitCode.OK and (nothing := supervisor.find_why_nothing_came()) is not None:
        problem, code = to_problem(nothing), nothing.exit_code
    if has_ended and code is ExitCode.OK:
        problem = keeper.refresh_all(stop) or snapshotting.take_due(stop)
        code = ExitCode.OK if problem is None else problem.code
    verifying.end(VERIFY_SECONDS)
    snapshotting.end(0)
    keeper.end(daemon.options().drain)
    page.close()
    daemon.instance().release()
    # A run that did not catch up may not have seen every table.
    for sentence in daemon.unmatched() if has_ended else ():
        session.print_note(f"warning: {sentence}")
    _report_end(session, daemon, problem, code)
    return int(code)


def handle_signals(stop: threading.Event) -> None:
    """Let the first SIGTERM, SIGINT or SIGHUP (a closed terminal) end the program cleanly, and the second one at once.

    Under `nohup` a SIGHUP ends nothing. It logs a warning, because it does not reload the config.
    """

    def warn(_number: int, _frame: object) -> None:
        import structlog

        log = structlog.get_logger(__name__)
        log.warning("SIGHUP does not reload the config", next_step="Restart the daemon to use a changed config.")

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, warn if under_nohup else ask)


def _start_page(session: CommandSession, daemon: Any) -> Any:
    """Start the status page. The daemon replicates without it if the port is in use."""
    monitor = daemon.monitor()
    try:
        address = monitor.start(daemon.views())
    except EnvironmentProblem as failed:
        session.print_note(f"warning: no status page: {failed}")
        return monitor
    if monitor.taken is None:
        session.print_note(f"status page: {address}")
    else:
        reach = "" if monitor.hidden else " Commands such as `status` and `lanes` still reach the daemon."
        session.print_note(f"warning: no status page: {monitor.taken}{reach}")
    if monitor.hidden is not None:
        session.print_note(f"warning: {monitor.hidden}")
    return monitor


def _report_end(session: CommandSession, daemon: Any, problem: Any, code: ExitCode) -> None:
    schedulers = {"projections": daemon.projection_scheduler().report(), "snapshots": daemon.checkpoint_scheduler().report()}
    report = {**daemon.status().report().to_dict(), **schedulers}
    if problem is not None:
        session.fail(problem, code, report)
    elif session.as_json:
        session.emit(report, "stopped", ok=code is ExitCode.OK)
    else:
        read = format_count(sum(source["records"] for source in report["sources"]), "record")
        applied = format_count(sum(lane["counts"]["applied"] for lane in report["lanes"]), "change")
        lanes, rejected = format_count(len(report["lanes"]), "lane"), daemon.supervisor().rejected_count
        more = f", {rejected:,} rejected (`replicator dlq list` shows them)" if rejected else ""
        session.print_note(f"stopped cleanly: {read} read, {applied} applied in {lanes}{more}")


# `replicator check`: the config, offline, all findings at once.


@command("check", "replicator check --env production")
def check(session: CommandSession) -> None:
    """Validate the config without connecting to anything.

    Prints all problems with file and line, not only the first one. `replicator doctor` checks the servers.
    """
    from replicator.wiring import projections
    from replicator.wiring.configuration import refuse_unusable

    loaded = session.loaded
    refuse_unusable(loaded)
    settings = loaded.settings
    summary = (
        f"{session.config}: ok, {format_count(len(settings.sources), 'source')}, "
        f"{format_count(len(settings.sinks), 'sink')}, "
        f"{format_count(len(settings.tables), 'table entry')}"
    )
    hints = list(projections.list_hints(loaded))
    lines = "".join(f"\n  {hint}" for hint in hints)
    findings = {"warnings": [w.as_dict() for w in loaded.warnings], "hints": [h.as_dict() for h in hints]}
    session.emit({**findings, "resolved": loaded.to_redacted()}, summary + lines)


# `replicator plan`: what will run.

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
    plans = [p for p in every if table is None or table in (p["table"], p["table"].rpartition(".")[2])]
    if table is not None and not plans:
        available = ", ".join(sorted({p["table"] for p in every})) or "none, the sources have no records"
        raise ConfigProblem(f"no lane has a source table {table!r}", next_step=f"Available: {available}.")
    sources = session.components.sources if table is None else {}
    logs = [f"event log {x.id} of source {name}" for name in sorted(sources) for x in sources[name].event_logs]
    summary = format_count(len(plans) + len(logs), "lane") + (
        f", with {format_count(len(logs), 'event log')}" if logs else ""
    )
    last = [*logs, summary, *([] if every else [NO_TABLE])]
    session.emit(plans, summary, text=lambda: _print_plans(plans, last, in_full=table is not None, sql=sql))


def _print_plans(plans: list[dict[str, Any]], last: list[str], *, in_full: bool, sql: bool) -> None:
    from replicator.domain.transform.rows import SOFT_DELETE_TEXT

    from .start import list_schema_lines

    for lane in plans:
        policy = [lane["policy"], *([f"late after {lane['watermark']}"] if lane["watermark"] else [])]
        soft_delete = f"{SOFT_DELETE_TEXT}, for {lane['retention'] or 'ever'}"
        policy += [soft_delete if text == SOFT_DELETE_TEXT else text for text in lane["shape"]]
        echo(f"{lane['table']} -> {lane['lane']}  policy {', '.join(policy)}  key ({', '.join(lane['keys'])})")
        if lane["problem"]:
            echo(f"    will be suspended: {lane['problem']}")
        if lane["dead_letters"]:
            echo(f"    {format_count(lane['dead_letters'], 'open dead letter')}")
        if lane["schema_changes"] != "evolve":
            echo(f"    schema changes: {lane['schema_changes']}")
        # By default only the schema that waits for acceptance.
        schemas = [one for one in lane["schemas"] or [] if in_full or one["state"] == "pending"]
        for line in list_schema_lines(schemas):
            echo(f"    schema {line}")
        for stage, text in lane["stages"].items() if sql else ():
            echo(f"  -- {stage}\n{text}\n")
    echo("\n".join(last))


# `replicator doctor`: connects to everything, and prints a next step for each problem.

GLYPHS = {"ok": "✓", "warning": "!", "error": "✗"}
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@command("doctor", "replicator doctor --connect http://localhost:8083")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--connect", metavar="URL", help="Also check the connectors of this Kafka Connect worker, such as http://HOST:8083."
)
def doctor(session: CommandSession, strict: bool, connect: str | None) -> int:
    """Check the servers, rights and settings that a run needs.

    Connects to broker, topics, connectors, source databases and targets, and prints a next step for each problem. With
    `engine: spark` it checks Java too. The exit code is 3 if it finds a problem.
    """
    from replicator.wiring.diagnosis import diagnose

    if connect is not None and not connect.startswith(("http://", "https://")):
        raise click.UsageError("--connect needs the URL of the worker's REST API: http://HOST:PORT.")
    diagnoses = list(diagnose(session.loaded, connect))
    bad = [d for d in diagnoses if d.severity == "error" or (strict and d.severity == "warning")]
    warnings = len([d for d in diagnoses if d.severity == "warning" and d not in bad])
    summary = f"{format_count(len(diagnoses), 'check')}, {format_count(len(bad), 'problem')}" + (
        f", {format_count(warnings, 'warning')} (!)" if warnings else ""
    )
    session.emit(list(map(asdict, diagnoses)), summary, ok=not bad, text=lambda: _print_diagnoses(diagnoses, summary))
    return int(ExitCode.ENVIRONMENT if bad else ExitCode.OK)


def _print_diagnoses(diagnoses: list[Any], summary: str) -> None:
    for one in diagnoses:
        glyph = GLYPHS[one.severity]
        # Into a pipe `echo` leaves the colour out.
        mark = glyph if os.environ.get("NO_COLOR") else click.style(glyph, fg=COLOURS[one.severity])
        click.echo(f"{mark} " + to_printable(f"{one.subject}: {one.sentence}"))
        if one.severity != "ok" and one.next_step:
            echo(f"    {one.next_step}")
    echo(summary)


# `replicator support-bundle`: collects diagnostics in a zip file.


@command("support-bundle", "replicator support-bundle support.zip")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--log",
    type=click.File("rb"),
    metavar="FILE",
    help="Add the last MiB of this log of the daemon (its stderr); - is stdin.",
)
def support_bundle(session: CommandSession, file: Path | None, log: IO[bytes] | None) -> None:
    """Collect diagnostics for a support request in a zip file.

    Writes FILE; by default its name contains the time. It has the config with masked secrets, versions, status, metrics,
    plan, the result of doctor, and counts of dead letters. It contains no rows and no records. If a part cannot be
    collected, the file has the reason instead.
    """
    from replicator.application.operations.support_bundle import write_bundle
    from replicator.wiring.diagnosis import list_parts

    path = file or Path(f"replicator-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    outcome = write_bundle(path, list_parts(session.loaded), session.loaded.list_secrets(), session.print_note, log)
    failed = {name: why for name, why in outcome.items() if why}
    summary = f"{path}: {format_count(len(outcome), 'part')}" + (f", {len(failed)} failed" if failed else "")
    lines = [summary, *(f"  {name}: {why}" for name, why in failed.items())]
    result = {"file": str(path), "parts": list(outcome), "failed": failed}
    session.emit(result, summary, text=lambda: echo("\n".join(lines)))


# `replicator stack`: the embedded servers.


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
    if follow and session.as_json:
        raise ConfigProblem("--follow and --json exclude each other", next_step="Use either --follow or --json.")
    lines = _load_stack(session).read_logs(service, follow=follow)
    if session.as_json:
        session.emit(list(lines), "logs of the stack")
        return
    for line in lines:
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


def _print_services(services: list[dict[str, Any]]) -> None:
    rows = [("service", "state", "pid", "listens on", "log")]
    for one in services:
        listens = " ".join(f"127.0.0.1:{port}" for port in one["ports"].values())
        rows.append((one["name"], str(one["state"]), str(one["pid"] or ""), listens, str(one["log"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for detail in (one["detail"] for one in services if one["detail"]):
        echo(detail)


for _command in (up, down, status, logs):
    stack.add_command(_command)
