"""`replicator refresh`: updates gold tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from replicator.domain.plain_values import format_count

from .completion import complete_projections
from .session import CommandSession, command

if TYPE_CHECKING:
    from replicator.application.operations.refresh import RefreshResult


@command("refresh", "replicator refresh revenue_by_city")
@click.argument("projections", nargs=-1, shell_complete=complete_projections)
@click.option("--full", is_flag=True, help="Compute all rows, not only the changed groups.")
@click.option("--engine", type=click.Choice(["local", "spark"]), help="Use this engine instead of `engine` of the config.")
def refresh(session: CommandSession, projections: tuple[str, ...], full: bool, engine: str | None) -> None:
    """Update gold tables from their inputs.

    PROJECTIONS are names of `projections` in the config; by default all. A projection with `partition_by` computes only the
    groups whose inputs have changed, others compute everything.
    """
    from replicator.wiring import projections as wiring

    if engine:
        session.overrides += (f"engine={engine}",)
    chosen = wiring.select_projections(session.loaded, projections)
    with wiring.open_refresher(session.loaded) as refreshing:
        done = []
        for one in chosen:
            done.append(refreshing.refresh(one, full=full))
            session.print_note(describe_refresh(done[-1]))
    written = sum(one.version is not None for one in done)
    session.emit([asdict(one) for one in done], f"{format_count(len(done), 'projection')}, {written} refreshed")


def describe_refresh(done: RefreshResult) -> str:
    """The outcome of a refresh as a line of text."""
    how = {
        "current": "nothing has changed",
        "none": "no row that it reads has changed",
        "groups": f"{format_count(done.groups, 'group')}, {format_count(done.rows, 'row')}"
        if done.groups is not None
        else "",
        "full": f"{format_count(done.rows, 'row')}, everything: {done.reason}",
    }[done.kind]
    version = "" if done.version is None else f", version {done.version}"
    return f"{done.name} -> {done.target}: {how}{version}, {done.seconds:.1f} s"
