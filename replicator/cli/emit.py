"""`replicator emit`: adds one event to the event store."""

from __future__ import annotations

from typing import Any

import click

from replicator.domain.plain_values import to_plain

from .session import COUNT, CommandSession, command


@command("emit", """replicator emit order 42 OrderShipped --data '{"carrier": "DHL"}' --expected-version 3""")
@click.argument("aggregate_type")
@click.argument("aggregate_id")
@click.argument("event_type")
@click.option("--data", default="{}", show_default=True, metavar="JSON", help="Content of the event, a JSON object.")
@click.option("--metadata", default="{}", show_default=True, metavar="JSON", help="Metadata, a JSON object.")
@click.option(
    "--expected-version",
    type=COUNT,
    help="Fail unless this is the version of the aggregate before the event; 0 means that it has no events.",
)
@click.option(
    "--event-id", metavar="ID", help="Id of the event. If it is stored already, nothing changes.  [default: a new id]"
)
def emit(
    session: CommandSession,
    aggregate_type: str,
    aggregate_id: str,
    event_type: str,
    data: str,
    metadata: str,
    expected_version: int | None,
    event_id: str | None,
) -> None:
    """Add an event to the event store.

    The event belongs to the aggregate AGGREGATE_TYPE AGGREGATE_ID. The config needs an `event_store`.
    """
    from replicator.domain.event_texts import read_json
    from replicator.domain.events import make_event
    from replicator.wiring import event_store as wiring

    texts = read_json("event_data", data), read_json("metadata", metadata)
    new = make_event(aggregate_id, aggregate_type, event_type, *texts, expected_version=expected_version, event_id=event_id)
    emitting = wiring.make_emitter(session.loaded)
    try:
        (done,) = emitting.emit([new])
    finally:
        emitting.store.close()
    event = done.event
    what = f"{event.aggregate_type} {event.aggregate_id}, version {event.event_version}"
    summary = f"{what}: {event.event_type}" if done.is_new else f"{what}: event {event.event_id} is stored already"
    session.emit({**to_json(event), "is_new": done.is_new}, summary)


def to_json(event: Any) -> dict[str, Any]:
    """An event as `--json` has it."""
    fields: dict[str, Any] = {name: getattr(event, name) for name in event.__dataclass_fields__}
    return {name: to_plain(value) for name, value in fields.items()} | {"created_at": event.created_at.isoformat()}
