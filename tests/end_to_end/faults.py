"""Faults of the daemon, the broker, a target and the connector, at random times of one load."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psutil
import psycopg

from adapters.stack.connect import NoAnswer
from replicator.domain.errors import EnvironmentProblem

from .connector_restart import restart_without_loss
from .daemon import Daemon, await_condition
from .stack import World
from .workload import Writer, insert_customer, insert_product, there_and_back

SECONDS_PER_KILL = 15.0
"""On average. The other faults are spread over the time of all kills."""
PATIENCE = 600.0
OPEN = (insert_customer, insert_product, there_and_back)
"""Changes of an open transaction. They block no other transaction."""


@dataclass
class Faults:
    """Causes each kind of fault in a thread, a given number of times."""

    world: World
    seed: int
    kills: int
    daemon: Daemon
    done: Counter[str] = field(default_factory=Counter)
    failed: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Returns after the last fault."""
        seconds, others = self.kills * SECONDS_PER_KILL, max(1, self.kills // 4)
        kinds = (
            (self.kill_daemon, self.kills, SECONDS_PER_KILL),
            (self.stall_broker, others, seconds / others),
            (self.restart_target, others, seconds / others),
            (self.restart_connector, others, seconds / others),
        )
        with ThreadPoolExecutor(len(kinds)) as pool:
            running = [pool.submit(self._repeat, *kind) for kind in kinds]
        for one in running:
            one.result()

    def _repeat(self, fault: Callable[[random.Random], None], times: int, seconds: float) -> None:
        """Causes one fault in each interval of `seconds`, at a random time."""
        chance, began = random.Random(f"{self.seed} {fault.__name__}"), time.monotonic()
        try:
            for number in range(times):
                moment = began + (number + chance.random()) * seconds
                if self.failed.wait(max(0.0, moment - time.monotonic())):
                    return
                fault(chance)
                self.done[fault.__name__] += 1
                print(f"{time.strftime('%X')} {fault.__name__} {number + 1}", flush=True)
        except BaseException:
            self.failed.set()
            raise

    def kill_daemon(self, chance: random.Random) -> None:
        assert self.daemon.alive, self.daemon.tail()
        self.daemon.kill()
        self.daemon = self.world.daemon()

    def stall_broker(self, chance: random.Random) -> None:
        broker = psutil.Process(self.world.stack.service("kafka").status().pid)
        broker.suspend()
        try:
            time.sleep(chance.uniform(5, 20))
        finally:
            broker.resume()

    def restart_target(self, chance: random.Random) -> None:
        """Kills the server, which recovers from its log."""
        self.world.stack.service("postgres-target").kill()
        time.sleep(chance.uniform(0, 8))
        self.world.stack.restart("postgres-target")

    def restart_connector(self, chance: random.Random) -> None:
        """Restarts the connector within a transaction that continues afterwards."""
        writer = Writer(self.world.source, chance.randrange(1_000, 1_000_000))
        with psycopg.connect(self.world.source) as connection, connection.cursor() as cursor:
            for change in OPEN:
                change(writer, cursor)
            time.sleep(chance.uniform(0.5, 3))
            await_condition(lambda: try_restart(self.world), "the connector was restarted", PATIENCE)
            time.sleep(chance.uniform(0, 8))  # The transaction ends before the connector reads again, or later.
            for change in OPEN:
                change(writer, cursor)


def try_restart(world: World) -> bool:
    """Restarts the connector as the docs describe. False if the worker refuses, for example while the broker stalls."""
    try:
        restart_without_loss(world)
    except (NoAnswer, EnvironmentProblem, OSError, AssertionError) as refused:
        print(f"refused: {refused}")
        return False
    return True


def keep_running(world: World) -> None:
    """Restarts a failed connector, like an operator."""
    try:
        state = world.stack.rest.state(world.connector)
    except NoAnswer:
        return
    if state is not None and state.failed:
        print(f"restarted again: {state.trace_head}")
        try_restart(world)
        time.sleep(2)  # Connect reports the old state for a moment.
