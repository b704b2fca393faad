"""Options of engines, judged by the engines' own packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .findings import PathProblem, quote_name
from .plugins import Plugins


def check_engine_options(config: Mapping[str, Any], plugins: Plugins) -> Iterator[PathProblem]:
    """Find problems of options of any engine, in use or not."""
    for engine, check in plugins.engine_options.items():
        options = config.get(engine)
        names = [name for name in options if isinstance(name, str)] if isinstance(options, Mapping) else []
        for wrong in check(names):
            sentence = f"{engine} option {quote_name(wrong.name)} {wrong.problem}"
            yield PathProblem((engine, wrong.name), "engine_option", sentence, wrong.next_step)
