"""Names of adapters that are installed besides the built-in ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from replicator.ports.runtime import OptionsCheck


@dataclass(frozen=True, slots=True)
class Plugins:
    """The entry points of installed packages: transports, formats, kinds of sinks and of stores of dead letters. Also, by
    engine, the check of its options' names.

    Other options of adapters pass unchecked through the settings; the adapter's options model checks them.
    """

    transports: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    dead_letters: frozenset[str] = frozenset()
    engine_options: Mapping[str, OptionsCheck] = field(default_factory=dict)


NO_PLUGINS = Plugins()
