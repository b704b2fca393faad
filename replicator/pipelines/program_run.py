"""Runs a pipeline inside the user's program."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from replicator.application.operations.plan import list_plans
from replicator.application.problem import Problem
from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ExitCode, Fatal
from replicator.settings import Loaded
from replicator.wiring.components import ConfiguredComponents
from replicator.wiring.daemon import build_daemon
from replicator.wiring.process_setup import log_to_stderr_by_default


class RunFailed(Fatal):
    """A failed run. It has the sentence and the next step that `replicator run` would print, its `exit_code`, and the
    `report` of `--json`."""

    def __init__(self, problem: Problem | None, code: ExitCode, report: dict[str, Any]) -> None:
        problem = problem or Problem(code, "The pipeline stopped.")
        super().__init__(problem.sentence, next_step=problem.next_step)
        self.exit_code = code
        self.report = report


def run_pipeline(
    loaded: Loaded,
    *,
    once: bool,
    stop: threading.Event | None,
    served: bool,
    files: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """See `Pipeline.run`. `files`: only these sources, and of each only these files and earlier ones of their tables."""
    log_to_stderr_by_default()
    for warning in loaded.warnings:
        warnings.warn(str(warning), stacklevel=3)
    daemon = build_daemon(loaded, files)
    if stop is not None:
        daemon.stop.override(stop)
    daemon.instance().acquire()
    try:
        with _stop_on_interrupt(daemon.stop()), _serve_page(daemon, served=served):
            supervisor = daemon.supervisor()
            code = supervisor.run(once=once)
    finally:
        daemon.instance().release()
    report: dict[str, Any] = daemon.status().report().to_dict()
    if code is not ExitCode.OK:
        raise RunFailed(supervisor.problem, code, report)
    for sentence in daemon.unmatched() if once else ():
        warnings.warn(sentence, stacklevel=3)
    return report


def plan_pipeline(loaded: Loaded, names: Mapping[tuple[str | int, ...], str], table: str | None) -> list[dict[str, Any]]:
    """See `Pipeline.plan`."""
    every = []
    for plan in list_plans(ConfiguredComponents(loaded)):
        settings = (s for name in loaded.settings.sources for s in loaded.settings.resolve_lanes(plan["table"], name))
        # Lanes from `tables` of the config have no flow.
        flow = next((names.get(s.at) for s in settings if f"{s.sink}.{s.into}" == plan["lane"]), None)
        every.append({"flow": flow, **plan})
    plans = [p for p in every if table is None or table in (p["table"], p["table"].rpartition(".")[2])]
    if table is not None and not plans:
        tables = ", ".join(sorted({p["table"] for p in every})) or "none yet"
        raise ConfigProblem(f"no lane has a source table {table!r}", next_step=f"The tables are: {tables}.")
    return plans


@contextmanager
def _serve_page(daemon: Any, *, served: bool) -> Iterator[None]:
    """Serve the status page, if it is configured and its port is free."""
    if not served:
        yield
        return
    monitor = daemon.monitor()
    try:
        monitor.start(daemon.views())
        failure = monitor.taken
    except EnvironmentProblem as failed:
        failure = failed
    if failure is not None:
        warnings.warn(f"no status page: {failure}", stacklevel=5)
    try:
        yield
    finally:
        monitor.close()


@contextmanager
def _stop_on_interrupt(stop: threading.Event) -> Iterator[None]:
    """The first interrupt requests an orderly end, the second is Python's own. Only the main thread gets interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
