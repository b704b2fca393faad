"""Runs an action of another writer at a chosen moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run_before(owner: Any, method: str, action: Callable[[], object]) -> None:
    """Runs `action` once, just before the next call of that method of an object or a class."""
    call = getattr(owner, method)

    def run(*args: Any, **options: Any) -> Any:
        setattr(owner, method, call)
        action()
        return call(*args, **options)

    setattr(owner, method, run)
