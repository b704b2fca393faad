"""`replicator check`: the config, offline, all findings at once."""

from __future__ import annotations

from replicator.domain.plain_values import format_count

from .session import CommandSession, command


@command("check", "replicator check --env production")
def check(session: CommandSession) -> None:
    """Validate the config without connecting to anything.

    Prints all problems with file and line, not only the first one. `replicator doctor` checks the servers.
    """
    from replicator.wiring import projections
    from replicator.wiring.config_checks import refuse_unusable

    loaded = session.loaded
    refuse_unusable(loaded)
    settings = loaded.settings
    summary = (
        f"{session.config}: ok, {format_count(len(settings.sources), 'source')}, "
        f"{format_count(len(settings.sinks), 'sink')}, "
        f"{format_count(len(settings.tables), 'table entry')}"
    )
    hints = list(projections.list_hints(loaded))
    lines = "".join(f"\n  {hint}" for hint in hints)
    found = {"warnings": [w.as_dict() for w in loaded.warnings], "hints": [h.as_dict() for h in hints]}
    session.emit({**found, "resolved": loaded.to_redacted()}, summary + lines)
