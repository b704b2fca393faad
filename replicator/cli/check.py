"""`replicator check`: the config, offline, all findings at once."""

from __future__ import annotations

from .session import Session, command, counted


@command("check")
def check(session: Session) -> None:
    """Validate the config without connecting to anything; every finding, not just the first."""
    from replicator.wiring import projections
    from replicator.wiring.checking import refuse_unusable

    loaded = session.loaded
    refuse_unusable(loaded)
    settings = loaded.settings
    summary = (
        f"{session.config}: ok, {counted(len(settings.sources), 'source')}, {counted(len(settings.sinks), 'sink')}, "
        f"{counted(len(settings.tables), 'table entry')}"
    )
    hints = list(projections.hints(loaded))
    lines = "".join(f"\n  {hint}" for hint in hints)
    found = {"warnings": [w.as_dict() for w in loaded.warnings], "hints": [h.as_dict() for h in hints]}
    session.emit({**found, "resolved": loaded.redacted()}, summary + lines)
