"""Debezium's change events in Avro with Confluent's framing: a zero byte, four bytes with the schema id in a registry,
the body.

Each key and value is converted to the JSON text of Connect's JsonConverter, with the schema that the Avro schema was made
from (`adapters.decoders.avro`). The rest is as in `debezium_json`: see `adapters.decoders.debezium` for
types, rejects and order. A key without a frame is read as JSON, because another converter may have written it. Records of
backfills are JSON too; they have their own topics (`ports.source.BACKFILL_TOPICS`).

| Record | Outcome |
| --- | --- |
| the registry has no schema with this id | UNKNOWN_SCHEMA |
| no frame or another one; a schema that Connect does not write | MALFORMED |
| a body that is cut short or continues after its end, text that is not UTF-8 | MALFORMED |
| more bytes or values than a record may have, a schema with too many types or too deep | TOO_LARGE |
| the registry does not answer | none: `Retryable` |
| the registry refuses the credentials, or is not a registry | none: `EnvironmentProblem` |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka.schema_registry import Schema

from replicator.domain.change import ERROR, changes_schema
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.plain_values import format_count
from replicator.domain.table import TableSpec
from replicator.domain.transactions import Connector, TransactionMark
from replicator.ports.decoder import ENVELOPE, ROUTE
from replicator.ports.options import RegistrySettings
from replicator.ports.source import BACKFILL_TOPICS

from ..arrow.frame_slices import map_slices, split_frame
from ..arrow.record_errors import RecordLimits, ValueMisfit, malformed_reject, reject_too_long
from ..kafka.schema_registry import Registry, UnknownSchema
from .avro import FAULTS, NO_SCHEMA, ValueSchema, read_datum, read_schema, schema_error
from .debezium.documents import UNREAD
from .debezium.masking import DebeziumDecoder
from .debezium.records import find_connector
from .debezium.schema import NOT_JSON
from .json.headers import find_entries, find_read_errors, find_redacted
from .json.schema_frames import hint_by_names
from .masking import RecordContent, replace_records
from .options import DebeziumAvroOptions

NO_KEY = str(NOT_JSON.error)
UNBOUNDED = 2**62


class DebeziumAvroDecoder(DebeziumDecoder):
    """`ports.decoder.Decoder` of Debezium's events in Avro. Raises ConfigProblem that names every wrong option.

    Schemas are cached in each process. A call may raise Retryable (the registry does not answer) or EnvironmentProblem
    (the registry refuses access). This only happens for an id whose schema is not cached, and the call has done nothing
    then.
    """

    def __init__(self, options: DebeziumAvroOptions | Mapping[str, object] | None = None) -> None:
        self._given = DebeziumAvroOptions.read(options or {})
        # The limit applies to the received bytes; their JSON text with its schema may be longer.
        limits = self._given.limits.model_copy(update={"message_bytes": UNBOUNDED})
        super().__init__(self._given.model_copy(update={"limits": limits}))
        self._reading = AvroTextReader(get_schemas(self._given.registry, self._given.limits), self._given.limits)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._given,)

    def route(self, raw: pa.Table) -> pa.Table:
        route = super().route
        return self._read_slices(raw, ROUTE, "error", lambda texts: self.add_key_errors(route(texts.frame), texts))

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        return super().learn(self._to_events(sample), table, fingerprint)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        decode = super().decode
        return self._read_slices(raw, changes_schema(table), ERROR, lambda texts: decode(texts.frame, table))

    def envelope(self, raw: pa.Table) -> pa.Table:
        envelope = super().envelope
        return self._read_slices(raw, ENVELOPE, "error", lambda texts: envelope(texts.frame))

    def marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        return super().marks(self._to_events(raw))

    def connector(self, raw: pa.Table) -> Connector | None:
        return find_connector(raw, self._depth, self._to_events)

    def _read_slices(self, raw: pa.Table, schema: pa.Schema, error: str, read: Callable[[JsonTexts], pa.Table]) -> pa.Table:
        """The results of `read` for the records as JSON text, one row per record. `error`: the column of errors, with those
        of unreadable values."""

        def read_slice(piece: pa.RecordBatch) -> pa.Table:
            texts = self._reading.read_texts(piece)
            result = read(texts)
            if not texts.errors:
                return result
            errors = result[error].to_pylist()
            for index, reject in texts.errors.items():
                errors[index] = str(reject)
            at = schema.get_field_index(error)
            return result.set_column(at, schema.field(at), pa.array(errors, pa.string()))

        return map_slices(raw, schema, read_slice)

    def add_key_errors(self, routes: pa.Table, texts: JsonTexts) -> pa.Table:
        """Add the error of the key to records that are rejected because of it. A record without a value is a delete of its
        key in some tables, so it must not be ignored."""
        if not texts.of_keys:
            return routes
        rows = routes.to_pylist()
        for index, reject in texts.of_keys.items():
            is_delete = self._options.any_tombstone_deletes and not texts.frame["value"][index].is_valid
            if rows[index]["error"] == NO_KEY or is_delete:
                error = Reject(reject.code, f"its key: {reject.sentence}")
                rows[index] = {**dict.fromkeys(ROUTE.names), "error": str(error)}
        return pa.Table.from_pylist(rows, ROUTE)

    def _to_events(self, raw: pa.Table) -> pa.Table:
        """The records as JSON text, without unreadable keys."""
        frames = [self._reading.read_texts(piece).frame for piece in split_frame(raw)]
        whole = pa.concat_tables([raw.schema.empty_table(), *frames])
        keys = pc.if_else(pc.equal(pc.binary_length(whole["key"]), 0), None, whole["key"])
        return whole.set_column(whole.column_names.index("key"), raw.schema.field("key"), keys)

    def _to_maskable(self, raw: pa.Table, tables: Sequence[str | None], errors: Sequence[str | None]) -> pa.Table:
        """Records of tables that have private columns or are unknown become text, which can hold any masked value.
        Unreadable keys are dropped, because their content is unknown."""
        named = zip(tables, raw["topic"].to_pylist(), errors, strict=True)
        is_wanted = [error is None and self._private.is_masked(table, topic) for table, topic, error in named]
        if not any(is_wanted):
            return raw
        rows = raw.select(RecordContent._fields).to_pylist()
        start = 0
        for piece in split_frame(raw):
            texts = self._reading.read_texts(piece)
            pairs = zip(*(texts.frame[name].to_pylist() for name in ("key", "value")), strict=True)
            for index, (key, value) in enumerate(pairs):
                if is_wanted[start + index]:
                    text_key = None if index in texts.of_keys else key
                    others = [one for one in rows[start + index]["headers"] or () if one["name"] != AS_TEXT]
                    headers = [*others, {"name": AS_TEXT, "value": b""}]
                    rows[start + index] = {"headers": headers, "key": text_key, "value": value}
            start += piece.num_rows
        return replace_records(raw, [RecordContent(**row) for row in rows])


# Keys and values as JSON text in the form of Connect's JsonConverter.


MAGIC = 0
FRAME = 5
"""Bytes before the body: the zero byte and the schema id."""
LONG_FRAME = 9
"""The same with Apicurio's 8-byte ids, whose upper half is zero."""
FORMAT = "debezium_avro"
IN_HEADERS = {
    **dict.fromkeys(("__value_schema_id", "__key_schema_id"), "Confluent's header serializer"),
    **dict.fromkeys(("apicurio.value.globalId", "apicurio.value.contentId"), "Apicurio's converter"),
    **dict.fromkeys(("apicurio.key.globalId", "apicurio.key.contentId"), "Apicurio's converter"),
}
"""Headers with a schema id, and serializers that write them. Such a body has no frame, and may begin with a zero byte."""
UNFRAMED = malformed_reject(
    "it does not begin with a zero byte and the id of its schema, as Confluent's AvroConverter writes records"
)
EIGHT_BYTES = malformed_reject(
    "it begins with a zero byte and the schema id 0, so Apicurio's converter has written it with an id of 8 bytes. Set "
    "`apicurio.registry.as-confluent=true`, so that ids have 4 bytes, as with Confluent's converter"
)
AS_TEXT = "replicator.json"
"""Header of a record that is stored as JSON text, because its Avro types cannot hold masked values."""
CUT = malformed_reject("its body is not what its Avro schema says, or it is cut short")


