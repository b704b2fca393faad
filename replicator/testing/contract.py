"""What the published contract suites share: examples, seeds, and the way to relax a test.

An adapter's author inherits a suite and gives it one factory. A test of the suite may only be replaced on purpose:

    class TestMySink(SinkContract):
        def new_target(self): ...

        @overrides_contract(reason="the service has no transactions across tables")
        def test_apply_is_atomic_across_lanes(self): ...
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")

EXAMPLES = int(os.environ.get("REPLICATOR_EXAMPLES", "25"))
"""How many random histories each property test tries."""

SEED = int(os.environ.get("REPLICATOR_SEED", "0"))
"""Where the random histories begin; the same seed tries the same histories."""

OVERRIDE_REASON = "__contract_override_reason__"


def overrides_contract(*, reason: str) -> Callable[[C], C]:
    """Mark a method that replaces a test of a contract suite; `reason` says why the adapter cannot pass it as it is."""
    if not reason.strip():
        raise ValueError("a test of a contract is relaxed with a reason or not at all")

    def mark(method: C) -> C:
        setattr(method, OVERRIDE_REASON, reason)
        return method

    return mark


class Contract:
    """Base of the suites. A subclass that replaces a test without `overrides_contract` is refused when it is defined.

    `one_in`: of so many random histories the suite tries one, for an adapter that takes seconds for each.
    """

    one_in = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(f"{__package__}."):
            return
        for name, _ in _list_tests(*cls.__mro__[1:]):
            own = vars(cls).get(name)
            if own is not None and not hasattr(own, OVERRIDE_REASON):
                raise TypeError(f"{cls.__name__}.{name} replaces a test of a contract; mark it with overrides_contract")

    def sample_cases(self, cases: Iterable[T]) -> list[T]:
        """Of these cases those that a run of the suite tries: all, or one in three where each takes seconds. Which, the seed
        says; with REPLICATOR_LONG=1 it is all."""
        every = list(cases)
        return every if self.one_in == 1 or os.environ.get("REPLICATOR_LONG") else every[SEED % 3 :: 3]

    def for_all(self, share: int = 1, /, **strategies: Any) -> Callable[[Callable[..., None]], None]:
        """As the function `for_all`, for as many inputs as the suite can take; of which one in `share`."""
        return for_all(max(1, EXAMPLES // self.one_in // share), **strategies)


def _list_tests(*classes: type) -> Iterator[tuple[str, Any]]:
    for cls in classes:
        yield from ((name, value) for name, value in vars(cls).items() if name.startswith("test_"))


def for_all(examples: int = EXAMPLES, /, **strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Run a check for so many random inputs, now: `@for_all(history=histories())` above a function with that parameter.

    Unlike a decorated test this can be inherited by several suites. The seed and the failing input are printed.
    """

    def run(check: Callable[..., None]) -> None:
        settings = hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        print(f"REPLICATOR_SEED={SEED} REPLICATOR_EXAMPLES={EXAMPLES} examples={examples}")  # noqa: T201
        hypothesis.seed(SEED)(settings(hypothesis.given(**strategies)(check)))()

    return run


def require(condition: bool, reason: str) -> None:
    """Skip the running test unless the adapter says it can do this."""
    if not condition:
        pytest.skip(reason)
