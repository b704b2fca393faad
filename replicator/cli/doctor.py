"""`replicator doctor`: connects to everything, and prints a next step for each problem."""

from __future__ import annotations

import os
from typing import Any

import click

from replicator.domain.errors import ExitCode
from replicator.domain.plain_values import format_count, to_printable

from .session import CommandSession, command, echo

GLYPHS = {"ok": "✓", "warning": "!", "error": "✗"}
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


@command("doctor", "replicator doctor --connect http://localhost:8083")
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@click.option(
    "--connect", metavar="URL", help="Also check the connectors of this Kafka Connect worker, such as http://HOST:8083."
)
def doctor(session: CommandSession, strict: bool, connect: str | None) -> int:
    """Check the servers, rights and settings that a run needs.

    Connects to broker, topics, connectors, source databases and targets, and prints a next step for each problem. With
    `engine: spark` it checks Java too. The exit code is 3 if it finds a problem.
    """
    from replicator.wiring.diagnosis import diagnose

    if connect is not None and not connect.startswith(("http://", "https://")):
        raise click.UsageError("--connect needs the URL of the worker's REST API: http://HOST:PORT.")
    found = list(diagnose(session.loaded, connect))
    bad = [d for d in found if d.severity == "error" or (strict and d.severity == "warning")]
    result = [
        {"severity": d.severity, "subject": d.subject, "sentence": d.sentence, "next_step": d.next_step} for d in found
    ]
    warnings = len([d for d in found if d.severity == "warning" and d not in bad])
    summary = f"{format_count(len(found), 'check')}, {format_count(len(bad), 'problem')}" + (
        f", {format_count(warnings, 'warning')} (!)" if warnings else ""
    )
    session.emit(result, summary, ok=not bad, text=lambda: _print_diagnoses(found, summary))
    return int(ExitCode.ENVIRONMENT if bad else ExitCode.OK)


def _print_diagnoses(found: list[Any], summary: str) -> None:
    for one in found:
        glyph = GLYPHS[one.severity]
        # Into a pipe `echo` leaves the colour out.
        mark = glyph if os.environ.get("NO_COLOR") else click.style(glyph, fg=COLOURS[one.severity])
        click.echo(f"{mark} " + to_printable(f"{one.subject}: {one.sentence}"))
        if one.severity != "ok" and one.next_step:
            echo(f"    {one.next_step}")
    echo(summary)
