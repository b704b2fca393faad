"""Names of adapters that are installed besides the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plugins:
    """What the entry points of installed packages offer: transports, formats, sink kinds.

    Their own options pass unchecked through the settings; the adapter's options model checks them.
    """

    transports: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()


NO_PLUGINS = Plugins()
