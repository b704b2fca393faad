"""Debezium's change events: routing, types, order and envelopes, in whatever form the events come.

These read JSON text, with the schema as Kafka Connect's JsonConverter writes it or without; decoders of another form make
that text of their events.

**Types.** A logical type that is not in this table keeps the type of its physical one; `Column.source_type` has its name.

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

**Values without a place.** The record is rejected, never changed; its neighbours are not touched.

| Value | Outcome |
| --- | --- |
| PostgreSQL's infinity in a date or timestamp; a day outside the years 1 to 9999 | OUT_OF_RANGE |
| a time of day below 00:00 or from 24:00 on (MySQL's long and negative TIME, PostgreSQL's 24:00:00) | OUT_OF_RANGE |
| more digits than the decimal, more than six places in text of a timestamp, an integer or float32 too large | OUT_OF_RANGE |
| `NAN` or an infinity in a declared decimal column | OUT_OF_RANGE |
| a JSON type other than the schema's, broken base64, text that is not Unicode, bare NaN and Infinity | MALFORMED |
| any of these in a column of a deleted row that is not in its key | the delete goes on; the column counts as not sent |
| a column that the after image of an update lacks | not sent (`_unsent`) |
| a column that any other image lacks | null |

What a connector loses before it sends cannot be seen here: NULL written as the column's default (set
`replace.null.with.default=false` on the converters), NaN of a `numeric` as null in `decimal.handling.mode=precise`, an
unchanged TOASTed `timestamptz[]` as null, an unsigned 64-bit number as negative unless
`bigint.unsigned.handling.mode=precise`.

**Documents.** What becomes of MongoDB's is said in `documents` and `extended`; `flattened` makes flattened rows events.

**Order.** `sequence` and `positions` have the rules per connector; a table with `tombstones: delete` is sequenced by
(epoch, offset) alone.
**Transactions.** `_tx` is the connector's number of the transaction where there is one (`source.txId`), because PostgreSQL's
`transaction.id` differs from event to event; otherwise `transaction.id`, otherwise the GTID.
"""