class JsonTexts(NamedTuple):
    """Records with JSON text as keys and values. `errors` has the errors of unreadable values, which are `UNREAD` in
    `frame`, and `of_keys` those of unreadable keys, which are empty text."""

    frame: pa.Table
    errors: dict[int, Reject]
    of_keys: dict[int, Reject]


class AvroTextReader:
    """Converts records to JSON text. Raises the errors of `RegisteredSchemas.get_schema`."""

    def __init__(self, schemas: RegisteredSchemas, limits: RecordLimits) -> None:
        self._schemas, self._limits = schemas, limits

    def read_texts(self, raw: pa.RecordBatch) -> JsonTexts:
        """The records as text. Keys without a frame, which another converter may have written, stay unchanged. So do records
        of backfills, and records stored as text."""
        as_text = {index for index, *_ in find_entries(raw.column("headers"), AS_TEXT)} | set(find_redacted(raw))
        of_backfill = pc.starts_with(raw.column("topic"), BACKFILL_TOPICS)
        if of_backfill.true_count:
            as_text |= set(pc.indices_nonzero(of_backfill).to_pylist())
        headed: dict[int, Reject | None] = {}
        for index, name, _ in find_entries(raw.column("headers"), *IN_HEADERS):
            headed[index] = malformed_reject(
                f"the id of its schema is in its header {name}, as {IN_HEADERS[name]} may write it; let it begin the record"
            )
        headed |= dict.fromkeys(find_read_errors(raw))
        bare, large = reject_too_long(raw.column("value"), self._limits)
        values = self._read_all(bare, headed, as_text, of_keys=False)
        keys = self._read_all(raw.column("key"), {}, as_text, of_keys=True)
        errors, of_keys = ({i: one for i, one in enumerate(ones) if isinstance(one, Reject)} for ones in (values, keys))
        errors |= large
        by_name = {
            "key": pa.array([b"" if i in of_keys else one for i, one in enumerate(keys)], pa.binary()),
            "value": pa.array([UNREAD if i in errors else one for i, one in enumerate(values)], pa.binary()),
        }
        columns = [by_name[name] if name in by_name else raw.column(name) for name in raw.schema.names]
        return JsonTexts(pa.Table.from_arrays(columns, schema=raw.schema), errors, of_keys)

    def _read_all(
        self, payloads: pa.Array, headed: dict[int, Reject | None], as_text: Set[int], *, of_keys: bool
    ) -> list[bytes | Reject | None]:
        """The text of each key or value, or the error. `headed`: records that their headers decide: an error, or None for
        a read error of the source."""
        outcomes: list[bytes | Reject | None] = []
        for index, data in enumerate(payloads.to_pylist()):
            if data is None or index in as_text:
                outcomes.append(data)
            else:
                outcomes.append(headed[index] if index in headed else self.read_one(data, of_keys=of_keys))
        return outcomes

    def read_one(self, data: bytes, *, of_keys: bool = False) -> bytes | Reject:
        """The text of one key or value, or the error."""
        if len(data) < FRAME or data[0] != MAGIC:
            return data if of_keys else hint_by_names(UNFRAMED, data, FORMAT)
        number = int.from_bytes(data[1:FRAME], "big")
        if number == 0 and len(data) >= LONG_FRAME:
            return EIGHT_BYTES
        schema = self._schemas.get_schema(number)
        return schema if isinstance(schema, Reject) else _read_body(schema, data[FRAME:])


