"""Events of an outbox table: Debezium's change events of the table, or messages of its EventRouter transform.

An event is a row `(id, aggregatetype, aggregateid, type, payload, event_offset)` with the key `id`.
`outbox_events.route_to` names its table, by default `outbox.event.{aggregatetype}`.

| | change event of the outbox table | message of EventRouter |
| --- | --- | --- |
| recognised by | its `op` and `source` | its header `id` |
| table | `route_to` with its aggregatetype | its topic |
| id, aggregatetype | columns of the row (`outbox_events.columns`) | header `id`, topic |
| aggregateid, type | columns of the row | message key, header `type` or `eventType` |
| payload | a column: text that contains JSON, or a JSON value | the message: the same, or below a schema |
| time | commit at the source | the record's |

`payload` is the JSON text as sent, with the source type `io.debezium.data.Json`; NULL if the event has none.
`event_offset` is the record's offset, which orders the events of an aggregate in a partition.

**Deduplication.** An event never changes, so all events have the same sequence. For every policy an event with a stored
id is a duplicate, and the first one stays.

**Private** columns and fields of the payload: see `mask_records`.

**Ignored** are deletes and truncates of the outbox table, because its rows are removed after they were read, and null
values without a header `id`. **Rejected** are updates of it, events without an id, aggregate types that cannot be part of
a table's name, and payloads that are not JSON.
"""

from .decoder import DebeziumOutboxDecoder

__all__ = ["DebeziumOutboxDecoder"]
