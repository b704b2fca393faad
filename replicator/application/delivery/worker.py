"""The worker of a sink: one thread that applies queued writes and runs other calls of the sink."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from replicator.application.options import Backoff
from replicator.application.problem import Stopped, to_problem
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import Retryable
from replicator.domain.policy.plan import LaneState
from replicator.ports.frames import F, Lane
from replicator.ports.sink import Sink

from .bounded_queue import BoundedQueue
from .bulk_load import SPILL_BYTES, make_bulk_loader
from .delivery import Delivery

log = structlog.get_logger(__name__)
T = TypeVar("T")

CALL_SECONDS = 0.2
"""The longest time that writes wait for other calls."""


class Worker(Generic[F]):
    """Drives one sink from a thread of its own. Every call of the sink happens in that thread.

    An error that concerns the whole program ends the worker and goes to `RuntimeContext.fail`.

    - `queue`: takes writes. Sources wait while it is full (back-pressure).
    - `spill_folder`: a folder for the rows of new targets until the stream ends; None in a run whose rows should
      be visible early.
    """

    def __init__(self, name: str, sink: Sink[F], runtime: RuntimeContext[F], spill_folder: Path | None = None) -> None:
        self.name = name
        self._sink = sink
        self._bulk_loader = make_bulk_loader(spill_folder, sink, runtime.engine)
        self._delivery = Delivery(name, sink, runtime, self._bulk_loader)
        self._lanes = runtime.lanes
        self._idle_timeout = runtime.idle_timeout
        self._options = runtime.options
        self._abandon = runtime.abandon
        self._fail = runtime.fail
        self.queue: BoundedQueue[F] = BoundedQueue(self._get_limit, runtime.options.gather)
        self._ended = False
        self._thread = threading.Thread(target=self._run_loop, name=f"sink-{name}", daemon=True)

    @property
    def is_atomic(self) -> bool:
        """True if all writes of one call to the sink become visible together."""
        return self._sink.features.atomic_across_lanes

    def _get_limit(self) -> int:
        """The bytes at which the queue is full."""
        most = self._options.handover_bytes
        return most if self._bulk_loader is None or self._bulk_loader.ended else min(most, SPILL_BYTES)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, call: Callable[[Sink[F]], T]) -> Future[T]:
        """Run `call` with the sink on the worker's thread, before the queued writes unless there are many calls.

        It is repeated while the sink raises Retryable and `RuntimeContext.idle_timeout` allows it; its lanes
        show the outage meanwhile. Any other error ends the future.
        """
        answer: Future[T] = Future()

        def run_call() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(self._run_call(call))
            except Exception as error:
                answer.set_exception(error)
            except BaseException as error:
                answer.set_exception(error)
                raise

        self.queue.submit(run_call)
        return answer

    def get_state(self, lane: Lane) -> LaneState | None:
        """The state of a lane, rows in spill files included. For use in calls."""
        return self._sink.state(lane) if self._bulk_loader is None else self._bulk_loader.get_state(lane)

    def finish(self) -> None:
        """Accept no more writes. The thread ends once all queued writes are applied."""
        self.queue.close()

    def hurry(self) -> None:
        """Interrupt a sink call whose answer will not arrive, since the program is ending."""
        if (hurry := self._sink.features.hurry) is not None:
            hurry()

    def join(self, timeout: float | None) -> bool:
        """Wait for the thread to end. False if it has not ended in time; False at once if it never started."""
        if self._thread.ident is None:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close_sink(self) -> None:
        """Close the sink, once the thread has ended or `join` has given up."""
        self._sink.close()

    def _run_loop(self) -> None:
        try:
            while (dequeued := self.queue.take(self._delivery.due_in)) is not None:
                self._ended = self._abandon.is_set()
                self._run_calls(dequeued.calls)
                if not self._ended:
                    self._delivery.deliver(dequeued.requests, dequeued.publish_requests)
            self._delivery.finish()
        except Stopped:
            log.info("worker stopped", sink=self.name)
        except BaseException as error:
            self._fail(error)
        finally:
            self.queue.close()
            self._ended = True  # Ends the open calls with Stopped, so that their callers do not wait for ever.
            while (dequeued := self.queue.take()) is not None:
                for call in dequeued.calls:
                    call()

    def _run_calls(self, calls: Sequence[Callable[[], None]]) -> None:
        """Run calls for a while, and the rest after the queued writes.

        A thousand new lanes make as many calls; the other lanes must not stand still meanwhile.
        """
        deadline = time.monotonic() + CALL_SECONDS
        for at, call in enumerate(calls):
            if at and time.monotonic() > deadline and not self._ended:
                self.queue.put_back(calls[at:])
                return
            call()

    def _run_call(self, call: Callable[[Sink[F]], T]) -> T:
        backoff = Backoff(self._options.first_delay, self._options.longest_delay)
        while not self._ended:
            try:
                with self._lanes.note_sink_call(self.name, "running a call"):
                    result = call(self._sink)
                if backoff.attempts:
                    self._lanes.set_sink_outage(self.name, None)
                return result
            except Retryable as error:
                self._lanes.set_sink_outage(self.name, to_problem(error))
                log.warning("sink away", sink=self.name, sentence=error.sentence, attempt=backoff.attempts)
                self._idle_timeout.record_failure("Sink", self.name, error.sentence)
                if backoff.wait(self._abandon):
                    break
        raise Stopped
