"""Limits the number of cases in a run: a part by default, all with REPLICATOR_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

LONG = bool(os.environ.get("REPLICATOR_LONG"))


def select_evenly(cases: Sequence[T], most: int) -> Sequence[T]:
    """At most `most` cases by default, evenly spread, with the first and the last."""
    if LONG or len(cases) <= most:
        return cases
    return [cases[number * (len(cases) - 1) // (most - 1)] for number in range(most)]


def select_every_nth(step: int, cases: Iterable[T]) -> Iterable[T]:
    """Every `step`-th case by default, starting with the first."""
    return islice(cases, None, None, 1 if LONG else step)


def check_seeds(seeds: Iterable[int], check: Callable[[int], None]) -> None:
    """Checks every seed. An error contains its seed."""
    for seed in seeds:
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
