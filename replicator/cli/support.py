"""`replicator support-bundle`: what somebody needs who is asked for help."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from replicator.domain.plain_values import format_count

from .session import CommandSession, command, echo


@command("support-bundle")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--log", type=click.File("rb"), help="A log of the daemon, which writes it to stderr; - is stdin.")
def support_bundle(session: CommandSession, file: Path | None, log: IO[bytes] | None) -> None:
    """Write FILE (a zip, by default named by the time) with the config, secrets masked, versions, status, metrics, plan,
    what doctor says, counts of dead letters, and with `--log` the last MiB of a log. No rows and no records are in it. A
    part that fails says why in its place."""
    from replicator.application.operations.support_bundle import write_bundle
    from replicator.wiring.diagnosis import list_parts

    path = file or Path(f"replicator-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    outcome = write_bundle(path, list_parts(session.loaded), session.loaded.list_secrets(), session.print_note, log)
    failed = {name: why for name, why in outcome.items() if why}
    summary = f"{path}: {format_count(len(outcome), 'part')}" + (
        f", {len(failed)} of which could not be told" if failed else ""
    )
    lines = [summary, *(f"  {name}: {why}" for name, why in failed.items())]
    result = {"file": str(path), "parts": list(outcome), "failed": failed}
    session.emit(result, summary, text=lambda: echo("\n".join(lines)))
