"""The port to where it is told which tables were computed from which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Lineage(Protocol):
    """Takes OpenLineage run events, as plain values."""

    def send_event(self, event: Mapping[str, Any]) -> None:
        """Hand an event on. `Retryable` or `EnvironmentProblem` where it cannot be."""
