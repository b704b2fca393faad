"""Shared parts of the published contract suites: number of examples, seeds, and how to relax a test.

The author of an adapter inherits a suite and defines its factories. Replacing a test of the suite needs a reason:

    class TestMySink(SinkContract):
        def new_target(self): ...

        @overrides_contract(reason="the service has no transactions across tables")
        def test_apply_is_atomic_across_lanes(self): ...
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import HealthCheck

from replicator.ports.engine import Engine

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")

EXAMPLES = int(os.environ.get("REPLICATOR_EXAMPLES", "25"))
"""The number of random histories per property test. The empty one, which comes first, is not counted."""

SECONDS = float(os.environ.get("REPLICATOR_SECONDS", "0"))
"""How long a property test goes on after them, with histories of further seeds."""

SEED = int(os.environ.get("REPLICATOR_SEED", "0"))
"""The seed of the random histories. The same seed gives the same histories."""

LATER = 1_000_003
"""Between the seeds of one property test."""

OVERRIDE_REASON = "__contract_override_reason__"


def overrides_contract(*, reason: str) -> Callable[[C], C]:
    """Mark a method that replaces a test of a contract suite. `reason`: why the adapter cannot pass the original."""
    if not reason.strip():
        raise ValueError("a test of a contract is relaxed with a reason or not at all")

    def mark(method: C) -> C:
        setattr(method, OVERRIDE_REASON, reason)
        return method

    return mark


class Contract:
    """Base of the suites. A subclass that replaces a test without `overrides_contract` raises TypeError at its
    definition.

    `one_in`: the suite runs one of this number of random histories, for adapters that need seconds for each.
    """

    one_in = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(f"{__package__}."):
            return
        for name in [name for base in cls.__mro__[1:] for name in vars(base) if name.startswith("test_")]:
            own = vars(cls).get(name)
            if own is not None and not hasattr(own, OVERRIDE_REASON):
                raise TypeError(f"{cls.__name__}.{name} replaces a test of a contract; mark it with overrides_contract")

    def sample_cases(self, cases: Iterable[T]) -> list[T]:
        """The cases for this run: all, or every third if each needs seconds (`one_in`). The seed selects which.

        With REPLICATOR_LONG=1 it is always all.
        """
        every = list(cases)
        return every if self.one_in == 1 or os.environ.get("REPLICATOR_LONG") else every[SEED % 3 :: 3]

    def for_all(self, share: int = 1, /, **strategies: Any) -> Callable[[Callable[..., None]], None]:
        """Like the function `for_all`, with as many inputs as `one_in` allows, divided by `share`."""
        return for_all(max(1, EXAMPLES // self.one_in // share), **strategies)


class FrameContract(Contract):
    """Base of the suites whose tests use an engine. An adapter defines `new_engine`, and the two conversions if the
    frames of the engine are no `pyarrow.Table`."""

    def new_engine(self) -> Engine[Any]:
        """An engine whose frames the adapter accepts."""
        raise NotImplementedError

    def to_frame(self, frame: pa.Table) -> Any:
        """A `pyarrow.Table` as a frame of the engine."""
        return frame

    def to_arrow(self, frame: Any) -> pa.Table:
        """A frame of the engine as a `pyarrow.Table`, rows in order."""
        return frame


def for_all(examples: int = EXAMPLES, /, **strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Run a check for `examples` random inputs, and for more until `SECONDS` are over:
    `@for_all(history=histories())` above a function with that parameter.

    Unlike a decorated test, several suites can inherit it. The seed, the number of inputs and the failing one are
    printed.
    """

    def run(check: Callable[..., None]) -> None:
        began, tried = time.monotonic(), 0

        @wraps(check)
        def count_and_check(**drawn: Any) -> None:
            nonlocal tried
            tried += 1
            check(**drawn)

        try:
            for number in itertools.count():
                settings = hypothesis.settings(
                    # The first input is always the simplest one, such as an empty history.
                    max_examples=1 + (examples << min(number, 10)),
                    deadline=None,
                    database=None,
                    print_blob=False,
                    suppress_health_check=list(HealthCheck),
                )
                hypothesis.seed(SEED + number * LATER)(settings(hypothesis.given(**strategies)(count_and_check)))()
                if time.monotonic() - began >= SECONDS:
                    break
        finally:
            print(f"REPLICATOR_SEED={SEED} tried={tried}")  # noqa: T201

    return run


def require(condition: bool, reason: str) -> None:
    """Skip the running test unless the adapter has this capability."""
    if not condition:
        pytest.skip(reason)
