"""Scripted faults of a port: a call is refused, fails, or loses its answer."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

from replicator.domain.errors import Fatal, ReplicatorError, Retryable
from replicator.ports.sink import SinkFeatures


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
    """Any port with faults. `calls` lists the names of the called methods, those of a sink's features included.

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
        assert name in self._list_methods(), f"the port has no method {name}"
        self._script[name].extend(actions)

    def __getattr__(self, name: str) -> Any:
        return self.wrap(name, getattr(self._port, name))

    def _list_methods(self) -> set[str]:
        features = getattr(self._port, "features", None)
        there = {} if features is None else {f.name: value for f in fields(features) if (value := getattr(features, f.name))}
        return {*dir(self._port), *there, *(name for value in there.values() for name in dir(value))}

    def wrap(self, name: str, value: Any) -> Any:
        """A method with the faults of its name. Features with such methods; any other value as it is."""
        if isinstance(value, SinkFeatures):
            return replace(value, **{f.name: self._wrap_feature(f.name, getattr(value, f.name)) for f in fields(value)})
        return self._wrap_method(name, value) if callable(value) else value

    def _wrap_feature(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | frozenset):
            return value
        return self._wrap_method(name, value) if callable(value) else _FaultyPart(self, value)

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


class _FaultyPart:
    """An object of a sink's features, with the faults of the sink."""

    def __init__(self, faulty: Faulty, part: Any) -> None:
        self._faulty = faulty
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return self._faulty.wrap(name, getattr(self._part, name))
