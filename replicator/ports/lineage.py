"""The port of lineage: the service that records from which tables a table was computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Lineage(Protocol):
    """Receives OpenLineage run events, as plain values."""

    def send_event(self, event: Mapping[str, Any]) -> None:
        """Send an event. `Retryable` or `EnvironmentProblem` if that fails."""
