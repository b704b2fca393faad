"""`replicator run`: the daemon."""

from __future__ import annotations

import math
import os
import signal
import threading
from typing import Any

import click

from replicator.domain.errors import EnvironmentProblem, ExitCode
from replicator.domain.plain_values import format_count

from .session import CommandSession, command

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
    from replicator.wiring.file_limits import raise_limit
    from replicator.wiring.logs import configure_logs
    from replicator.wiring.memory import tune_collector

    from .progress import log_progress

    configure_logs(session.verbosity)
    raise_limit()
    if engine:
        session.overrides += (f"engine={engine}",)
    daemon = _build_daemon(session)
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


def _build_daemon(session: CommandSession) -> Any:
    from replicator.wiring.container import Container

    return Container(loaded=session.loaded)


def handle_signals(stop: threading.Event) -> None:
    """Let the first SIGTERM, SIGINT or SIGHUP (a closed terminal) end the program cleanly, and the second one at once.

    Under `nohup` a SIGHUP ends nothing. It logs a warning, because it does not reload the config.
    """

    def ask(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signal.signal(signal.SIGHUP, _log_sighup if under_nohup else ask)


def _log_sighup(_number: int, _frame: object) -> None:
    import structlog

    log = structlog.get_logger(__name__)
    log.warning("SIGHUP does not reload the config", next_step="Restart the daemon to use a changed config.")


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
    beside = {"projections": daemon.projection_scheduler().report(), "snapshots": daemon.checkpoint_scheduler().report()}
    report = {**daemon.status().report().to_dict(), **beside}
    if problem is not None:
        session.fail(problem, code, report)
    elif session.as_json:
        session.emit(report, "stopped", ok=code is ExitCode.OK)
    else:
        session.print_note(_describe_figures(report, daemon.supervisor().rejected_count))


def _describe_figures(report: dict[str, Any], rejected: int) -> str:
    applied = sum(lane["counts"]["applied"] for lane in report["lanes"])
    records = sum(source["records"] for source in report["sources"])
    figures = (
        f"{format_count(records, 'record')} read, {format_count(applied, 'change')} applied in "
        f"{format_count(len(report['lanes']), 'lane')}"
    )
    text = f"stopped cleanly: {figures}"
    return f"{text}, {rejected:,} rejected (`replicator dlq list` shows them)" if rejected else text
