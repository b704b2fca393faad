"""`replicator support-bundle`: collects diagnostics in a zip file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import click

from replicator.domain.plain_values import format_count

from .session import CommandSession, command, echo


@command("support-bundle", "replicator support-bundle support.zip")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--log",
    type=click.File("rb"),
    metavar="FILE",
    help="Add the last MiB of this log of the daemon (its stderr); - is stdin.",
)
def support_bundle(session: CommandSession, file: Path | None, log: IO[bytes] | None) -> None:
    """Collect diagnostics for a support request in a zip file.

    Writes FILE; by default its name contains the time. It has the config with masked secrets, versions, status, metrics,
    plan, the result of doctor, and counts of dead letters. It contains no rows and no records. If a part cannot be
    collected, the file has the reason instead.
    """
    from replicator.application.operations.support_bundle import write_bundle
    from replicator.wiring.diagnosis import list_parts

    path = file or Path(f"replicator-support-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip")
    outcome = write_bundle(path, list_parts(session.loaded), session.loaded.list_secrets(), session.print_note, log)
    failed = {name: why for name, why in outcome.items() if why}
    summary = f"{path}: {format_count(len(outcome), 'part')}" + (f", {len(failed)} failed" if failed else "")
    lines = [summary, *(f"  {name}: {why}" for name, why in failed.items())]
    result = {"file": str(path), "parts": list(outcome), "failed": failed}
    session.emit(result, summary, text=lambda: echo("\n".join(lines)))
