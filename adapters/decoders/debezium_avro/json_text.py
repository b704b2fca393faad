"""Keys and values as JSON text in the form of Connect's JsonConverter."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka.schema_registry import Schema

from replicator.domain.errors import Reject, RejectCode
from replicator.domain.plain_values import format_count
from replicator.ports.options import RegistrySettings
from replicator.ports.source import BACKFILL_TOPICS

from ...arrow.frame_slices import select_records
from ...arrow.record_errors import ValueMisfit, malformed_reject
from ...arrow.record_limits import RecordLimits, reject_too_long
from ...kafka.schema_registry import Registry, UnknownSchema
from ..avro.connect_schema import NO_SCHEMA, ValueSchema, read_schema, schema_error
from ..avro.datum_reader import FAULTS, read_datum
from ..json.format_detection import hint_by_names
from ..json.headers import find_entries, find_read_errors, find_redacted

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
    """Records with JSON text as keys and values. `raw` has the records with a readable value, at the indices `places`
    (None: all). `errors` has the errors of the others. `of_keys` has the errors of unreadable keys, which are empty text
    in `raw`."""

    raw: pa.RecordBatch
    places: list[int] | None
    errors: dict[int, Reject]
    of_keys: dict[int, Reject]


class AvroTextReader:
    """Converts records to JSON text. Raises the errors of `RegisteredSchemas.get_schema`."""

    def __init__(self, schemas: RegisteredSchemas, limits: RecordLimits) -> None:
        self._schemas, self._limits = schemas, limits

    def read_texts(self, raw: pa.RecordBatch) -> JsonTexts:
        """The records as text. Keys without a frame, which another converter may have written, stay unchanged. So do records
        of backfills, and records stored as text."""
        as_text = _find_text_records(raw.column("topic")) | {
            place for place, *_ in find_entries(raw.column("headers"), AS_TEXT)
        }
        as_text |= set(find_redacted(raw))
        headed = _find_foreign_records(raw.column("headers")) | dict.fromkeys(find_read_errors(raw))
        bare, large = reject_too_long(raw.column("value"), self._limits)
        values, errors = self._read_all(bare, headed, as_text, of_keys=False)
        keys, of_keys = self._read_all(raw.column("key"), {}, as_text, of_keys=True)
        columns = [{"key": keys, "value": values}.get(name, raw.column(name)) for name in raw.schema.names]
        whole, bad = pa.RecordBatch.from_arrays(columns, schema=raw.schema), large | errors
        places = [i for i in range(raw.num_rows) if i not in bad] if bad else None
        return JsonTexts(select_records(whole, places), places, bad, of_keys)

    def _read_all(
        self, given: pa.Array, headed: dict[int, Reject | None], as_text: Set[int], *, of_keys: bool
    ) -> tuple[pa.Array, dict[int, Reject]]:
        """`headed`: records that their headers decide: an error, or None for a read error of the source."""
        texts: list[bytes | None] = []
        errors: dict[int, Reject] = {}
        for place, data in enumerate(given.to_pylist()):
            if data is None or place in as_text:
                texts.append(data)
                continue
            found = headed[place] if place in headed else self.read_one(data, of_keys=of_keys)
            if isinstance(found, Reject):
                errors[place] = found
            texts.append((b"" if of_keys else None) if isinstance(found, Reject) else found)
        return pa.array(texts, given.type), errors

    def read_one(self, data: bytes, *, of_keys: bool = False) -> bytes | Reject:
        """The text of one key or value, or the error."""
        if len(data) < FRAME or data[0] != MAGIC:
            return data if of_keys else hint_by_names(UNFRAMED, data, FORMAT)
        number = int.from_bytes(data[1:FRAME], "big")
        if number == 0 and len(data) >= LONG_FRAME:
            return EIGHT_BYTES
        known = self._schemas.get_schema(number)
        return known if isinstance(known, Reject) else _read_body(known, data[FRAME:])


def _read_body(known: ValueSchema, body: bytes) -> bytes | Reject:
    """The text of the value in a body, or the error."""
    try:
        value, rest = read_datum(body, known.avro, known.columns)
        text = known.to_text(value)
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


def _find_text_records(topics: pa.Array) -> Set[int]:
    found = pc.starts_with(topics, BACKFILL_TOPICS)
    return set(pc.indices_nonzero(found).to_pylist()) if found.true_count else frozenset()


def _find_foreign_records(headers: pa.Array) -> dict[int, Reject | None]:
    """Records whose headers show another framing, with their errors."""
    found: dict[int, Reject | None] = {}
    for place, name, _ in find_entries(headers, *IN_HEADERS):
        sentence = (
            f"the id of its schema is in its header {name}, as {IN_HEADERS[name]} may write it; let it begin the record"
        )
        found[place] = malformed_reject(sentence)
    return found


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
        found = self._known.get(number)
        if found is not None:
            return found
        if self._clock() < self._missing.get(number, 0.0):
            return _unknown_schema_reject(number)
        try:
            schema = self._registry.read_schema(number)
        except UnknownSchema:
            _limit_cache(self._missing)[number] = self._clock() + MISSING_SECONDS
            return _unknown_schema_reject(number)
        made = _limit_cache(self._known)[number] = read_registered_schema(schema, self._limits)
        return made


def _limit_cache(kept: dict[int, Any]) -> dict[int, Any]:
    if len(kept) >= MAX_SCHEMAS:
        kept.clear()
    return kept


def _unknown_schema_reject(number: int) -> Reject:
    return Reject(RejectCode.UNKNOWN_SCHEMA, f"the schema registry has no schema of the id {number}, which the record names")


def read_registered_schema(schema: Schema, limits: RecordLimits) -> ValueSchema | Reject:
    """The value schema of a registered schema, or the reason why it is unusable. Never raises for its content."""
    try:
        return _read_schema(schema, limits)
    except ValueMisfit as unfit:
        return unfit.reject
    except RecursionError:
        return schema_error("is nested too deeply", RejectCode.TOO_LARGE).reject
    except NO_SCHEMA:
        return malformed_reject("its schema is no Avro schema")


def _read_schema(schema: Schema, limits: RecordLimits) -> ValueSchema:
    text = schema.schema_str or ""
    if (schema.schema_type or "AVRO") != "AVRO":
        raise ValueMisfit(RejectCode.MALFORMED, f"its schema is of the type {str(schema.schema_type)[:20]!r}, not AVRO")
    if schema.references:
        raise schema_error("refers to other schemas")
    if len(text) > LONGEST_SCHEMA:
        raise schema_error(f"is longer than {LONGEST_SCHEMA} characters", RejectCode.TOO_LARGE)
    return read_schema(text, limits)


@cache
def get_schemas(options: RegistrySettings, limits: RecordLimits) -> RegisteredSchemas:
    """The schemas of a registry, one cache per process: executors create decoders for every task."""
    return RegisteredSchemas(Registry(options), limits)
