"""Config checks that need no connection, but more than the text of the config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from replicator.domain.errors import ConfigProblem
from replicator.settings import ConfigError, Finding, Loaded

from . import adapters, projections


def refuse_unusable(loaded: Loaded) -> None:
    """Raise ConfigError with everything that would prevent the start of `run`. Connects to nothing."""
    findings = list(_list_findings(loaded))
    if findings:
        raise ConfigError(findings)


def _list_findings(loaded: Loaded) -> Iterator[Finding]:
    for name in dict.fromkeys(table.source for table in loaded.settings.tables):
        try:
            adapters.build_decoder(loaded, name)
        except ConfigProblem as problem:
            yield projections.make_finding(loaded, ("sources", name), "unusable", problem.sentence, problem.next_step)
    yield from projections.list_findings(loaded)
    state = Path(loaded.settings.state)
    if state.exists() and not state.is_dir():
        sentence = "state is a file, and must be a folder"
        yield projections.make_finding(loaded, ("state",), "unusable", sentence, "name another one")
