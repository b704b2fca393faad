"""Debezium's change events: routing, types, order and envelopes, for all wire forms of the events.

This package reads JSON text, with the schema of Kafka Connect's JsonConverter or without a schema. Decoders of other
forms convert their events to this text.

**Types.** A logical type that is not in this table has the type of its physical type; `Column.source_type` keeps its
name.

| Connect / Debezium | Arrow |
| --- | --- |
| int8 int16 int32 int64, `Year`, `MicroDuration`, `NanoDuration` | the same integer (durations in their own unit) |
| float, double | float32, float64; NaN and infinities are kept |
| boolean, string, bytes | bool, string, binary |
| `Date` | date32 |
| `Time` (ms), `MicroTime`, `IsoTime`; `NanoTime` | time64[us]; time64[ns] |
| `Timestamp` (ms), `MicroTimestamp`, `IsoTimestamp`; `NanoTimestamp` | timestamp[us]; timestamp[ns], without zone |
| `ZonedTimestamp` | timestamp[us, UTC] |
| `ZonedTime`, `Interval`, `Json`, `Xml`, `Uuid`, `Enum`, `EnumSet`, `TsVector` ... | string |
| `IsoDate` | date32 |
| `Decimal`, base64 or JSON number | decimal128(p, s), from 39 digits on decimal256(p, s), from 77 digits on string |
| `VariableScaleDecimal` | string with all its digits, never an exponent |
| `Bits` | binary, little-endian as sent |
| array, map, struct (`Point`, `Geometry`, `Structured*` ...) | list, map, struct of these types |

A decimal's p is `connect.decimal.precision`, else 38; a negative scale becomes digits before the point.

**Values that no column can hold.** The record is rejected, never changed. Its neighbours are not affected.

| Value | Outcome |
| --- | --- |
| PostgreSQL's infinity in a date or timestamp; a day outside the years 1 to 9999 | OUT_OF_RANGE |
| a time of day below 00:00 or from 24:00 on (MySQL's long and negative TIME, PostgreSQL's 24:00:00) | OUT_OF_RANGE |
| more digits than the decimal, more than six places in text of a timestamp, an integer or float32 too large | OUT_OF_RANGE |
| `NAN` or an infinity in a declared decimal column, or in a `numeric` that a backfill read | OUT_OF_RANGE |
| a JSON type other than the schema's, broken base64, text that is not Unicode, bare NaN and Infinity | MALFORMED |
| any of these in a non-key column of a deleted row | the delete is applied; the column counts as unchanged |
| a column missing in the after image of an update | unchanged (listed in `_unsent`) |
| a column missing in any other image | null |

Some values are lost in the connector, before this package reads them:

- NULL, written as the column's default: set `replace.null.with.default=false` on the converters.
- NaN of a `numeric`, written as null in `decimal.handling.mode=precise`.
- An unchanged TOASTed `timestamptz[]`, written as null.
- An unsigned 64-bit number, written as negative unless `bigint.unsigned.handling.mode=precise`.

**Documents.** `documents` converts MongoDB's events. `adapters.decoders.debezium_json` makes change events of flattened
rows.

**Order.** `sequence` has the rules per connector. Tables with `tombstones: delete` are ordered by
(epoch, offset) only.

**Transactions.** `_tx` is `source.txId` if the connector sends one, because PostgreSQL's `transaction.id` differs from
event to event. Otherwise it is `transaction.id`, otherwise the GTID.
"""
