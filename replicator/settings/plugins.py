"""Names of adapters that are installed besides the built-in ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replicator.ports.diagnosis import OptionsCheck


@dataclass(frozen=True, slots=True)
class Plugins:
    """What the entry points of installed packages offer: transports, formats, kinds of sinks and
    of stores of dead letters, and by engine what judges the
    names of its options.

    Other options of theirs pass unchecked through the settings; the adapter's options model checks them.
    """

    transports: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    dead_letters: frozenset[str] = frozenset()
    engine_options: Mapping[str, OptionsCheck] = field(default_factory=dict)


NO_PLUGINS = Plugins()
