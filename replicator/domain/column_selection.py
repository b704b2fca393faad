"""Column lists of the configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """Some columns by name: these, or all but these."""

    names: tuple[str, ...]
    excluded: bool = False

    def __contains__(self, name: str) -> bool:
        return (name in self.names) != self.excluded
