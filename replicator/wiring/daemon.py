"""The daemon: its page with views and commands, and the container of its parts."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec
from dependency_injector import providers

from replicator.application.operations.checkpoint_schedule import CheckpointScheduler, build_checkpoint_scheduler
from replicator.application.operations.diff_runs import report_runs
from replicator.application.operations.lanes import Control
from replicator.application.operations.refresh import ProjectionScheduler
from replicator.application.operations.status import StatusReporter
from replicator.application.operations.table_swap import swap_from_text
from replicator.application.problem import Stopped
from replicator.domain.errors import ACCEPT_MISSING, ConfigProblem, EnvironmentProblem
from replicator.ports.runtime import Server, Views
from replicator.settings import Loaded
from replicator.settings.plugins import load_adapter

from . import adapters, backfill, build, projections
from .build import digest_lane
from .components import ConfiguredComponents
from .container import Container, PipelineSetup
from .daemon_client import (
    ANSWER_SECONDS,
    FILE,
    PageAddress,
    get_plain_token,
    get_timeout,
    parse_position,
    resolve_state_folder,
)

ANY_PORT = "127.0.0.1:0"


class DaemonPage:
    """`ports.runtime.Server`: the page at `http.address`.

    If that address is in use, the page gets a free port of this machine, so that commands still reach the daemon.
    `taken` is the reason for the other port. `hidden` is the reason why commands cannot find it there.
    """

    def __init__(self, loaded: Loaded, telemetry: Any) -> None:
        self._options, self._telemetry = adapters.list_options(loaded.settings.http), telemetry
        self._path = adapters.get_state_folder(loaded) / FILE
        self._monitor: Server[Views] | None = None
        self.taken: EnvironmentProblem | None = None
        self.hidden: EnvironmentProblem | None = None

    def start(self, views: Views) -> str:
        """Call it while the lock of the instance is held."""
        options = self._options
        try:
            url = self._start_monitor(options, views)
        except EnvironmentProblem as problem:
            self.taken = problem
            options = {"address": ANY_PORT, "token": secrets.token_urlsafe(32)}
            url = self._start_monitor(options, views)
        address = PageAddress(url, get_plain_token(options.get("token")), os.getpid())
        try:
            # Without this file, commands use `http.address`.
            self._path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(address))
        except OSError as error:
            if url != f"http://{self._options['address']}":
                self.hidden = EnvironmentProblem(
                    f"Commands such as `status` do not find the daemon: {self._path} cannot be written ({error.strerror})",
                    next_step=f"Let user {os.geteuid()} write there, and restart the daemon.",
                )
        return url

    def _start_monitor(self, options: Mapping[str, Any], views: Views) -> str:
        self._monitor = load_adapter("replicator.monitors", "page")(options, self._telemetry)
        return self._monitor.start(views)

    def close(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        if self._monitor is not None:
            self._monitor.close()


ALIVE_SECONDS = 60.0
HEALTHY_STATUSES = ("running", "catching_up", "starting")


def build_views(
    loaded: Loaded,
    status: StatusReporter[Any],
    control: Control[Any],
    pulse: Callable[[], float],
    *,
    projections: ProjectionScheduler,
    checkpoints: CheckpointScheduler,
) -> Views:
    """The views and commands of the page. `pulse`: the time (monotonic) of the last activity of a pipeline."""
    digests_at_start = _hash_config_files(loaded)

    def report() -> dict[str, Any]:
        current = status.report().to_dict()
        unready = [
            f"lane {lane['id']} is {lane['status']}" for lane in current["lanes"] if lane["status"] not in HEALTHY_STATUSES
        ]
        unready += [] if current["lanes"] else ["no lane has begun"]
        state = {"running": True, "ready": not unready, "unready": unready}
        now = _hash_config_files(loaded)
        config = {"files": list(now), "changed": [file for file, digest in now.items() if digest != digests_at_start[file]]}
        more = {"config": config, "projections": projections.report(), "snapshots": checkpoints.report()}
        more["comparisons"] = report_runs(adapters.get_state_folder(loaded), [lane["id"] for lane in current["lanes"]])
        return {"pipeline": loaded.settings.pipeline, "state": resolve_state_folder(loaded), **state, **current, **more}

    def command(action: str, lane: str, until: str | None) -> None:
        commands: Mapping[str, Callable[[], Future[None] | None]] = {
            "pause": lambda: control.pause(lane),
            "resume": lambda: control.resume(lane, parse_number(until) if until else None),
            "resync": lambda: control.resync(lane, accept_missing=is_missing_accepted(until)),
            "skip": lambda: control.skip(lane, parse_position(until) if until else None),
            "swap": lambda: control.swap(lane, _parse_swap(loaded, lane, until or "")),
        }
        if action not in commands:
            raise ConfigProblem(f"there is no action {action!r}", next_step=f"There are: {', '.join(commands)}.")
        await_answer(commands[action], lane, get_timeout(action))

    return Views(report, lambda: time.monotonic() - pulse() < ALIVE_SECONDS, command)


def _hash_config_files(loaded: Loaded) -> dict[str, str]:
    """A digest of each config file; empty for an unreadable one."""
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "" for file in loaded.files}


def await_answer(command: Callable[[], Future[None] | None], lane: str, seconds: float = ANSWER_SECONDS) -> None:
    """Wait for the result of a command. Raises its error, or EnvironmentProblem without an answer in time."""
    try:
        outcome = command()
        if outcome is not None:
            outcome.result(seconds)
    except TimeoutError:
        raise EnvironmentProblem(
            f"Lane {lane} has not answered within {seconds:.0f} s. The command runs as soon as it does.",
            next_step="`replicator status` shows what it waits for.",
        ) from None
    except Stopped:
        raise EnvironmentProblem("The daemon is ending.", next_step="Repeat the command when it has ended.") from None


def _parse_swap(loaded: Loaded, lane: str, words: str) -> str:
    """The target in a `table_swap.SwapRequest`. ConfigProblem if this process has another configuration."""
    swap = swap_from_text(words)
    for one in loaded.settings.resolve_lanes(swap.table):
        if f"{one.sink}.{one.into}" == lane and digest_lane(loaded, one) == swap.digest:
            return swap.into
    raise ConfigProblem(
        f"the daemon runs with another configuration than the command that rebuilt {lane}",
        next_step="Stop the daemon, repeat the command, and start the daemon again.",
    )


def parse_number(text: str) -> int:
    """The number of a schema."""
    if not text.isdecimal():
        raise ConfigProblem(
            f"{text!r} is not the number of a schema", next_step="`replicator schema history TABLE` shows the numbers."
        )
    return int(text)


def is_missing_accepted(text: str | None) -> bool:
    """True if a resync accepts that rows will be missing."""
    if text not in (None, "", ACCEPT_MISSING):
        raise ConfigProblem(f"a resync cannot accept {text!r}", next_step=f"It can accept: {ACCEPT_MISSING}.")
    return text == ACCEPT_MISSING


class DaemonContainer(Container):
    """A pipeline that runs as a daemon: with a page, commands for lanes, and schedulers."""

    control = providers.Singleton(Control, Container.lanes, Container.pipelines)
    monitor = providers.Singleton(DaemonPage, Container.loaded, Container.telemetry)
    projection_scheduler = providers.Singleton(projections.build_scheduler, Container.loaded, Container.lanes)
    checkpoint_scheduler = providers.Singleton(
        build_checkpoint_scheduler,
        providers.Factory(ConfiguredComponents, Container.loaded),
        Container.lanes,
        Container.workers,
    )
    diff_scheduler = providers.Singleton(backfill.build_scheduler, Container.loaded, Container.lanes, Container.telemetry)
    views = providers.Singleton(
        build_views,
        Container.loaded,
        Container.status,
        control,
        providers.Callable(build.find_heartbeat, Container.pipelines).provider,
        projections=projection_scheduler,
        checkpoints=checkpoint_scheduler,
    )


def build_daemon(loaded: Loaded, files: Mapping[str, Sequence[str]] | None = None) -> DaemonContainer:
    """The daemon of a configuration. `files`: see `PipelineSetup.from_config`."""
    return DaemonContainer(loaded=loaded, setup=providers.Object(PipelineSetup.from_config(loaded, files)))
