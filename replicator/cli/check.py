"""`replicator check`: the config, offline, all findings at once."""

from __future__ import annotations

from .session import Session, command


@command("check")
def check(session: Session) -> None:
    """Validate the config without connecting to anything; every finding, not just the first."""
    from replicator.wiring.checking import refuse_unusable

    loaded = session.loaded
    refuse_unusable(loaded)
    settings = loaded.settings
    summary = (
        f"{session.config}: ok, {len(settings.sources)} source(s), {len(settings.sinks)} sink(s), "
        f"{len(settings.tables)} table entries"
    )
    session.emit({"warnings": [w.as_dict() for w in loaded.warnings], "resolved": loaded.redacted()}, summary)
