"""Outbox events from changes frames, for the event store."""

from __future__ import annotations

import pyarrow as pa

from replicator.domain.change import ERROR, OFFSET, PARTITION, RECORD_POSITION, TOPIC, TS
from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.events import EventLimits, InvalidEvent, NewEvent, read_json

NEEDED = ("id", "aggregatetype", "aggregateid", "type", "payload")
IN_ORDER = [(name, "ascending") for name in RECORD_POSITION]


def read_new_events(frame: pa.Table, limits: EventLimits) -> tuple[list[NewEvent], pa.Table]:
    """The new events in a folded frame of an outbox table, per partition in the order of their records. Also the rows
    that an event store cannot accept, with `_error`.

    `id` is the event's id. The payload must be a JSON object, whose fields are the event's data (numbers keep every
    digit). Topic, partition and offset of the record are its metadata, and `_ts` is its time.
    """
    missing = [name for name in NEEDED if name not in frame.column_names]
    if missing:
        raise ConfigProblem(
            f"rows without the column {missing[0]!r} are not events of an outbox",
            next_step="Only tables of a source with `format: debezium_outbox` can go to the event store.",
        )
    frame = frame.sort_by(IN_ORDER)
    events: list[NewEvent] = []
    refused: dict[int, str] = {}
    for number, row in enumerate(frame.select([*NEEDED, *RECORD_POSITION, TS]).to_pylist()):
        try:
            if row["payload"] is None:
                raise InvalidEvent("the event has no payload; a JSON object is needed, which becomes its data")
            new = NewEvent(
                event_id=row["id"],
                event_type=row["type"],
                aggregate_id=row["aggregateid"],
                aggregate_type=row["aggregatetype"],
                event_data=read_json("its payload", row["payload"]),
                metadata={"topic": row[TOPIC], "partition": str(row[PARTITION]), "offset": str(row[OFFSET])},
                at=row[TS],
            )
            limits.check(new)
            events.append(new)
        except InvalidEvent as why:
            refused[number] = str(Reject(RejectCode.NO_EVENT, why.sentence))
    rejects = frame.take(pa.array(list(refused), pa.int64()))
    if ERROR in rejects.column_names:
        rejects = rejects.drop_columns([ERROR])
    return events, rejects.append_column(ERROR, pa.array(list(refused.values()), pa.string()))
