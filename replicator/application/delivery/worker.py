"""One thread per sink: takes what has gathered, applies it, answers questions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from replicator.application.problem import Stopped, to_problem
from replicator.application.runtime_context import RuntimeContext
from replicator.domain.errors import Retryable
from replicator.domain.policy.plan import LaneState
from replicator.ports.frames import F, Lane, Stop
from replicator.ports.sink import Hurries, Sink

from .bounded_queue import BoundedQueue, PublishRequest, WriteRequest
from .bulk_load import SPILL_BYTES, make_bulk_loader
from .delivery import Delivery
from .retry import Backoff

log = structlog.get_logger(__name__)
T = TypeVar("T")

ANSWER_SECONDS = 0.2
"""How long writes wait for questions."""


class Worker(Generic[F]):
    """Drives one sink from one thread of its own; every call of the sink happens there.

    An error that concerns the whole program ends the worker and goes to `RuntimeContext.fail`. `spill_folder`: a folder in
    which rows of new targets wait for the end of the stream, where nobody watches for what is new.
    """

    def __init__(self, name: str, sink: Sink[F], shared: RuntimeContext[F], spill_folder: Path | None = None) -> None:
        self.name = name
        self._sink = sink
        self._laying = make_bulk_loader(spill_folder, sink, shared.engine)
        self._delivery = Delivery(name, sink, shared, self._laying)
        self._lanes = shared.lanes
        self._silence = shared.idle_timeout
        self._options = shared.options
        self._abandon = shared.abandon
        self._failed = shared.fail
        self._slot: BoundedQueue[F] = BoundedQueue(self._get_limit, shared.options.gather)
        self._ended = False
        self._thread = threading.Thread(target=self._run_loop, name=f"sink-{name}", daemon=True)

    @property
    def is_atomic(self) -> bool:
        """True when everything that the sink is given at once becomes visible at once."""
        return self._sink.capabilities.atomic_across_lanes

    def _get_limit(self) -> int:
        """The bytes that gather before they are taken."""
        most = self._options.handover_bytes
        return most if self._laying is None or self._laying.ended else min(most, SPILL_BYTES)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def has_room(self) -> bool:
        """True when `hand_over` would not wait."""
        return self._slot.has_room()

    def wait_for_room(self, given_up: Callable[[], bool], stop: Stop) -> bool:
        """Wait until `hand_over` would not; False when `given_up` says so meanwhile, or the end is asked for."""
        return self._slot.wait_for_room(given_up, stop)

    def hand_over(self, items: Sequence[WriteRequest[F]], stop: Stop) -> None:
        """Give writes, in order; waits while the slot is full (back-pressure). Stopped when that will not change."""
        self._slot.put(items, stop)

    def put_publish_request(self, source: str, request: PublishRequest) -> None:
        """Have published what is complete with the writes that were handed over last; does not wait."""
        self._slot.put_publish_request(source, request)

    def ask(self, question: Callable[[Sink[F]], T]) -> Future[T]:
        """Have `question` answered by the sink, on the worker's thread; before the writes that wait, where it is not one of
        many.

        Repeated while the sink raises Retryable, which its lanes show meanwhile, and `RuntimeContext.idle_timeout` allows
        it; any other error is the future's.
        """
        answer: Future[T] = Future()
        self._slot.ask(lambda: self._answer_question(question, answer))
        return answer

    def get_state(self, lane: Lane) -> LaneState | None:
        """Where a lane stands; for questions."""
        return self._sink.state(lane) if self._laying is None else self._laying.get_state(lane)

    def finish(self) -> None:
        """Take nothing more; end once everything taken is applied."""
        self._slot.close()

    def hurry(self) -> None:
        """The program is to end: the sink is not to wait for an answer that will not come."""
        if isinstance(self._sink, Hurries):
            self._sink.hurry()

    def join(self, timeout: float | None) -> bool:
        """Wait for the end; False when it has not come in time, and at once for one that has not begun."""
        if self._thread.ident is None:
            return False
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def close_sink(self) -> None:
        """Close the sink; only once the worker has ended."""
        self._sink.close()

    def _run_loop(self) -> None:
        try:
            while (taken := self._slot.take(self._delivery.due_in)) is not None:
                self._ended = self._abandon.is_set()
                self._answer_questions(taken.questions)
                if not self._ended:
                    self._delivery.deliver(taken.items, taken.publish_requests)
            self._delivery.finish()
        except Stopped:
            log.info("worker stopped", sink=self.name)
        except BaseException as error:
            self._failed(error)
        finally:
            self._slot.close()
            self._cancel_questions()

    def _answer_questions(self, questions: Sequence[Callable[[], None]]) -> None:
        """Answer questions for a while, and the rest after the writes that wait: a thousand new lanes ask as many, and the
        other lanes are not to stand still meanwhile."""
        deadline = time.monotonic() + ANSWER_SECONDS
        for at, question in enumerate(questions):
            if at and time.monotonic() > deadline and not self._ended:
                self._slot.put_back(questions[at:])
                return
            question()

    def _cancel_questions(self) -> None:
        """Questions that nobody will answer any more end as Stopped instead of keeping their askers waiting."""
        self._ended = True
        while (taken := self._slot.take()) is not None:
            for question in taken.questions:
                question()

    def _answer_question(self, question: Callable[[Sink[F]], T], answer: Future[T]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(self._ask_with_retry(question))
        except Exception as error:
            answer.set_exception(error)
        except BaseException as error:
            answer.set_exception(error)
            raise

    def _ask_with_retry(self, question: Callable[[Sink[F]], T]) -> T:
        backoff = Backoff(self._options.first_delay, self._options.longest_delay)
        while not self._ended:
            try:
                with self._lanes.note_sink_call(self.name, "answering a question"):
                    found = question(self._sink)
                if backoff.attempts:
                    self._lanes.set_sink_outage(self.name, None)
                return found
            except Retryable as error:
                self._lanes.set_sink_outage(self.name, to_problem(error))
                log.warning("sink away", sink=self.name, sentence=error.sentence, attempt=backoff.attempts)
                self._silence.record_failure("Sink", self.name, error.sentence)
                if backoff.wait(self._abandon):
                    break
        raise Stopped
