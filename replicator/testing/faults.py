"""Scripted faults of a port: a call is refused, fails, or loses its answer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from replicator.domain.errors import Fatal, ReplicatorError, Retryable


@dataclass(frozen=True)
class RefuseCall:
    """The call fails permanently, and does nothing."""

    error: ReplicatorError = field(default_factory=lambda: Fatal("refused by a scripted fault"))


@dataclass(frozen=True)
class FailBefore:
    """The call fails before it does anything."""

    error: Exception = field(default_factory=lambda: Retryable("failed before, by a scripted fault"))


@dataclass(frozen=True)
class FailAfterApply:
    """The call does everything, but its answer is lost."""

    error: Exception = field(default_factory=lambda: Retryable("failed after, by a scripted fault"))


@dataclass(frozen=True)
class PassCall:
    """The call is not changed."""


Action: TypeAlias = RefuseCall | FailBefore | FailAfterApply | PassCall


class Faulty:
    """Any port with faults. `calls` lists the names of the called methods.

    `Faulty(sink, {"apply": [PassCall(), FailAfterApply()]})` passes the first `apply`, loses the answer of the
    second, and passes all later calls.
    """

    def __init__(self, port: Any, script: Mapping[str, Iterable[Action]] | None = None) -> None:
        self._port = port
        self._script = defaultdict[str, deque[Action]](deque)
        self.calls: list[str] = []
        for name, actions in (script or {}).items():
            self.schedule(name, *actions)

    def schedule(self, name: str, *actions: Action) -> None:
        """Add faults for the next calls of a method. Fails if the port has no such method."""
        assert hasattr(self._port, name), f"the port has no method {name}"
        self._script[name].extend(actions)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._port, name)
        return self._wrap_method(name, attribute) if callable(attribute) else attribute

    def _wrap_method(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            waiting = self._script[name]
            action = waiting.popleft() if waiting else PassCall()
            if isinstance(action, RefuseCall | FailBefore):
                raise action.error
            result = method(*args, **kwargs)
            if isinstance(action, FailAfterApply):
                raise action.error
            return result

        return call
