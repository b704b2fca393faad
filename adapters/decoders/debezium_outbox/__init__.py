"""The events of an outbox table: as Debezium's change events of the table, or as its EventRouter transform makes them.

An event is a row `(id, aggregatetype, aggregateid, type, payload, event_offset)` with the key `id`, of the table that
`outbox_events.route_to` calls it, `outbox.event.{aggregatetype}` unless said otherwise.

| | change event of the outbox table | event of EventRouter |
| --- | --- | --- |
| known by | its `op` and `source` | its header `id` |
| table | `route_to` with its aggregatetype | its topic |
| id, aggregatetype | columns of the row (`outbox_events.columns`) | header `id`, topic |
| aggregateid, type | columns of the row | message key, header `type` or `eventType` |
| payload | a column: text that holds JSON, or a JSON value | the message: likewise, or below a schema |
| time | commit at the source | the record's |

`payload` is the JSON text as it was sent, of the source type `io.debezium.data.Json`; NULL where the event has none.
`event_offset` is the record's offset, which orders the events of an aggregate within a partition.

**Once.** An event is never changed, so all have one sequence: whatever the policy, an event whose id is there is a
duplicate, and the first one that came stays as it is.

**Private** columns and fields of the payload: `mask_records`.

**Ignored** are deletes and truncates of the outbox table, whose rows are only waste once they were read, and null values
without a header `id`. **Rejected** are updates of it, events without an id, aggregate types that cannot be part of a
table's name, and payloads that are not JSON.
"""

from .decoder import DebeziumOutboxDecoder

__all__ = ["DebeziumOutboxDecoder"]
