"""`replicator events`: lists the events of the event store."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from replicator.domain.plain_values import format_count

from .emit import to_json
from .session import COUNT, CommandSession, command, echo
from .time_params import IN_UTC, TIME

if TYPE_CHECKING:
    from replicator.domain.events import Event


@command("events", "replicator events order 42")
@click.argument("aggregate_type")
@click.argument("aggregate_id", required=False)
@click.option("--until", type=TIME, help=f"Only events stored up to this time. {IN_UTC}")
@click.option("--limit", type=COUNT, help="Print the first N events.  [default: all]")
def events(
    session: CommandSession, aggregate_type: str, aggregate_id: str | None, until: datetime | None, limit: int | None
) -> None:
    """List the events of an aggregate, or of an aggregate type.

    Without AGGREGATE_ID, lists the events of all aggregates of AGGREGATE_TYPE, ordered by time and version.
    """
    from replicator.wiring import event_store as wiring

    store = wiring.open_store(session.loaded)
    try:
        found = store.read(aggregate_type, aggregate_id, until=until, limit=limit)
    finally:
        store.close()
    summary = f"{' '.join(filter(None, (aggregate_type, aggregate_id)))}: {format_count(len(found), 'event')}"
    session.emit([to_json(e) for e in found], summary, text=lambda: _print_events(summary, found))


def _print_events(title: str, found: Any) -> None:
    echo(title)
    for event in found:
        echo(f"{event.created_at}  {event.aggregate_id}  version {event.event_version}  {event.event_type}")
        for line in _list_values(event):
            echo(f"    {line}")


def _list_values(event: Event) -> list[str]:
    pairs = [(name, value) for name, value in event.event_data.items()]
    pairs += [(f"metadata {name}", value) for name, value in event.metadata.items()]
    return [f"{name} = {'NULL' if value is None else value}" for name, value in pairs]