def _read_body(schema: ValueSchema, body: bytes) -> bytes | Reject:
    """The text of the value in a body, or the error."""
    try:
        value, rest = read_datum(body, schema.avro, schema.columns)
        text = schema.to_text(value)
    except ValueMisfit as unfit:
        return unfit.reject
    except UnicodeError:
        return malformed_reject("it holds text that is not UTF-8")
    except RecursionError:
        return Reject(RejectCode.TOO_LARGE, "it is nested too deeply")
    except (*FAULTS, msgspec.MsgspecError):
        return CUT
    return (
        malformed_reject(f"it has {format_count(len(rest), 'byte')} after the end of the value in its Avro schema")
        if rest
        else text
    )


# Cache of registry schemas for the life of the process: the schema of an id never changes.


MAX_SCHEMAS = 16_384
LONGEST_SCHEMA = 16 * 1024 * 1024
MISSING_SECONDS = 1.0
"""Seconds before a missing schema is requested again."""


class RegisteredSchemas:
    """The schemas of one registry, each requested once."""

    def __init__(self, registry: Registry, limits: RecordLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._limits, self._clock = registry, limits, clock
        self._known: dict[int, ValueSchema | Reject] = {}
        self._missing: dict[int, float] = {}

    def get_schema(self, number: int) -> ValueSchema | Reject:
        """The schema with that id, or the reason why it is unusable. Raises the errors of `Registry.read_schema`."""
        value_schema = self._known.get(number)
        if value_schema is not None:
            return value_schema
        if self._clock() < self._missing.get(number, 0.0):
            return _unknown_schema_reject(number)
        try:
            schema = self._registry.read_schema(number)
        except UnknownSchema:
            _limit_cache(self._missing)[number] = self._clock() + MISSING_SECONDS
            return _unknown_schema_reject(number)
        value_schema = _limit_cache(self._known)[number] = read_registered_schema(schema, self._limits)
        return value_schema


def _limit_cache(cache: dict[int, Any]) -> dict[int, Any]:
    if len(cache) >= MAX_SCHEMAS:
        cache.clear()
    return cache


def _unknown_schema_reject(number: int) -> Reject:
    return Reject(RejectCode.UNKNOWN_SCHEMA, f"the schema registry has no schema of the id {number}, which the record names")


def read_registered_schema(schema: Schema, limits: RecordLimits) -> ValueSchema | Reject:
    """The value schema of a registered schema, or the reason why it is unusable. Never raises for its content."""
    text = schema.schema_str or ""
    try:
        if (schema.schema_type or "AVRO") != "AVRO":
            raise ValueMisfit(RejectCode.MALFORMED, f"its schema is of the type {str(schema.schema_type)[:20]!r}, not AVRO")
        if schema.references:
            raise schema_error("refers to other schemas")
        if len(text) > LONGEST_SCHEMA:
            raise schema_error(f"is longer than {LONGEST_SCHEMA} characters", RejectCode.TOO_LARGE)
        return read_schema(text, limits)
    except ValueMisfit as unfit:
        return unfit.reject
    except RecursionError:
        return schema_error("is nested too deeply", RejectCode.TOO_LARGE).reject
    except NO_SCHEMA:
        return malformed_reject("its schema is no Avro schema")


@cache
def get_schemas(options: RegistrySettings, limits: RecordLimits) -> RegisteredSchemas:
    """The schemas of a registry, one cache per process: executors create decoders for every task."""
    return RegisteredSchemas(Registry(options), limits)
